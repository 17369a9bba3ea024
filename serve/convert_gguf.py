"""Convert a GGUF file that a package ships to a bfloat16 safetensors folder.

Runs inside the server environment, as a script: PACKAGE FILE SHA256 OUT.
"""

import hashlib
import importlib.util
import sys
from pathlib import Path


def main() -> None:
    package, file, sha256, out = sys.argv[1:]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"package {package} is not installed in the server environment")
    folder = Path(spec.submodule_search_locations[0])
    found = hashlib.sha256((folder / file).read_bytes()).hexdigest()
    if found != sha256:
        sys.exit(f"{file} has sha256 {found}, but the recipe pins {sha256}")

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(str(folder), gguf_file=file)
    model = AutoModelForCausalLM.from_pretrained(
        str(folder),
        gguf_file=file,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main()
