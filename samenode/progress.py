"""What a person sees while a campaign runs: one line a step, on standard error."""

from __future__ import annotations

import sys
import time
from typing import TextIO


def span(seconds: float) -> str:
    """A duration as ``42 s``, ``3 min 20 s`` or ``2 h 05 min``."""
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


class Progress:
    """Steps with their place in the whole and the time passed.

    On a terminal the current step's line is rewritten about once a second; elsewhere a line is
    written when a step begins and every ``quiet_s`` seconds of it.
    """

    def __init__(self, total: int, stream: TextIO | None = None, quiet_s: float = 30.0) -> None:
        self._stream = stream or sys.stderr
        self._total = total
        self._quiet_s = quiet_s
        self._step = ""
        self._told = 0.0
        self._open = False

    def say(self, text: str) -> None:
        """A line of its own."""
        self._close()
        print(text, file=self._stream, flush=True)

    def step(self, number: int, what: str) -> None:
        """Begin a step: ``[ 3/12] 14:02:31 what``."""
        width = len(str(self._total))
        self._step = f"[{number:>{width}}/{self._total}] {time.strftime('%H:%M:%S')} {what}"
        self._told = time.monotonic()
        self._put(self._step)

    def tick(self, detail: str) -> None:
        """Show how far the current step is."""
        if self._stream.isatty() or time.monotonic() - self._told >= self._quiet_s:
            self._told = time.monotonic()
            self._put(f"{self._step}: {detail}")

    def finish(self, detail: str) -> None:
        """End the current step with its outcome."""
        self._put(f"{self._step}: {detail}")
        self._close()

    def _put(self, text: str) -> None:
        if self._stream.isatty():
            print(f"\r\x1b[K{text}", end="", file=self._stream, flush=True)
            self._open = True
        else:
            print(text, file=self._stream, flush=True)

    def _close(self) -> None:
        if self._open:
            print(file=self._stream, flush=True)
            self._open = False
