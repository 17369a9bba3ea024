"""A docker engine of the tests' own, a base made here, and the CPU image built onto it.

Nothing is pulled. The engine has its socket and data in a temporary folder and is stopped at the
end. SAMENODE_TEST_ENGINE=unix:///… uses a running engine instead (and keeps the images it built).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASE = "samenode-test:base"
IMAGE = "samenode-test:cpu"
DISK_GB = 15
"""What the base, the image and its stages take while they are built: about 11 GB, and some room."""


class Engine:
    """A dockerd that can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "docker.sock"
        self.bridge = f"sntest{os.getpid()}"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        # A bridge of its own, taken away with it, and no rules of a firewall. Without a bridge the
        # engine would delete docker0, which may be that of this machine's own engine.
        if not Path("/sys/class/net", self.bridge).exists():
            run("ip", "link", "add", self.bridge, "type", "bridge")
        argv = [
            "dockerd", "--host", self.address, "--data-root", str(self.folder / "data"),
            "--exec-root", str(self.folder / "exec"), "--pidfile", str(self.folder / "pid"),
            "--bridge", self.bridge, "--iptables=false", "--ip6tables=false", "--ip-forward=false",
        ]  # fmt: skip
        with self.log.open("ab") as log:
            begin = log.tell()
            self.process = subprocess.Popen(
                argv, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        deadline = time.monotonic() + 60
        while b"API listen on" not in self.log.read_bytes()[begin:]:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                last = (self.log.read_text().strip().splitlines() or ["no output"])[-1]
                raise RuntimeError(f"dockerd does not start here: {last}")
            time.sleep(0.2)

    @property
    def log(self) -> Path:
        return self.folder / "dockerd.log"

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def remove(self) -> None:
        """End what still runs in it, stop the engine and give its disk back."""
        if self.process and self.process.poll() is None:
            left = run("docker", "--host", self.address, "ps", "--all", "--quiet").split()
            if left:
                run("docker", "--host", self.address, "rm", "--force", *left)
        self.stop()
        subprocess.run(["ip", "link", "delete", self.bridge], check=False, capture_output=True)
        for mount in self.mounts():
            subprocess.run(["umount", "-l", mount], check=False)
        # Some 200,000 files, for which shutil takes more than a minute.
        run("rm", "-rf", "--one-file-system", self.folder)

    def mounts(self) -> list[str]:
        """What is mounted in the engine's folder, innermost first."""
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
        found = [line.split()[1] for line in lines]
        return [path for path in reversed(found) if path.startswith(f"{self.folder}/")]


class ForeignEngine(Engine):
    """An engine that someone else runs and that is left running."""

    def __init__(self, address: str) -> None:
        super().__init__(Path(tempfile.mkdtemp()))
        self.socket = Path(address.removeprefix("unix://"))

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pytest.skip("the engine of SAMENODE_TEST_ENGINE is not the tests' to stop")

    def remove(self) -> None:
        shutil.rmtree(self.folder)


def run(*argv: str | Path, **more: object) -> str:
    """A command whose failure shows the end of its output."""
    done = subprocess.run(
        [*map(str, argv)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False, **more,  # type: ignore[call-overload]
    )  # fmt: skip
    assert done.returncode == 0, f"{argv[0]} failed:\n{done.stdout[-3000:]}"
    return str(done.stdout)


def has_image(name: str) -> bool:
    return bool(run("docker", "images", "-q", name).strip())


def builder() -> tuple[str, str]:
    """A docker command line and its DOCKER_BUILDKIT: with BuildKit, which is faster, if there is
    one that can."""
    for program in filter(None, (shutil.which("docker"), shutil.which("docker", path="/usr/bin"))):
        own = int(run(program, "version", "--format", "{{.Client.Version}}").split(".")[0]) < 23
        plugin = subprocess.run([program, "buildx", "version"], capture_output=True, check=False)
        if own or plugin.returncode == 0:
            return program, "1"
    return "docker", "0"


def build(base: str, accel: str, tag: str, *more: str) -> None:
    """Build the Dockerfile of the checkout, with the authorities and wheels that pip is told of
    here handed in as a site would (.image/)."""
    program, buildkit = builder()
    with tempfile.TemporaryDirectory(prefix="context-") as folder:
        context = Path(folder)
        copied = "LICENSE README.md pyproject.toml Dockerfile .dockerignore requirements samenode "
        for name in (copied + "recipes serve evals results kernels").split():
            source = ROOT / name
            if source.is_dir():
                ignore = shutil.ignore_patterns("__pycache__", "runs", "*.egg-info", ".*", "build")
                shutil.copytree(source, context / name, ignore=ignore)
            elif source.exists():
                shutil.copy(source, context / name)
        (context / ".image" / "wheels").mkdir(parents=True)
        if authority := os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE"):
            shutil.copy(authority, context / ".image" / "ca.crt")
        for place in os.environ.get("PIP_FIND_LINKS", "").split():
            for wheel in Path(place).glob("torch-*.whl"):
                shutil.copy(wheel, context / ".image" / "wheels")
        run(
            program, "build", "--network", "host", "--build-arg", f"ACCEL={accel}",
            "--build-arg", f"BASE_IMAGE={base}", "--build-arg", "REVISION=test", "-t", tag, *more,
            context, env={**os.environ, "DOCKER_BUILDKIT": buildkit},
        )  # fmt: skip
