"""Timing by CUDA-graph replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Call = Callable[[], Any]


class Graph:
    """One captured round of calls on a stream of its own.

    What the calls read and write stays alive: a replay uses it, and outputs must rotate too.
    """

    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self.stream):
            for call in calls:
                call()
            self.stream.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.outputs = [call() for call in calls]

    def replay(self) -> float:
        """Microseconds a call."""
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self.stream):
            start.record()
            self.graph.replay()
            end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / len(self.calls)
