"""What a node is: the facts of ``node.json``, and whether two of them are one node.

What cannot be read is recorded as "unknown", and an unknown matches nothing: a verdict about one
node must not rest on a guess.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from samenode.errors import UserError
from serve.gpu import GpuToolError, open_tool

SCHEMA = 1
UNKNOWN = "unknown"
ROOT = Path(__file__).resolve().parent.parent

ENVIRONMENT = (
    "AITER_", "AIPERF_", "AMD_", "CUBLAS_", "CUDA_", "DSV41_", "FLASHINFER_", "FLYDSL_", "GLOO_",
    "GOMP_", "GPU_", "HF_", "HIP_", "HSA_", "KMP_", "LD_LIBRARY_PATH", "LD_PRELOAD", "MALLOC_",
    "MIOPEN_", "MKL_", "MORI_", "NCCL_", "NVIDIA_", "NVTE_", "OMP_", "PYTHONHASHSEED",
    "PYTHONOPTIMIZE", "PYTORCH_", "RCCL_", "ROCBLAS_", "ROCM_", "ROCR_", "SAMENODE_",
    "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "TENSILE_", "TOKENIZERS_", "TORCH", "TRANSFORMERS_",
    "TRITON_", "UCX_", "VLLM_",
)  # fmt: skip
"""Beginnings of the names of environment variables that change how a server or a client runs."""

CLIENTS = ("aiperf", "lm-eval")
"""Packages of the client environment that measure."""

_SECRET_NAME = re.compile(
    r"TOKEN(?!IZER)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|KEY|PRIVATE"
)
_SECRET_VALUE = re.compile(
    r"\b(hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|AKIA)[\w-]{8,}"  # services' own forms
    r"|\beyJ[\w-]{8,}\.[\w-]+\."  # JSON web tokens
    r"|://[^/\s@]+@"  # user:password@host
)

PACKAGES_SCRIPT = """
import importlib.metadata as m, json, sys
found = {}
for d in m.distributions():
    name = d.metadata["Name"]
    if not name or name.lower().replace("_", "-") in found:
        continue
    version = d.version or "unknown"
    try:
        origin = json.loads(d.read_text("direct_url.json") or "{}")
    except ValueError:
        origin = {}
    commit = origin.get("vcs_info", {}).get("commit_id")
    found[name.lower().replace("_", "-")] = version + (" @ " + commit if commit else "")
print(json.dumps({"python": sys.version.split()[0], "packages": found}))
"""
"""Prints, in any Python, its version and its packages with theirs as one line of JSON."""


def collect(server_python: Path | None) -> dict[str, Any]:
    """The facts of this node, ready for ``node.json``. Takes a second or two.

    Args:
        server_python: the interpreter of the server environment, asked for its packages in a
            process of its own; None when no server environment is in use.

    Returns:
        ``schema``, ``collected`` (UTC, ISO 8601), ``accelerator`` (``cuda``, ``rocm`` or ``cpu``),
        ``host``, ``cpu``, ``memory_mib``, ``gpus`` (a list; None when there are GPUs that cannot be
        read, and then ``gpu_error`` says why), ``drivers`` (name → version), ``packages`` and
        ``python`` (for ``client`` and ``server``; None: not asked, "unknown": did not answer),
        ``git`` (``revision``, ``dirty``), ``environment`` (without secrets) and ``image``.
    """
    gpus, drivers, error = _gpus()
    vendors = {gpu["vendor"] for gpu in gpus or ()}
    client = environment_of(Path(sys.executable))
    server = environment_of(server_python) if server_python else {"packages": None, "python": None}
    return {
        "schema": SCHEMA,
        "collected": datetime.now(UTC).isoformat(timespec="seconds"),
        "accelerator": "cuda" if "nvidia" in vendors else "rocm" if "amd" in vendors else "cpu",
        "host": {
            "name": platform.node(),
            "os": os_name(),
            "kernel": platform.release(),
            "machine": platform.machine(),
        },
        "cpu": cpu(),
        "memory_mib": psutil.virtual_memory().total // 2**20,
        "gpus": gpus,
        "gpu_error": error,
        "drivers": drivers,
        "python": {"client": client["python"], "server": server["python"]},
        "packages": {"client": client["packages"], "server": server["packages"]},
        "git": git(ROOT),
        "environment": environment(os.environ),
        "image": {"digest": None},
    }


# ---- the facts


def _gpus() -> tuple[list[dict[str, Any]] | None, dict[str, str], str | None]:
    """The GPUs, their drivers' versions, and why they cannot be read."""
    try:
        tool = open_tool()
        if tool is None:
            return [], {}, None
        try:
            return [asdict(gpu) for gpu in tool.gpus()], tool.drivers(), None
        finally:
            tool.close()
    except GpuToolError as error:
        return None, {}, str(error)


