"""Builds the emulator's C++ core with the machine's g++ and keeps the result in the user's cache.

The cache key is the hash of every source file, the compiler's version and the flags, so a changed
source or compiler is built anew and a build is never shared between machines that differ in what
they can run.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .faults import MissingToolError

SOURCE = Path(__file__).with_name("engine")
# -ffp-contract=off and no -ffast-math: results must not depend on what the compiler fuses.
FLAGS = (
    "-std=c++20 -O3 -fPIC -pthread -fno-strict-aliasing -fno-math-errno -fno-trapping-math "
    "-ffp-contract=off -Wall -Wextra -Wno-unused-parameter"
).split()
_V3 = {"avx2", "fma", "f16c", "bmi2"}


def cache_dir() -> Path:
    """`$DSV41_KERNELS_CACHE`, or `dsv41-kernels` in `$XDG_CACHE_HOME` or `~/.cache`."""
    if chosen := os.environ.get("DSV41_KERNELS_CACHE"):
        return Path(chosen)
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "dsv41-kernels"


def _machine_flags() -> list[str]:
    """A named x86-64 level rather than -march=native: the same flags give the same code."""
    if platform.machine() == "x86_64" and Path("/proc/cpuinfo").exists():
        flags = set()
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                flags = set(line.split())
                break
        if _V3 <= flags:
            return ["-march=x86-64-v3"]
    return []


def library() -> Path:
    """Path of the built core; builds it on first use (about a minute on one core).

    Raises MissingToolError if g++ is not installed or the build fails.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if not compiler:
        raise MissingToolError("g++ is not installed; run: apt-get install g++")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    flags = FLAGS + _machine_flags()
    sources = sorted(SOURCE.glob("*.cpp"))
    key = hashlib.sha256("\0".join([version, *flags]).encode())
    for path in sorted(SOURCE.iterdir()):
        if path.suffix in (".cpp", ".h"):
            key.update(path.name.encode() + b"\0" + path.read_bytes())
    target = cache_dir() / f"gfx950-{key.hexdigest()[:16]}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:

        def compile_one(source: Path) -> str:
            output = str(Path(scratch, source.stem + ".o"))
            _run([compiler, *flags, "-c", str(source), "-o", output])
            return output

        with ThreadPoolExecutor(_jobs()) as pool:
            objects = list(pool.map(compile_one, sources))
        built = Path(scratch, "core.so")
        _run([compiler, "-shared", "-pthread", "-o", str(built), *objects])
        os.replace(built, target)
    return target


def _jobs() -> int:
    return int(os.environ.get("DSV41_KERNELS_BUILD_JOBS", "0")) or len(os.sched_getaffinity(0))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise MissingToolError(
            f"building the emulator failed: {' '.join(command)}\n{done.stderr[-4000:]}"
        )
