"""The server's Prometheus counters over the profiling window (``prometheus.jsonl``)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from results.records import RecordsError

GAUGES = ("vllm:kv_cache_usage_perc",)
"""Gauges whose largest value in the window is kept. A scrape sums them over DP engines."""

DISPATCHES = "dsv41_dispatches_total"
"""Counter of the kernel plugin, by label ``kernel``: how often each kernel was dispatched."""


@dataclass
class Window:
    """Two scrapes around the profiling window: counter name with labels -> value."""

    first: dict[str, float]
    last: dict[str, float]
    peaks: dict[str, float] = field(default_factory=dict)

    def delta(self, key: str) -> float | None:
        """Growth of one counter; None when the server has it not or it fell (a restart)."""
        if key not in self.last:
            return None
        grown = self.last[key] - self.first.get(key, 0.0)
        return grown if grown >= 0 else None

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Growth of a counter for each value of ``label``, summed over its other labels."""
        pattern = re.compile(re.escape(name) + r"\{(?:.*,)?" + label + r'="((?:[^"\\]|\\.)*)".*\}')
        found: dict[str, float] = {}
        for key in self.last:
            if match := pattern.fullmatch(key):
                found[match[1]] = found.get(match[1], 0.0) + (self.delta(key) or 0.0)
        return found

    @property
    def fallen(self) -> list[str]:
        """Counters that are lower at the end than at the start: the server was restarted."""
        return [
            key
            for key, value in self.last.items()
            if key.split("{")[0].endswith("_total") and value < self.first.get(key, 0.0)
        ]


def read_window(
    path: Path, start_ns: int | None = None, end_ns: int | None = None
) -> Window | None:
    """Scrapes around [``start_ns``, ``end_ns``] (Unix ns), or None if they do not cover it.

    The window opens at the last scrape at or before ``start_ns`` and closes with the first at or
    after ``end_ns``; without a bound it opens at the first scrape, or closes at the last. A last
    line that was cut off is ignored.

    Raises:
        RecordsError: the file is missing or its times go backwards.
    """
    if not path.is_file():
        raise RecordsError(f"{path}: the server's counters were not recorded; run the point again.")
    first: dict[str, float] | None = None
    last: dict[str, float] | None = None
    peaks: dict[str, float] = {}
    before = 0
    with path.open("rb") as handle:
        for number, text in enumerate(handle, 1):
            try:
                line = orjson.loads(text)
                t_ns, samples = int(line["t_ns"]), line["samples"]
            except (orjson.JSONDecodeError, KeyError, TypeError):
                continue
            if t_ns < before:
                raise RecordsError(
                    f"{path}, line {number}: the clock went backwards; run it again."
                )
            before = t_ns
            if t_ns <= start_ns if start_ns is not None else first is None:
                first = samples
                continue
            for gauge in GAUGES:
                if gauge in samples:
                    peaks[gauge] = max(samples[gauge], peaks.get(gauge, 0.0))
            last = samples
            if end_ns is not None and t_ns >= end_ns:
                break
        else:
            if end_ns is not None:
                return None
    return None if first is None or last is None else Window(first, last, peaks)


def share(part: float | None, whole: float | None) -> float | None:
    """``part / whole``; None where either is missing or the whole is 0."""
    if part is None or not whole:
        return None
    return float(part) / float(whole)
