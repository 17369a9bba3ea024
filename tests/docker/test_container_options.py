"""What containers are given, and every way in which they cannot start: no engine needed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from docker.errors import APIError

from samenode.errors import UserError
from serve import container
from serve.command import ServerCommand

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMENODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)


def command(model: str, **env: str) -> ServerCommand:
    return ServerCommand(("vllm", "serve", model, "--port", "8000"), tuple(env.items()), 8000, "m")


def mounts(options: dict[str, Any]) -> dict[str, bool]:
    """Bind mounts: path → whether read-only. Source and target are the same path."""
    assert all(m["Source"] == m["Target"] and m["Type"] == "bind" for m in options["mounts"])
    return {mount["Source"]: bool(mount.get("ReadOnly")) for mount in options["mounts"]}


def test_a_local_model_is_seen_read_only_with_what_its_links_lead_to(tmp_path: Path) -> None:
    blobs, model = tmp_path / "blobs", tmp_path / "model"
    blobs.mkdir()
    model.mkdir()
    (blobs / "b1").write_text("weights")
    (model / "model.safetensors").symlink_to(blobs / "b1")
    (model / "config.json").write_text("{}")
    (model / "alias.json").symlink_to(model / "config.json")
    folder = tmp_path / "run" / "servers" / "001"
    given = container.options(command(str(model)), "i", folder, str(tmp_path / "run"), "cpu")
    assert mounts(given) == {
        str(folder): False,
        str(tmp_path / "cache" / "container"): False,
        str(model): True,
        str(blobs): True,
    }
    assert given["working_dir"] == str(folder)
    assert given["labels"] == {container.RUN_LABEL: str(tmp_path / "run")}
    assert given["name"].startswith("samenode-run-001-")
    assert given["user"] == f"{os.getuid()}:{os.getgid()}"
    assert given["init"] and given["healthcheck"] == {"test": ["NONE"]}


def test_a_model_of_the_hub_gets_the_hubs_cache_and_the_callers_choice_of_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "2,3")
    monkeypatch.setenv("LD_PRELOAD", "/nowhere.so")
    given = container.options(
        command("org/model", HIP_FORCE="1"), "i", tmp_path / "s", str(tmp_path), "cuda"
    )
    assert mounts(given)[str(tmp_path / "hub")] is False
    environment = given["environment"]
    assert environment["HF_HOME"] == str(tmp_path / "hub")
    assert environment["HIP_VISIBLE_DEVICES"] == "2,3" and environment["HIP_FORCE"] == "1"
    assert "LD_PRELOAD" not in environment
    (request,) = given["device_requests"]
    assert request["Count"] == -1 and request["Capabilities"] == [["gpu"]]


@pytest.mark.parametrize("accelerator", ["rocm", "cuda", "cpu"])
def test_servers_share_the_network_so_their_ports_stay_on_loopback(
    tmp_path: Path, accelerator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "groups", lambda nodes: ["44", "109"])
    given = container.options(command("o/m"), "i", tmp_path / "s", str(tmp_path), accelerator)
    assert given["network_mode"] == "host" and "ports" not in given
    assert not given.get("privileged")


def test_rocm_gets_the_flags_that_its_kernels_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "groups", lambda nodes: ["44", "109"])
    given = container.accelerator_options("rocm")
    assert given["devices"] == ["/dev/kfd:/dev/kfd:rwm", "/dev/dri:/dev/dri:rwm"]
    assert given["group_add"] == ["44", "109"]
    assert given["ipc_mode"] == "host" and given["shm_size"] == "32g"
    assert given["security_opt"] == ["seccomp=unconfined"]
    assert given["cap_add"] == ["SYS_PTRACE"]
    limits = {limit["Name"]: (limit["Soft"], limit["Hard"]) for limit in given["ulimits"]}
    assert limits == {"memlock": (-1, -1), "stack": (67108864, 67108864)}


def test_groups_are_the_owners_of_the_device_nodes_by_number(tmp_path: Path) -> None:
    (tmp_path / "no-device").write_text("")
    assert container.groups((tmp_path,)) == []
    expected = {Path(node).stat().st_gid for node in ("/dev/null", "/dev/tty")}
    found = container.groups((Path("/dev/null"), Path("/dev/tty")))
    assert found == [str(number) for number in sorted(expected)]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"ExitCode": 2}, "exit code 2"),
        ({"ExitCode": 137, "OOMKilled": False}, "killed by signal 9"),
        ({"ExitCode": 143}, "killed by signal 15"),
        (
            {"ExitCode": 137, "OOMKilled": True},
            "killed by signal 9, after the kernel",
        ),
        (
            {"ExitCode": 1, "OOMKilled": True},
            "exit code 1, after the kernel killed a pro",
        ),
    ],
)
def test_endings_in_words(state: dict[str, Any], words: str) -> None:
    assert words in container.ending(state)


# ---- no engine


def refused(monkeypatch: pytest.MonkeyPatch, address: str) -> str:
    monkeypatch.setenv("DOCKER_HOST", address)
    with pytest.raises(UserError) as told:
        container.preflight("samenode:cpu", "cpu")
    assert "\n" not in str(told.value)
    return str(told.value)


def test_docker_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = refused(monkeypatch, f"unix://{tmp_path}/none.sock")
    assert said.startswith("docker is not installed here") and "RUNTIME=process" in said


def test_the_engine_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dockerd").write_text("#!/bin/sh\n")
    (tmp_path / "dockerd").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = refused(monkeypatch, f"unix://{tmp_path}/none.sock")
    assert f"no docker engine answers at {tmp_path}/none.sock" in said and "systemctl" in said
    # A socket that a dead engine left behind.
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead.sock"))
    assert "no docker engine answers" in refused(monkeypatch, f"unix://{tmp_path}/dead.sock")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["engine"], "no docker engine answers|docker is not installed"),
        (["labels", "samenode:cpu"], "no docker engine answers|docker is not installed"),
        (["preflight", "samenode:cpu", "cpu", "8000"], "no docker engine|docker is not installed"),
        (["up"], "give engine, labels IMAGE, or preflight IMAGE ACCEL PORT"),
    ],
)
def test_the_makefile_is_told_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], sentence: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(SystemExit, match=sentence) as told:
        container.main(argv)
    assert "\n" not in str(told.value)


def test_something_else_answers_on_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "other.sock"))
        other.listen()
        monkeypatch.setattr(container, "TIMEOUT_S", 1)
        said = refused(monkeypatch, f"unix://{tmp_path}/other.sock")
    assert "does not answer" in said


def test_an_engine_of_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the servers must run here" in refused(monkeypatch, "tcp://127.0.0.1:2375")


@pytest.mark.skipif(os.geteuid() != 0, reason="giving up permission needs root")
def test_no_permission_on_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("/tmp") / f"sock-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(folder / "s"))
            (folder / "s").chmod(0o600)
            sock.listen()
            os.seteuid(65534)
            try:
                said = refused(monkeypatch, f"unix://{folder}/s")
            finally:
                os.seteuid(0)
    finally:
        shutil.rmtree(folder)
    assert said.startswith("no permission on") and "group" in said


def test_device_nodes_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "DEVICES", {"rocm": ("/dev/no-kfd", "/dev/no-dri")})
    with pytest.raises(UserError, match="no /dev/no-kfd and no /dev/no-dri on this node"):
        container.preflight("samenode:rocm", "rocm")


def test_a_full_disk() -> None:
    container.require_disk(Path("/data"), container.FREE_MIB)
    with pytest.raises(UserError, match="/data, .* has 7 MiB free and containers need") as told:
        container.require_disk(Path("/data"), 7)
    assert told.value.exit_code == 1


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ('could not select device driver "" with capabilities: [[gpu]]', "NVIDIA Container Toolk"),
        ('exec: "docker-init": executable file not found in $PATH', "no docker-init"),
        ("error gathering device information: no such file or directory", "or the node a file"),
    ],
)
def test_what_the_engine_says_is_made_clear(said: str, words: str) -> None:
    error = APIError("500 Server Error", explanation=said)
    assert words in container._why(error)


# ---- the files


def compose() -> list[str]:
    """The compose program that is here."""
    if shutil.which("docker"):
        argv = ["docker", "compose", "version"]
        if subprocess.run(argv, capture_output=True, check=False).returncode == 0:
            return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    pytest.skip("neither docker compose nor docker-compose is here")


@pytest.mark.parametrize("accelerator", ["rocm", "cuda", "cpu"])
def test_compose_is_valid_for_each_profile(accelerator: str) -> None:
    done = subprocess.run(
        [*compose(), "-f", str(ROOT / "compose.yaml"), "--profile", accelerator, "config"],
        capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "variable is not set" not in done.stderr and "WARN" not in done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    server, client = services[f"server-{accelerator}"], services[f"client-{accelerator}"]
    for service in (server, client):
        assert service["network_mode"] == "host" and "ports" not in service
        assert service["init"] is True and service["user"] == "10001:10001"
        assert service["build"]["args"]["ACCEL"] == accelerator
        assert not service.get("privileged")
    assert "samenode serve" in " ".join(server["command"])
    assert server.get("ipc") == (None if accelerator == "cpu" else "host")
    if accelerator == "rocm":
        assert "/dev/kfd" in str(server["devices"]) and "/dev/dri" in str(server["devices"])
        assert server["group_add"] == ["video", "render"]
    else:
        own = container.accelerator_options(accelerator)
        assert server["cap_add"] == own["cap_add"]
        assert server["security_opt"] == own["security_opt"]
    if accelerator == "cuda":
        (device,) = server["deploy"]["resources"]["reservations"]["devices"]
        assert device["driver"] == "nvidia" and device["capabilities"] == ["gpu"]


def test_the_dockerfile_needs_no_buildkit() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for only_buildkit in ("--mount=", "--link", "--chmod", "<<", "--security", "--exclude="):
        assert only_buildkit not in text


def test_no_secret_and_no_run_goes_to_the_engine() -> None:
    lines = (ROOT / ".dockerignore").read_text().split("\n")
    assert "*" in lines, "nothing is sent unless it is named"
    assert "results/runs" in lines and "!.git" not in lines and "!.env" not in lines
