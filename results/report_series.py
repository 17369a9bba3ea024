"""What happened during a point: its scrapes and node samples as series over time."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from results.columns import Row
from results.records import RecordsError, read_records
from samenode.errors import UserError
from serve.samples import Sample, decode_processes, read_samples

Floats = NDArray[np.float64]

BINS = 60
"""About so many steps are drawn of a point."""

PANELS: dict[str, tuple[str, str]] = {
    "throughput": ("throughput", "tok/s"),
    "cache_hit": ("prefix-cache hits", "%"),
    "clock": ("clock", "MHz"),
    "power": ("power", "W"),
    "busy": ("busy", "%"),
}
"""Series: label and unit. Throughput: prompt and generated tokens a second. Clock: the slowest of
the server's GPUs, or the mean of the CPUs. Power: the server's GPUs together. Busy: mean of the
GPUs, or share of all CPU time."""

OF_DEVICES = ("clock", "power", "busy")
"""The series that come from the node sampler."""

_TOKENS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
_SOURCE = 'vllm:prompt_tokens_by_source_total{source="'
_COMPUTED = f'{_SOURCE}local_compute"}}'
_LOOKUPS = "vllm:prefix_cache_queries_total"


@dataclass
class PointSeries:
    """Series of one point; times in s from the start of the profiling window.

    ``series`` maps a key of ``PANELS`` to (times, values), both float64 of equal length, NaN where
    nothing can be told. ``window_s`` is the window's length; None where the records are gone, and
    the times then count from the first scrape. ``step_s``: width of a step.
    """

    row: Row
    window_s: float | None = None
    step_s: float = 1.0
    series: dict[str, tuple[Floats, Floats]] = field(default_factory=dict)
    devices: str = ""
    """``CPU`` or ``GPU``: of which the series of ``OF_DEVICES`` are."""
    missing: list[str] = field(default_factory=list)
    """Files that could not be read, with the reason."""


def read_point(folder: Path, row: Row) -> PointSeries:
    """The series of the AgentX point in ``folder``; what is not there is listed in ``missing``."""
    out = PointSeries(row)
    window = _window(folder, out)
    scrapes = _scrapes(folder, out)
    samples = _samples(folder, out)
    times = [t for t, _ in scrapes] or [sample.t_ns for sample in samples]
    if not times:
        return out
    start_ns = window[0] if window else times[0]
    out.window_s = (window[1] - window[0]) / 1e9 if window else None
    first, last = ((t - start_ns) / 1e9 for t in (times[0], times[-1]))
    out.step_s = max(1.0, float(math.ceil((last - first) / BINS)))
    edges = out.step_s * np.arange(math.floor(first / out.step_s), last // out.step_s + 2)
    if len(scrapes) > 1:
        _counters(out, scrapes, start_ns, edges)
    _devices(out, samples, start_ns, edges)
    return out


def _window(folder: Path, out: PointSeries) -> tuple[int, int] | None:
    """Start of the first and end of the last profiled request, Unix ns."""
    try:
        records = read_records(folder / "aiperf" / "profile_export.jsonl")
    except RecordsError:
        out.missing.append("profile_export.jsonl (so the profiling window is not known)")
        return None
    if records.first_start_ns is None or records.last_end_ns is None:
        return None
    return records.first_start_ns, records.last_end_ns


def _scrapes(folder: Path, out: PointSeries) -> list[tuple[int, dict[str, float]]]:
    """(Unix ns, counters) of every whole line of ``prometheus.jsonl``, by time."""
    found = []
    try:
        with (folder / "prometheus.jsonl").open("rb") as handle:
            for text in handle:
                try:
                    line = orjson.loads(text)
                    found.append((int(line["t_ns"]), dict(line["samples"])))
                except (ValueError, KeyError, TypeError):
                    continue
    except OSError:
        pass
    if not found:
        out.missing.append("prometheus.jsonl")
    return sorted(found, key=lambda scrape: scrape[0])


def _samples(folder: Path, out: PointSeries) -> list[Sample]:
    try:
        return sorted(read_samples(folder / "samples.csv"), key=lambda sample: sample.t_ns)
    except UserError:
        out.missing.append("samples.csv")
        return []


def _counters(
    out: PointSeries,
    scrapes: list[tuple[int, dict[str, float]]],
    start_ns: int,
    edges: Floats,
) -> None:
    times = np.array([(t - start_ns) / 1e9 for t, _ in scrapes])
    names = set().union(*(samples for _, samples in scrapes))

    def growth(*counters: str) -> Floats | None:
        """Growth of the counters' sum in each step; None where the server has none of them."""
        if not names & set(counters):
            return None
        total = np.array([sum(s.get(name, 0.0) for name in counters) for _, s in scrapes])
        inside = np.interp(edges, times, total, left=np.nan, right=np.nan)
        grown = np.diff(inside)
        return np.where(grown >= 0, grown, np.nan)

    middles = (edges[:-1] + edges[1:]) / 2
    if (tokens := growth(*_TOKENS)) is not None:
        out.series["throughput"] = middles, tokens / out.step_s
    sources = {name for name in names if name.startswith(_SOURCE)}
    part, whole = growth(*(sources - {_COMPUTED})), growth(*sources)
    if part is None or whole is None:
        part = growth("vllm:prefix_cache_hits_total")
        whole = growth(_LOOKUPS)
    lookups = growth(_LOOKUPS)
    if part is not None and whole is not None and lookups is not None and np.nansum(lookups):
        share = np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)
        out.series["cache_hit"] = middles, 100 * share


def _devices(out: PointSeries, samples: list[Sample], start_ns: int, edges: Floats) -> None:
    devices = {sample.device for sample in samples}
    gpus = devices - {"cpu"}
    own = {s.device for s in samples if any(p.own for p in decode_processes(s.processes))}
    used = own & gpus or gpus or devices
    out.devices = "GPU" if gpus else "CPU"
    for key, name, over in (
        ("clock", "clock_mhz", min),
        ("power", "power_w", sum),
        ("busy", "util_pct", _mean),
    ):
        values: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for sample in samples:
            value = getattr(sample, name)
            step = int(np.searchsorted(edges, (sample.t_ns - start_ns) / 1e9, "right")) - 1
            if sample.device in used and value is not None and 0 <= step < len(edges) - 1:
                values[step][sample.device].append(float(value))
        if values:
            steps = sorted(values)
            middles = (edges[steps] + edges[np.array(steps) + 1]) / 2
            merged = [over([_mean(v) for v in values[step].values()]) for step in steps]
            out.series[key] = middles, np.array(merged, dtype=float)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
