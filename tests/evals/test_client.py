"""Running and stopping a client."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil

from evals import client


def run(tmp_path: Path, code: str, watch=lambda passed: None, hurry=lambda: False, patience_s=60.0):  # type: ignore[no-untyped-def]
    return client.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"ANSWER": "42"},
        log=tmp_path / "client.log", watch=watch, hurry=hurry, patience_s=patience_s,
    )  # fmt: skip


def test_a_clients_end_is_reported_with_its_output(tmp_path: Path) -> None:
    code = "import os, sys; print('answer', os.environ['ANSWER']); sys.exit(7)"
    outcome = run(tmp_path, code)
    assert (outcome.exit_code, outcome.stopped) == (7, None)
    assert (tmp_path / "client.log").read_text() == "answer 42\n"


def test_a_stopped_client_may_still_write_what_it_has(tmp_path: Path) -> None:
    code = """
import time
try:
    print("up", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("partial result")
"""

    def watch(passed: float) -> str | None:
        up = "up" in (tmp_path / "client.log").read_text()
        return "interrupted" if up else None

    outcome = run(tmp_path, code, watch)
    assert (outcome.exit_code, outcome.stopped) == (0, "interrupted")
    assert "partial result" in (tmp_path / "client.log").read_text()


def test_a_client_that_will_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    code = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""
    log = tmp_path / "client.log"

    def watch(passed: float) -> str | None:
        # One poll later than the output, so that the child has been seen.
        return "server-died" if passed > 1 and log.read_text() else None

    began = time.monotonic()
    outcome = run(tmp_path, code, watch, patience_s=0.5)
    assert outcome.exit_code < 0 and outcome.stopped == "server-died"
    assert time.monotonic() - began < 10
    child = int(log.read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_hurry_ends_the_patience(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    began = time.monotonic()
    outcome = run(
        tmp_path, code, lambda passed: "interrupted" if passed > 0.5 else None, lambda: True
    )
    assert outcome.exit_code < 0
    assert time.monotonic() - began < 10


def test_the_last_words_are_the_last_error(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("start\nERROR no route to host\nbye\n\n", encoding="utf-8")
    assert client.last_words(log) == "ERROR no route to host"
    assert client.last_words(tmp_path / "none") == "it left no log"
