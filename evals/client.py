"""Run a load generator or an evaluation harness as a child process, and watch over it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

POLL_S = 0.25


@dataclass(frozen=True)
class Outcome:
    """How a client ended: its exit code, its wall time in seconds, and, where it was stopped
    before its own end, why."""

    exit_code: int
    wall_s: float
    stopped: str | None


def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    log: Path,
    watch: Callable[[float], str | None],
    hurry: Callable[[], bool],
    patience_s: float = 60.0,
) -> Outcome:
    """Run ``argv`` to its end, with its output in ``log``.

    ``watch`` is called four times a second with the seconds passed; a reason that it returns stops
    the client: SIGINT, on which aiperf and lm-eval still write what they have, then after
    ``patience_s`` seconds, or as soon as ``hurry`` says so, SIGKILL of the whole family.
    """
    began = time.monotonic()
    stopped: str | None = None
    deadline = 0.0
    with log.open("ab") as handle:
        process = subprocess.Popen(
            list(argv), cwd=cwd, env={**os.environ, **env}, stdin=subprocess.DEVNULL,
            stdout=handle, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        family = psutil.Process(process.pid)
        children: list[psutil.Process] = []
        try:
            while process.poll() is None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    children = family.children(recursive=True)
                if stopped is None:
                    stopped = watch(time.monotonic() - began)
                    if stopped is not None:
                        deadline = time.monotonic() + patience_s
                        process.send_signal(signal.SIGINT)
                elif hurry() or time.monotonic() > deadline:
                    process.kill()
                time.sleep(POLL_S)
        finally:
            for child in (*children, family):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            process.wait()
            psutil.wait_procs(children, timeout=10)
    return Outcome(process.returncode, time.monotonic() - began, stopped)


def last_words(log: Path) -> str:
    """The last line of a client's log that says something, for an error message."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "it left no log"
    told = [line.strip() for line in lines if "error" in line.lower()] or lines
    return next(
        (line.strip(" │╭╰─╮╯")[:300] for line in reversed(told) if line.strip()), "no output"
    )
