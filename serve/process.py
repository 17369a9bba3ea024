"""A server's life as a process: start, readiness, watching, end, and the end of its orphans.

vLLM is a family of processes. Every one of them inherits an environment variable that names the
campaign (``SAMENODE_RUN``) and a log inside its folder, so that what a killed campaign left behind
can be found and ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx
import psutil

from samenode.errors import UserError
from serve import ports
from serve.command import ServerCommand

MARK = "SAMENODE_RUN"


class ServerError(UserError):
    """The server did not come up, or died."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=1)


def tree(pid: int) -> list[psutil.Process]:
    """A process and all its descendants, as they are now."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def marked(run: str) -> list[psutil.Process]:
    """This machine's live processes that campaign folder ``run`` started.

    They carry its mark in the environment, or, since vLLM's workers write their title over their
    environment, have their output in its folder.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            ours = process.environ().get(MARK) == run
            output = Path(f"/proc/{process.pid}/fd/1").readlink()
            if process.pid != os.getpid() and (ours or output.is_relative_to(run)):
                found.append(process)
    return found


def end(processes: Iterable[psutil.Process], grace_s: float) -> None:
    """SIGTERM, up to ``grace_s`` seconds of patience, then SIGKILL for those still there."""
    alive = list(processes)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(alive, timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=10)


def complaint(log: Path) -> str:
    """The line of a server log that best says why it ended, or its last line."""
    try:
        with log.open("rb") as handle:
            handle.seek(max(0, log.stat().st_size - 65536))
            lines = handle.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return "it left no log"
    lines = [re.sub(r"^\(\w+ pid=\d+\)\s*", "", line).strip() for line in lines]
    errors = [line for line in lines if re.match(r"^[\w.]*(Error|Exception): ", line)]
    # vLLM's last error only says that an earlier one, in another process, was fatal.
    errors = [e for e in errors if "Engine core initialization failed" not in e] or errors
    loud = [line for line in lines if not re.match(r"(INFO|WARNING|DEBUG)\b", line)]
    told = errors or [line for line in loud if re.search(r"error\b", line, re.I)]
    return ((told or [line for line in lines if line] or ["it wrote nothing"])[-1])[:300]


class Running(Protocol):
    """A started server, as a process or in a container. ``log`` holds all it writes; ``launched``
    is a Unix time in seconds, ``ready_s`` the seconds from there to readiness."""

    command: ServerCommand
    log: Path
    launched: float
    ready_s: float | None

    def death(self) -> str | None:
        """None while the server lives, else how it ended."""

    def pids(self) -> set[int]:
        """The process ids of the server's whole family."""

    def stop(self) -> None:
        """End the server and everything it started, and wait until all of it is gone."""


@dataclass
class Server:
    """A started server. ``log`` holds all it writes; ``launched`` is a Unix time in seconds."""

    command: ServerCommand
    process: subprocess.Popen[bytes]
    log: Path
    run: str
    launched: float
    stop_grace_s: float
    ready_s: float | None = None

    def death(self) -> str | None:
        """None while the server lives, else how it ended."""
        code = self.process.poll()
        if code is None:
            return None
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return f"{how}: {complaint(self.log)}"

    def pids(self) -> set[int]:
        """The process ids of the server's whole family."""
        return {process.pid for process in tree(self.process.pid)}

    def stop(self) -> None:
        """End the server and everything it started, and wait until all of it is gone."""
        family = {p.pid: p for p in (*tree(self.process.pid), *marked(self.run))}
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        deadline = time.monotonic() + self.stop_grace_s
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(self.stop_grace_s)
        left = [p for p in family.values() if p.is_running()]
        _, left = psutil.wait_procs(left, timeout=max(0.0, deadline - time.monotonic()))
        end(left, 1.0)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)


def start(
    command: ServerCommand, bin_folder: Path, folder: Path, run: str, stop_grace_s: float
) -> Server:
    """Start a server with ``folder`` as its working directory and the place of its log.

    The working directory is never the repository: a folder called ``kernels`` on the import path
    would hide the package of that name.

    Raises:
        ServerError: the server environment has no such program.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    program = bin_folder / command.argv[0]
    env = {**os.environ, **dict(command.env), MARK: run}
    env["PATH"] = f"{bin_folder}{os.pathsep}{env.get('PATH', '')}"
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        env.pop(name, None)
    with log.open("ab") as handle:
        try:
            process = subprocess.Popen(
                [str(program), *command.argv[1:]],
                cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=handle,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ServerError(
                f"cannot start {program}: {error.strerror}; run 'make setup' or 'samenode doctor'"
            ) from error
    return Server(command, process, log, run, time.time(), stop_grace_s)


def _require_own(server: Running) -> None:
    """Another server can take the port between its choice and vLLM's binding, seconds later."""
    port = server.command.port
    pid = ports.listener(port)
    if pid is not None and pid not in server.pids():
        raise ServerError(
            f"port {port} was taken by {ports.owner(port)} while the server was starting; stop it "
            "or give another PORT"
        )


def wait_ready(server: Running, timeout_s: float, tick: Callable[[float], None]) -> None:
    """Wait until the server answers ``/health`` and one real chat completion.

    ``/health`` alone is not enough: a server can be healthy and fail its first request. ``tick``
    is called about once a second with the seconds waited so far; what it raises goes through.

    Raises:
        ServerError: the server died, refused the completion, or took more than ``timeout_s``.
    """
    began = time.monotonic()
    with httpx.Client(base_url=server.command.url, timeout=5) as http:
        while True:
            waited = time.monotonic() - began
            if death := server.death():
                raise ServerError(f"the server died while starting ({death}); see {server.log}")
            if waited > timeout_s:
                raise ServerError(
                    f"the server was not ready after {timeout_s:.0f} s; see {server.log}"
                )
            with contextlib.suppress(httpx.HTTPError):
                if http.get("/health").status_code == 200:
                    _require_own(server)
                    break
            tick(waited)
            time.sleep(1)
        body = {
            "model": server.command.model,
            "messages": [{"role": "user", "content": "Count from one to five."}],
            "max_tokens": 8,
            "temperature": 0,
        }
        try:
            timeout = max(30.0, timeout_s - waited)
            answer = http.post("/v1/chat/completions", json=body, timeout=timeout)
            answer.raise_for_status()
            if not answer.json()["usage"]["completion_tokens"]:
                raise ServerError(f"the server's first completion was empty; see {server.log}")
        except (httpx.HTTPError, KeyError, ValueError) as error:
            time.sleep(1)  # a failing engine takes a moment to write why
            what = str(error).split(" for url")[0]
            reason = server.death() or complaint(server.log)
            raise ServerError(
                f"the server is healthy but failed its first completion ({what}): {reason}; "
                f"see {server.log}"
            ) from error
    server.ready_s = time.time() - server.launched