def cpu(root: Path = Path("/")) -> dict[str, Any]:
    """The CPU: ``model``, ``sockets``, ``cores`` and ``threads`` (those this process may use, and
    of those the physical ones), ``quota`` (CPUs' worth of time that a cgroup allows; None without
    a limit), ``governor``, ``boost``, ``virtual`` (under a hypervisor), ``numa`` (per node its
    CPUs and memory). ``root`` is where /proc and /sys lie."""
    info = _text(root / "proc/cpuinfo") or ""
    model = re.search(r"^(?:model name|Processor|cpu model)\s*:\s*(.+)$", info, re.M)
    cpus = root / "sys/devices/system/cpu"
    usable = sorted(os.sched_getaffinity(0))
    topology = [cpus / f"cpu{number}/topology" for number in usable]
    sockets = {_text(folder / "physical_package_id") for folder in topology}
    cores = {
        (_text(folder / "physical_package_id"), _text(folder / "core_id")) for folder in topology
    }
    governors = {_text(path) or UNKNOWN for path in cpus.glob("cpu[0-9]*/cpufreq/scaling_governor")}
    return {
        "model": model[1].strip() if model else platform.processor() or UNKNOWN,
        "sockets": len(sockets),
        "cores": len(cores) if (None, None) not in cores else len(usable),
        "threads": len(usable),
        "quota": _quota(root),
        "governor": ", ".join(sorted(governors)) or UNKNOWN,
        "boost": _boost(cpus),
        "virtual": bool(re.search(r"^flags\s*:.*\bhypervisor\b", info, re.M)),
        "numa": [
            {
                "node": int(folder.name.removeprefix("node")),
                "cpus": _text(folder / "cpulist") or UNKNOWN,
                "memory_mib": _numa_memory_mib(folder),
            }
            for folder in sorted(
                (root / "sys/devices/system/node").glob("node[0-9]*"),
                key=lambda folder: int(folder.name.removeprefix("node")),
            )
        ],
    }


def _quota(root: Path) -> float | None:
    quota, _, period = (_text(root / "sys/fs/cgroup/cpu.max") or "max 0").partition(" ")
    return None if quota == "max" else int(quota) / int(period)


def _boost(cpus: Path) -> bool | str:
    if (no_turbo := _text(cpus / "intel_pstate/no_turbo")) is not None:
        return no_turbo == "0"
    boost = _text(cpus / "cpufreq/boost")
    return UNKNOWN if boost is None else boost == "1"


def _numa_memory_mib(folder: Path) -> int | None:
    total = re.search(r"MemTotal:\s*(\d+) kB", _text(folder / "meminfo") or "")
    return int(total[1]) // 1024 if total else None


