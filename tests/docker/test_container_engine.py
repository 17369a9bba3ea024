"""Servers' lives and deaths in containers of a real engine, with a small server in vLLM's place."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from docker_engine import Engine

from samenode.errors import UserError
from serve import container, ports, process
from serve.command import ServerCommand

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        body = b'{"usage": {"completion_tokens": 3}}'
        self.send_response(200); self.send_header("Content-Length", str(len(body)))
        self.end_headers(); self.wfile.write(body)
print("listening", flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Bench:
    """Starts containers of one run and counts what is left of them."""

    def __init__(self, folder: Path, image: str) -> None:
        self.home = str(folder)
        self.run = str(folder / "run")
        self.folder = folder / "run" / "servers" / "001"
        self.image = image

    def start(self, code: str = SERVER, port: int | None = None) -> container.ContainerServer:
        port = port or free_port()
        # In the model's place, so that it is seen in the container: a folder that Python can run.
        model = self.folder.parent.parent.parent / "model"
        model.mkdir(parents=True, exist_ok=True)
        (model / "__main__.py").write_text(code)
        argv = ("python3", "-u", str(model), str(port))
        command = ServerCommand(argv, (("ARM", "on"),), port, "m")
        return container.start(command, self.image, self.folder, self.run, 3.0, "cpu")

    def left(self) -> list[Any]:
        found = container.engine().containers.list(all=True, filters={"label": container.RUN_LABEL})
        return [c for c in found if c.labels[container.RUN_LABEL].startswith(self.home)]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def bench(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("SAMENODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    found = Bench(tmp_path, base)
    yield found
    container.end_orphans(found.run, 1)


def wait_dead(server: container.ContainerServer) -> str:
    deadline = time.monotonic() + 60
    while (death := server.death()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return death


def test_a_server_is_ready_watched_and_ended(bench: Bench) -> None:
    server = bench.start()
    process.wait_ready(server, 60, lambda waited: None)
    assert server.ready_s and server.death() is None
    assert "listening" in server.log.read_text()
    # Its processes are seen on this node, and one of them holds the port, on loopback alone.
    listening = [
        c for c in psutil.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.laddr.port == server.command.port
    ]  # fmt: skip
    assert [c.laddr.ip for c in listening] == ["127.0.0.1"]
    assert listening[0].pid in server.pids()
    family = server.pids()
    server.stop()
    assert not any(psutil.pid_exists(pid) for pid in family)
    assert ports.is_free(server.command.port)
    assert bench.left() == []
    server.stop()  # ending twice is no error


def test_the_container_sees_the_arm_its_folder_and_the_caller(bench: Bench) -> None:
    code = "import os; print(os.environ['ARM'], os.getcwd(), os.getuid(), os.environ['HOME'])"
    server = bench.start(code)
    assert "exit code 0" in wait_dead(server)
    arm, folder, uid, home = server.log.read_text().split()
    assert (arm, folder) == ("on", str(bench.folder))
    assert int(uid) == Path(server.log).stat().st_uid and home.endswith("cache/container")
    server.stop()


def test_a_server_that_ignores_the_signal_is_killed_after_its_grace(bench: Bench) -> None:
    server = bench.start(
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); "
        "time.sleep(600)"
    )
    while "up" not in server.log.read_text():
        time.sleep(0.1)
    family = server.pids()
    began = time.monotonic()
    server.stop()
    assert 3 <= time.monotonic() - began < 30
    assert not any(psutil.pid_exists(pid) for pid in family)


def test_a_failing_server_says_how_and_why(bench: Bench) -> None:
    server = bench.start("raise ValueError('heads must be divisible by TP')")
    with pytest.raises(process.ServerError, match="exit code 1: ValueError: heads must be divis"):
        process.wait_ready(server, 60, lambda waited: None)
    server.stop()


def test_a_killed_container_is_told_as_killed(bench: Bench) -> None:
    server = bench.start()
    process.wait_ready(server, 60, lambda waited: None)
    server.container.kill()
    assert wait_dead(server).startswith("killed by signal 9")
    server.stop()
    assert bench.left() == []


def test_a_container_removed_by_hand_is_told_as_removed(bench: Bench) -> None:
    server = bench.start()
    server.container.remove(force=True)
    assert "its container was removed" in wait_dead(server)
    server.stop()


def test_a_container_out_of_memory_is_told_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = container.options
    limited = {"mem_limit": "48m", "memswap_limit": "48m"}
    monkeypatch.setattr(container, "options", lambda *args: given(*args) | limited)
    # As in vLLM: the engine's process is killed, and the server that notices ends a moment later.
    server = bench.start(
        """
