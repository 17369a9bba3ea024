"""Where a recipe's model comes from: a path, the hub, or a file inside a package.

A node without a hub still has a real model: a recipe may name a GGUF file that a package of the
server environment ships. vLLM does not serve GGUF, so it is converted to safetensors once.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from recipes.schema import LocalModel, Recipe
from samenode.errors import UserError

_SNAPSHOT = "0" * 40
_TOKENIZER_FILES = ("config.json", "generation_config.json", "chat_template.jinja")


@dataclass(frozen=True)
class Model:
    """A model that can be served.

    ``path`` is what vLLM is given (a folder, or a hub repository), ``tokenizer`` what the client is
    given, ``source`` where it came from: ``path``, ``hub`` or ``package``.
    """

    name: str
    path: str
    tokenizer: str
    source: str
    revision: str | None = None
    client_env: dict[str, str] = field(default_factory=dict)
    server_env: dict[str, str] = field(default_factory=dict)


def cache_folder() -> Path:
    """``SAMENODE_CACHE``, or ``samenode`` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SAMENODE_CACHE") or Path(base) / "samenode")


def resolve(
    recipe: Recipe, override: str | None, convert: Callable[[LocalModel], Path] | None
) -> Model:
    """The model to serve: ``override`` (a folder or a hub repository), else the recipe's own
    from the hub, else the recipe's fallback file, which ``convert`` turns into a model folder.
    Without ``convert`` (a dry run) a model that cannot be reached now is named all the same.

    Raises:
        UserError: there is no such model; the sentence says which ways are open.
    """
    if override:
        if Path(override).expanduser().is_dir():
            return local(Path(override).expanduser().resolve(), Path(override).name, "path")
        if re.fullmatch(r"[\w.-]+/[\w.-]+", override) and hub_has(override, None):
            return Model(override, override, override, "hub")
        raise UserError(f"no model '{override}': neither a folder here nor a repository on the hub")
    if hub_has(recipe.model, recipe.model_revision):
        return Model(recipe.model, recipe.model, recipe.model, "hub", recipe.model_revision)
    if recipe.fallback_model:
        fallback = recipe.fallback_model
        if convert is None:
            return Model(fallback.name, str(converted_folder(fallback)), fallback.name, "package")
        return local(convert(fallback), fallback.name, "package")
    if convert is None:
        return Model(recipe.model, recipe.model, recipe.model, "hub", recipe.model_revision)
    raise UserError(
        f"recipe {recipe.name}: model {recipe.model} is not in the hub cache and the hub cannot be "
        "reached; give MODEL=<folder> or connect the node"
    )


def hub_has(
    repository: str, revision: str | None, kind: Literal["model", "dataset"] = "model"
) -> bool:
    """Whether the hub, or for a model this node's hub cache, has the repository at the revision."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    cached = try_to_load_from_cache(repository, "config.json", revision=revision, repo_type=kind)
    if isinstance(cached, str):
        return True
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return False
    try:
        HfApi().repo_info(repository, revision=revision, repo_type=kind, timeout=5)
    except Exception:  # any failure means the same here: it cannot be had
        return False
    return True


def local(folder: Path, name: str, source: str) -> Model:
    """A model in a folder, and the hub-cache view of its tokenizer that aiperf needs offline."""
    if not (folder / "config.json").exists():
        raise UserError(f"{folder}: no config.json, so not a model folder; give one that has it")
    slug = (
        re.sub(r"[^\w.-]", "-", name) + "-" + hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    )
    hub = cache_folder() / "hub"
    repo = hub / f"models--local--{slug}"
    snapshot = repo / "snapshots" / _SNAPSHOT
    snapshot.mkdir(parents=True, exist_ok=True)
    (repo / "refs").mkdir(exist_ok=True)
    (repo / "refs" / "main").write_text(_SNAPSHOT, encoding="utf-8")
    wanted = {*folder.glob("tokenizer*"), *folder.glob("*token*.json"), *folder.glob("merges.txt")}
    wanted |= {folder / name for name in _TOKENIZER_FILES if (folder / name).exists()}
    for file in wanted | {*folder.glob("vocab*")}:
        link = snapshot / file.name
        link.unlink(missing_ok=True)
        link.symlink_to(file)
    return Model(
        name=name,
        path=str(folder),
        tokenizer=f"local/{slug}",
        source=source,
        client_env={"HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1"},
        server_env={"HF_HUB_OFFLINE": "1"},
    )


def converted_folder(model: LocalModel) -> Path:
    """Where a packaged model lies once it is converted."""
    return cache_folder() / "models" / f"{model.name}-{model.sha256[:12]}"


def convert_once(model: LocalModel, convert: Callable[[Path, list[str]], None]) -> Path:
    """The safetensors folder of a packaged GGUF file; on first use ``convert`` makes it.

    ``convert`` is given a script and its arguments, to be run by a Python that has the package,
    with ``converted_folder(model).parent`` writable.
    """
    folder = converted_folder(model)
    if (folder / "config.json").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    script = Path(__file__).with_name("convert_gguf.py")
    try:
        convert(script, [model.package, model.file, model.sha256, str(partial)])
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def converted(model: LocalModel, server_python: Path) -> Path:
    """The safetensors folder of a packaged GGUF file, converting it on first use (about 30 s).

    Raises:
        UserError: the package is not in the server environment, its file is another one than the
            recipe's checksum says, or the conversion fails.
    """

    def convert(script: Path, arguments: list[str]) -> None:
        if not server_python.exists():
            raise UserError(
                f"no server environment at {server_python.parent.parent}; run 'make setup'"
            )
        done = subprocess.run(
            [str(server_python), str(script), *arguments],
            capture_output=True, text=True, check=False, cwd=converted_folder(model).parent,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise UserError(f"{model.package}/{model.file} could not be converted: {last}")

    return convert_once(model, convert)
