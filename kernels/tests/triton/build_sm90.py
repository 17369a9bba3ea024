"""Compiles the Hopper mega-mHC for sm_90 without a GPU; prints one JSON line a build.

A program of its own: the tests' process may have Triton in its interpreter.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from dsv41_kernels.reference.interface import RELEASED
from dsv41_kernels.triton import policy
from dsv41_kernels.triton.host import boxes, build_options
from dsv41_kernels.triton.persistent_kernel import persistent_kernel
from dsv41_kernels.triton.tile_kernel import tile_kernel

HIDDEN, SM_COUNT = 5120, 132
BF16, F32 = "*bf16", "*fp32"
POINTERS = {
    "R": BF16, "Y": BF16, "PRE": F32, "POST": F32, "COMB": F32, "FN": BF16, "SCALE": F32,
    "BASE": F32, "W": BF16, "R_OUT": BF16, "NORM": BF16, "GRID": BF16, "CODES": "*fp8e4nv",
    "SCALES": "*u8", "PRE_OUT": F32, "POST_OUT": F32, "COMB_OUT": F32, "PART": F32, "PX": F32,
    "COUNT": "*i64", "FLAG": "*i32",
}  # fmt: skip


def absent(form: str, out: str) -> list[str]:
    """Arguments that are None in a form and output."""
    names = [] if form == "post" else ["Y", "POST", "COMB"]
    names += ["PRE"] if form == "identity_pre" else []
    names += [] if out == "fp8_grid" else ["GRID"]
    return names + ([] if out == "mxfp8" else ["CODES", "SCALES"])


def build(tokens: int, form: str, out: str) -> dict[str, Any]:
    """Registers, stack and shared memory of the policy's build for a call."""
    config = policy.choose(tokens, HIDDEN, SM_COUNT)
    kernel = persistent_kernel if config.PERSISTENT else tile_kernel
    names = kernel.arg_names
    chosen = build_options(config, HIDDEN, form, out, RELEASED.sinkhorn_iters)
    constants = {name: value for name, value in chosen.items() if name in names}
    options = {name: value for name, value in chosen.items() if name not in names}
    constants |= dict.fromkeys(absent(form, out))
    kinds = POINTERS | {"T": "i32", "groups": "i32"}
    kinds |= {n: "fp32" for n in names if n.islower() and n not in kinds}
    if config.PERSISTENT:
        for name, (shape, layout) in boxes(config, HIDDEN).items():
            kinds[name] = f"tensordesc<bf16{shape},{layout!r}>"
    signature = {n: "constexpr" if n in constants else kinds[n] for n in names}
    aligned = [["tt.divisibility", 16]]
    source = GluonASTSource(
        kernel,
        signature,
        {(names.index(name),): value for name, value in constants.items()},
        {(i,): aligned for i, name in enumerate(names) if signature[name].startswith("*")},
    )
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        said = subprocess.check_output([tool, "-res-usage", file.name], text=True)
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", said).groups()
    return {
        "tokens": tokens, "form": form, "out": out, "persistent": config.PERSISTENT,
        "threads": int(re.search(r"\.reqntid (\d+)", made.asm["ptx"])[1]),
        "registers": int(registers), "stack": int(stack), "shared": made.metadata.shared,
    }  # fmt: skip


if __name__ == "__main__":
    for words in sys.argv[1:]:
        tokens, form, out = words.split(",")
        print(json.dumps(build(int(tokens), form, out)), flush=True)