import subprocess, sys, time
greedy = "x = [bytearray(1 << 20) for _ in range(500)]"
ended = subprocess.run([sys.executable, "-c", greedy])
time.sleep(3)
raise SystemExit(f"RuntimeError: the engine ended with {ended.returncode}")
"""
    )
    death = wait_dead(server)
    assert death.startswith("exit code 1, after the kernel killed a process of it for lack of mem")
    assert death.endswith("RuntimeError: the engine ended with -9")
    server.stop()


def test_orphans_are_found_by_their_label_and_ended(bench: Bench, tmp_path: Path) -> None:
    server = bench.start()
    process.wait_ready(server, 60, lambda waited: None)
    pids = server.pids()
    other = Bench(tmp_path / "other", bench.image)
    spared = other.start()
    process.wait_ready(spared, 60, lambda waited: None)
    # The same folder's next server ends what an earlier campaign left, whose name it would clash.
    again = bench.start()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert container.end_orphans(bench.run, 1) == 1
    assert again.death() and spared.death() is None
    assert container.end_orphans(other.run, 1) == 1
    assert bench.left() == []


def test_a_taken_port_ends_the_start_with_its_owner(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is taken by pid"):
            ports.choose(port)
        server = bench.start(port=port)
        assert "Address already in use" in wait_dead(server)
        server.stop()


def test_images_missing_mistaken_and_exchanged(bench: Bench, base: str) -> None:
    with pytest.raises(UserError, match="no image no-such:image .* 'make image'"):
        container.preflight("no-such:image", "cpu")
    client = container.engine()
    digest = container.preflight(base, "cpu")
    assert digest.startswith("sha256:") and digest == container.image_digest(base)
    tag = "samenode-test:exchanged"
    client.images.get(base).tag(tag)
    try:
        container.require_same_image(tag, digest)
        with (bench.folder.parent.parent.parent / "Dockerfile").open("w+b") as file:
            file.write(f"FROM {base}\nLABEL {container.ACCEL_LABEL}=rocm\n".encode())
            file.seek(0)
            client.images.build(fileobj=file, tag=tag, rm=True)
        with pytest.raises(UserError, match=f"image {tag} was {digest[:19]} when the campaign"):
            container.require_same_image(tag, digest)
        with pytest.raises(UserError, match="is for rocm and the recipe for cpu"):
            container.preflight(tag, "cpu")
    finally:
        client.images.remove(tag, force=True)


def test_the_facts_of_an_image_stand_beside_the_nodes(bench: Bench, base: str) -> None:
    node = {"python": {"client": "3"}, "packages": {"client": {}}, "image": {"digest": None}}
    facts = container.add_image(node, base)
    assert facts["image"]["digest"] == container.image_digest(base)
    assert facts["image"]["name"] == base
    assert facts["packages"]["client"] == {} and "pip" in facts["packages"]["server"]
    assert facts["python"]["server"].startswith("3.")


def test_a_program_that_the_image_lacks(bench: Bench) -> None:
    command = ServerCommand(("vllm", "serve", "m"), (), 1, "m")
    server = container.start(command, bench.image, bench.folder, bench.run, 1.0, "cpu")
    assert "exit code 127" in wait_dead(server) and "not found" in wait_dead(server)
    server.stop()


def test_an_engine_that_ends_midway(bench: Bench, engine: Engine) -> None:
    server = bench.start()
    process.wait_ready(server, 60, lambda waited: None)
    engine.stop()
    try:
        assert "the docker engine does not answer" in wait_dead(server)
        with pytest.raises(process.ServerError, match="resuming the campaign ends the container"):
            server.stop()
        with pytest.raises(UserError, match="no docker engine answers"):
            bench.start()
    finally:
        engine.start()
    with httpx.Client() as http, pytest.raises(httpx.HTTPError):
        http.get(f"{server.command.url}/health")
    assert container.end_orphans(bench.run, 1) == 1
    assert bench.left() == []
