"""Starting, watching and ending real processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from samenode.errors import UserError
from serve import ports, process
from serve.command import ServerCommand


def program(folder: Path, code: str) -> Path:
    """A ``bin`` folder whose program ``vllm`` runs ``code``."""
    folder.mkdir()
    path = folder / "vllm"
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(code)}", encoding="utf-8")
    path.chmod(0o755)
    return folder


def start(tmp_path: Path, code: str, port: int = 1, grace: float = 1.0) -> process.Server:
    command = ServerCommand(("vllm", "serve", "m"), (("GREETING", "hello"),), port, "m")
    bin_folder = program(tmp_path / "bin", code)
    return process.start(command, bin_folder, tmp_path / "server", str(tmp_path), grace)


def test_stopping_ends_children_that_ignore_the_signal(tmp_path: Path) -> None:
    server = start(
        tmp_path,
        """
        import signal, subprocess, sys, time
        child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
        subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
        print("up", flush=True)
        time.sleep(60)
        """,
    )
    deadline = time.monotonic() + 10
    while len(server.pids()) < 2 or "up" not in server.log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.3)
    family = server.pids()
    server.stop()
    assert not any(psutil.pid_exists(pid) for pid in family)


def test_orphans_of_a_killed_parent_are_found_by_their_mark_and_ended(tmp_path: Path) -> None:
    server = start(
        tmp_path,
        """
        import subprocess, sys, time
        child = [sys.executable, "-c", "import time; time.sleep(60)"]
        subprocess.Popen(child, start_new_session=True)
        time.sleep(60)
        """,
    )
    deadline = time.monotonic() + 10
    while len(server.pids()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    orphans = server.pids() - {server.process.pid}
    server.process.kill()
    server.process.wait()
    found = process.marked(str(tmp_path))
    assert {p.pid for p in found} == orphans
    process.end(found, 1.0)
    assert process.marked(str(tmp_path)) == []


def test_a_worker_that_wrote_over_its_environment_is_found_too(tmp_path: Path) -> None:
    """As vLLM's do: a process title takes the place of the environment."""
    server = start(
        tmp_path,
        """
        import os, subprocess, sys, time
        worker = "import setproctitle, time; setproctitle.setproctitle('W' * 4000); time.sleep(60)"
        subprocess.Popen([sys.executable, "-c", worker])
        time.sleep(60)
        """,
    )
    deadline = time.monotonic() + 20
    worker: psutil.Process | None = None
    while worker is None or process.MARK in worker.environ():
        assert time.monotonic() < deadline
        time.sleep(0.05)
        worker = next(iter(psutil.Process(server.process.pid).children()), None)
    server.process.kill()
    server.process.wait()
    assert worker in process.marked(str(tmp_path))
    server.stop()
    assert not worker.is_running()


def test_a_death_says_how_and_why(tmp_path: Path) -> None:
    server = start(
        tmp_path,
        """
        import os
        print("(Worker pid=7) ValueError: heads must be divisible by TP")
        print("(APIServer pid=6) RuntimeError: Engine core initialization failed. See root cause")
        os._exit(3)
        """,
    )
    with pytest.raises(process.ServerError, match="exit code 3: ValueError: heads must be divis"):
        process.wait_ready(server, 10, lambda waited: None)


def test_a_server_that_never_gets_ready_times_out(tmp_path: Path) -> None:
    server = start(tmp_path, "import time; time.sleep(60)")
    try:
        with pytest.raises(process.ServerError, match="not ready after 1 s"):
            process.wait_ready(server, 1, lambda waited: None)
    finally:
        server.stop()


def test_health_alone_is_not_ready(tmp_path: Path) -> None:
    port = ports.choose(None)
    server = start(
        tmp_path,
        f"""
        from http.server import BaseHTTPRequestHandler, HTTPServer
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200); self.end_headers()
            def do_POST(self):
                print("NotImplementedError: synthetic rejection on CPU", flush=True)
                self.send_response(500); self.end_headers()
        HTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
        """,
        port,
    )
    try:
        with pytest.raises(process.ServerError, match="failed its first completion.*synthetic"):
            process.wait_ready(server, 20, lambda waited: None)
    finally:
        server.stop()


def test_another_server_on_the_port_is_not_taken_for_ours(tmp_path: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    answer = f"""
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
HTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
"""
    foreign = subprocess.Popen([sys.executable, "-c", answer], stderr=subprocess.DEVNULL)
    server = start(tmp_path, "import time; time.sleep(60)", port)
    try:
        with pytest.raises(
            process.ServerError, match=f"port {port} was taken by pid {foreign.pid}"
        ):
            process.wait_ready(server, 20, lambda waited: None)
    finally:
        server.stop()
        foreign.kill()
        foreign.wait()


def test_a_missing_program_says_how_to_mend_it(tmp_path: Path) -> None:
    command = ServerCommand(("vllm", "serve", "m"), (), 1, "m")
    with pytest.raises(process.ServerError, match="make setup"):
        process.start(command, tmp_path / "none", tmp_path / "server", str(tmp_path), 1.0)


def test_the_environment_is_the_arms_and_not_the_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    server = start(
        tmp_path,
        """
        import os
        print(os.environ["GREETING"], os.environ.get("PYTHONPATH"), os.getcwd())
        """,
    )
    server.process.wait(10)
    assert server.log.read_text().split() == ["hello", "None", str(tmp_path / "server")]


def test_a_taken_port_names_its_owner() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} is taken by pid {os.getpid()} "):
            ports.choose(port)
        assert ports.choose(None) != port


def test_a_port_of_a_dead_process_is_free_again() -> None:
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1])"
    port = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert ports.choose(port) == port