def os_name() -> str:
    """The distribution and its version."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", UNKNOWN)
    except OSError:
        return platform.system() or UNKNOWN


def environment_of(python: Path) -> dict[str, Any]:
    """``python`` (the version) and ``packages`` (name → version, with the commit of those that were
    installed from a repository) of an interpreter's environment; "unknown" if it does not answer.

    Names are lower-case with hyphens.
    """
    # A server is started without PYTHONPATH, and its folder must not add packages either.
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    try:
        done = subprocess.run(
            [str(python), "-c", PACKAGES_SCRIPT],
            capture_output=True, text=True, check=True, timeout=60, cwd="/", env=env,
        )  # fmt: skip
        answer = json.loads(done.stdout.splitlines()[-1])
        return {"python": answer["python"], "packages": dict(sorted(answer["packages"].items()))}
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, KeyError):
        return {"python": UNKNOWN, "packages": UNKNOWN}


def git(root: Path) -> dict[str, Any]:
    """``revision`` of the checkout and whether it is ``dirty``; "unknown" outside a checkout."""

    def ask(*words: str) -> str:
        return subprocess.run(
            ["git", "--no-optional-locks", "-C", str(root), *words],
            capture_output=True, text=True, check=True, timeout=30,
        ).stdout.strip()  # fmt: skip

    try:
        if Path(ask("rev-parse", "--show-toplevel")) != root.resolve():
            return {"revision": UNKNOWN, "dirty": UNKNOWN}
        return {"revision": ask("rev-parse", "HEAD"), "dirty": bool(ask("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return {"revision": UNKNOWN, "dirty": UNKNOWN}


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Those variables that matter (`ENVIRONMENT`), without any that looks like a secret."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if name.startswith(ENVIRONMENT) and not looks_secret(name, value)
    }


def looks_secret(name: str, value: str) -> bool:
    """Whether the name says so (TOKEN, KEY, SECRET, PASSWORD, …) or the value has such a form.

    A number of TOKENS is a count (VLLM_…_MAX_TOKENS_…), not a secret.
    """
    count = "TOKENS" in name.upper() and value.isdecimal()
    return bool(_SECRET_VALUE.search(value) or (_SECRET_NAME.search(name.upper()) and not count))


# ---- comparing nodes


def identity(node: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a node this node: host name, CPU, the GPUs' uuids, the drivers' versions."""
    gpus = node.get("gpus")
    return {
        "host": node["host"]["name"],
        "cpu": {"model": node["cpu"]["model"], "threads": node["cpu"]["threads"]},
        "gpus": UNKNOWN if gpus is None else sorted(gpu["uuid"] for gpu in gpus),
        "drivers": dict(node["drivers"]),
    }


def fingerprint(node: Mapping[str, Any]) -> str:
    """A sha256 that two records of one node share and two nodes do not.

    A record whose GPUs could not be read shares it with no other record.
    """
    known: dict[str, Any] = identity(node)
    if known["gpus"] == UNKNOWN:
        known["collected"] = node["collected"]
    text = json.dumps(known, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def diff(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The facts that differ: dotted path → (a's, b's); None where one has no such fact.

    When the facts were collected is left out.
    """
    flat_a, flat_b = dict(_flat(a)), dict(_flat(b))
    return {
        path: (flat_a.get(path), flat_b.get(path))
        for path in sorted((flat_a.keys() | flat_b.keys()) - {"collected"})
        if path not in flat_a or path not in flat_b or flat_a[path] != flat_b[path]
    }


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    items: Iterator[tuple[Any, Any]] | None = None
    if isinstance(value, Mapping) and value:
        items = iter(value.items())
    elif isinstance(value, list) and value:
        items = enumerate(value)
    if items is None:
        yield path, value
        return
    for key, inner in items:
        yield from _flat(inner, f"{path}.{key}" if path else str(key))


def require_same(path: Path, node: Mapping[str, Any]) -> None:
    """Refuse to go on with a campaign on a node that is not the one it began on.

    The node's identity, the packages of the server environment and the measuring clients must be
    as ``path`` (the campaign's node.json) has them.

    Raises:
        UserError: they are not, or the file cannot be read; the sentence names what differs.
    """
    began = read(path)
    cannot = f"whether this is the node of {path} cannot be told"
    for record in (began, node):
        if record["gpus"] is None:
            raise UserError(f"{cannot}: {record['gpu_error']}")
        if UNKNOWN in record["packages"].values():
            raise UserError(f"{cannot}: an environment's packages cannot be read; run 'make setup'")
    changed = diff(_decisive(began), _decisive(node))
    if changed:
        named = ", ".join(
            f"{name} was {_short(old)} and is {_short(new)}"
            for name, (old, new) in list(changed.items())[:3]
        )
        more = f", and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise UserError(
            f"this is not the node of {path}: {named}{more}; go on where it began, or start a new "
            "campaign"
        )


def _decisive(node: Mapping[str, Any]) -> dict[str, Any]:
    client, server = node["packages"]["client"], node["packages"]["server"]
    measuring = {name: client.get(name) for name in CLIENTS} if isinstance(client, dict) else client
    return {**identity(node), "server packages": server, "client packages": measuring}


def _short(value: Any) -> str:
    return "missing" if value is None else str(value)


def read(path: Path) -> dict[str, Any]:
    """A node.json.

    Raises:
        UserError: it is missing, broken, or of a newer version of samenode.
    """
    try:
        node = json.loads(path.read_text(encoding="utf-8"))
        schema = node["schema"]
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: not a node.json; it is broken or another file") from error
    if schema > SCHEMA:
        raise UserError(
            f"{path}: schema {schema}, and this samenode reads up to {SCHEMA}; update it"
        )
    return dict(node)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
