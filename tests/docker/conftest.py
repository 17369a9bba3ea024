"""A docker engine, a base made here, and the CPU image built onto it, once a session."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker_engine import BASE, DISK_GB, IMAGE, Engine, ForeignEngine, build, has_image, run


def need(*argv: str) -> None:
    """Run a command that this machine may not allow; then there is nothing to test on."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        pytest.skip(f"{argv[0]} fails here: {said[-1]}")


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A running engine, to which DOCKER_HOST points while the tests run."""
    if address := os.environ.get("SAMENODE_TEST_ENGINE"):
        found: Engine = ForeignEngine(address)
    else:
        if os.geteuid() != 0:
            pytest.skip("starting a docker engine needs root")
        if missing := [name for name in ("dockerd", "docker", "ip") if not shutil.which(name)]:
            pytest.skip(f"no {' and no '.join(missing)} here (Debian: docker.io, iproute2)")
        if shutil.disk_usage("/tmp").free < DISK_GB * 10**9:
            pytest.skip(f"a docker engine and the image take {DISK_GB} GB of /tmp")
        # A short path: the engine's sockets lie in it, and a socket's path is limited.
        found = Engine(Path(tempfile.mkdtemp(prefix="docker-", dir="/tmp")))
        try:
            found.start()
        except (RuntimeError, AssertionError) as error:
            found.remove()
            pytest.skip(str(error))
    before = os.environ.get("DOCKER_HOST")
    os.environ["DOCKER_HOST"] = found.address
    yield found
    os.environ.pop("DOCKER_HOST")
    if before is not None:
        os.environ["DOCKER_HOST"] = before
    found.remove()


@pytest.fixture(scope="session")
def base(engine: Engine) -> str:
    """A Debian with Python in place of the image that the CPU build would pull."""
    if not has_image(BASE):
        if not shutil.which("debootstrap"):
            pytest.skip("no debootstrap here to make a base image")
        folder = Path(tempfile.mkdtemp(prefix="base-", dir=engine.folder))
        packages = "--include=ca-certificates,python3,python3-venv,python3-pip"
        need("debootstrap", "--variant=minbase", packages, "bookworm", str(folder / "root"))
        for mount in ("proc", "sys"):
            subprocess.run(["umount", "-l", folder / "root" / mount], check=False, stderr=-3)
        run("tar", "-C", folder / "root", "--exclude=./dev/*", "-cf", folder / "base.tar", ".")
        run("docker", "import", folder / "base.tar", BASE)
        shutil.rmtree(folder)
    need("docker", "run", "--rm", "--network", "none", BASE, "true")
    return BASE


@pytest.fixture(scope="session")
def image(base: str) -> str:
    """The CPU image, really built."""
    if not has_image(IMAGE):
        build(base, "cpu", IMAGE)
    return IMAGE
