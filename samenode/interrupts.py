"""Ctrl-C, counted: the first ends the point in hand cleanly, the second ends it now."""

from __future__ import annotations

import signal
from types import FrameType


class InterruptedCampaign(Exception):
    """The user asked for the end; what is finished is kept."""


class Interrupts:
    """Counts SIGINT and SIGTERM while it is entered."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1

    def check(self) -> None:
        """Raise if an interrupt came."""
        if self.count:
            raise InterruptedCampaign
