"""Streaming reader of aiperf's per-request records (``profile_export.jsonl``).

The file is read line by line. Of each completed request five numbers are kept in arrays, so half a
million requests take about 30 MB. The order of the lines does not matter: aiperf writes records as
they arrive from several processes, and every figure here is the same for any order.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from results.columns import min_samples
from samenode.errors import UserError

Floats = NDArray[np.float64]

MAX_CLOCK_STEP_NS = 1_000_000_000
"""A request may start this much before its credit was issued: two processes read the clock."""


class RecordsError(UserError):
    """A record file that must not be scored."""


@dataclass
class Records:
    """What a record file says. Arrays hold one value for each completed profiled request.

    ``ttft_ms``, ``latency_ms`` (first and last content after the request's start) and ``itl_ms``
    are float64 in milliseconds, NaN where a request has none; ``output_tokens`` and
    ``input_tokens`` are float64 counts; ``end_ns`` is int64, Unix nanoseconds.
    """

    lines: int = 0
    warmup: int = 0
    warmup_errors: int = 0
    profiled: int = 0
    cancelled: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    holes: int = 0
    """Lines that are no complete JSON: the disk filled up or the file was cut."""
    first_hole: int | None = None
    itl_mismatches: int = 0
    """Requests whose exported ITL departs from the formula by more than 1e-6 of it."""
    usage_input_tokens: int = 0
    usage_output_tokens: int = 0
    """Token counts of the server's usage field, over the completed requests that carry it."""
    usage_requests: int = 0
    first_start_ns: int | None = None
    last_end_ns: int | None = None
    """Ends of the profiling window: all profiled requests, failed ones too."""
    completed_start_ns: int | None = None
    completed_end_ns: int | None = None
    ttft_ms: Floats = field(default_factory=lambda: np.empty(0))
    latency_ms: Floats = field(default_factory=lambda: np.empty(0))
    itl_ms: Floats = field(default_factory=lambda: np.empty(0))
    input_tokens: Floats = field(default_factory=lambda: np.empty(0))
    output_tokens: Floats = field(default_factory=lambda: np.empty(0))
    end_ns: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def completed(self) -> int:
        """Profiled requests that succeeded."""
        return len(self.latency_ms)

    @property
    def failed(self) -> int:
        """Profiled requests that ended in an error or were cancelled."""
        return sum(self.errors.values()) + self.cancelled

    @property
    def measured_s(self) -> float | None:
        """max(request end) - min(request start) over completed requests, in seconds."""
        if self.completed_start_ns is None or self.completed_end_ns is None:
            return None
        return (self.completed_end_ns - self.completed_start_ns) / 1e9


def percentile(values: Floats, q: int) -> float | None:
    """Linear ``q``-th percentile of the values that are not NaN; None below ``min_samples(q)``."""
    present = values[~np.isnan(values)]
    if len(present) < min_samples(q):
        return None
    return float(np.percentile(present, q))


def itl_ms(ttft_ms: Floats, latency_ms: Floats, output_tokens: Floats) -> Floats:
    """Inter-token latency of each request, per token and not per chunk.

    (last content - first content) / (output tokens - 1), in ms: aiperf's ``inter_token_latency``
    without ``--per-chunk-usage``. NaN for requests of fewer than two output tokens.
    """
    decoded = np.where(output_tokens >= 2, output_tokens - 1, np.nan)
    result: Floats = (latency_ms - ttft_ms) / decoded
    return result


class _Reader:
    """Collects the records of one file; ``line`` is the number of the line being read."""

    def __init__(self, path: Path, window_ns: tuple[int, int] | None) -> None:
        self.path = path
        self.window_ns = window_ns
        self.out = Records()
        self.line = 0
        self.ids = array("q")
        self.lines_of_ids = array("q")
        self.ttft = array("d")
        self.latency = array("d")
        self.exported_itl = array("d")
        self.isl = array("d")
        self.osl = array("d")
        self.end = array("q")

    def refuse(self, what: str) -> RecordsError:
        return RecordsError(
            f"{self.path}, line {self.line}: {what}; remove the line or run the point again."
        )

    def read(self) -> Records:
        out = self.out
        with self.path.open("rb") as handle:
            for self.line, text in enumerate(handle, 1):
                try:
                    record = orjson.loads(text)
                except orjson.JSONDecodeError:
                    out.holes += 1
                    out.first_hole = out.first_hole or self.line
                    continue
                try:
                    self.add(record)
                except (KeyError, TypeError, AttributeError):
                    raise self.refuse("this is not an aiperf record") from None
        self.check_duplicates()
        out.lines = len(self.ids)
        out.ttft_ms = np.frombuffer(self.ttft)
        out.latency_ms = np.frombuffer(self.latency)
        out.input_tokens = np.frombuffer(self.isl)
        out.output_tokens = np.frombuffer(self.osl)
        out.end_ns = np.frombuffer(self.end, np.int64)
        out.itl_ms = itl_ms(out.ttft_ms, out.latency_ms, out.output_tokens)
        exported = np.frombuffer(self.exported_itl)
        differs = np.abs(exported - out.itl_ms) > 1e-6 * np.abs(out.itl_ms)
        out.itl_mismatches = int(differs.sum())
        return out

    def add(self, record: dict[str, Any]) -> None:
        """Count one record. Raises KeyError or TypeError when it is none of aiperf's."""
        meta, metrics = record["metadata"], record["metrics"]
        phase = meta["benchmark_phase"]
        start, end = meta["request_start_ns"], meta["request_end_ns"]
        error = record.get("error")
        self.check_clock(meta, start, end)
        self.ids.append(hash((meta.get("x_request_id"), meta["session_num"], start)))
        self.lines_of_ids.append(self.line)
        out = self.out
        if phase == "warmup":
            out.warmup += 1
            out.warmup_errors += error is not None
            return
        if phase != "profiling":
            raise KeyError(phase)
        if meta.get("context_overflow_skip"):
            return
        out.profiled += 1
        out.first_start_ns = min(start, out.first_start_ns or start)
        out.last_end_ns = max(end, out.last_end_ns or end)
        if meta.get("was_cancelled"):
            out.cancelled += 1
        elif error is not None:
            out.errors[_category(error)] += 1
        elif "request_latency" not in metrics or "output_sequence_length" not in metrics:
            out.errors["no output"] += 1
        else:
            out.completed_start_ns = min(start, out.completed_start_ns or start)
            out.completed_end_ns = max(end, out.completed_end_ns or end)
            self.complete(metrics, end)

    def complete(self, metrics: dict[str, Any], end: int) -> None:
        """Keep the numbers of one completed request."""
        latency = _milliseconds(metrics["request_latency"])
        ttft = _milliseconds(metrics.get("time_to_first_token"))
        if latency < 0 or ttft < 0 or latency < ttft:
            raise self.refuse("its content arrived before it was asked for, a clock went backwards")
        self.latency.append(latency)
        self.ttft.append(ttft)
        self.exported_itl.append(_milliseconds(metrics.get("inter_token_latency")))
        self.osl.append(metrics["output_sequence_length"]["value"])
        self.isl.append(metrics["input_sequence_length"]["value"])
        self.end.append(end)
        usage = metrics.get("usage_completion_tokens")
        if usage is not None:
            self.out.usage_requests += 1
            self.out.usage_output_tokens += usage["value"]
            self.out.usage_input_tokens += metrics["usage_prompt_tokens"]["value"]

    def check_clock(self, meta: dict[str, Any], start: int, end: int) -> None:
        issued = meta.get("credit_issued_ns") or start
        if end < start or issued > start + MAX_CLOCK_STEP_NS:
            raise self.refuse("the request ends before it starts, a clock went backwards")
        if self.window_ns and not self.window_ns[0] <= start <= self.window_ns[1]:
            raise self.refuse("the request is not of this run, it lies outside the run's time")

    def check_duplicates(self) -> None:
        ids = np.frombuffer(self.ids, np.int64)
        _, first = np.unique(ids, return_index=True)
        if len(first) < len(ids):
            again = np.setdiff1d(np.arange(len(ids)), first)
            self.line = self.lines_of_ids[int(again[0])]
            raise self.refuse(f"the request was recorded before ({len(again)} such lines)")


def _milliseconds(metric: dict[str, Any] | None) -> float:
    """The value of a time metric; NaN where there is none. KeyError for another unit than ms."""
    if metric is None:
        return float("nan")
    if metric["unit"] != "ms":
        raise KeyError(metric["unit"])
    return float(metric["value"])


def _category(error: dict[str, Any]) -> str:
    """``type`` and ``code`` of an aiperf error, as in ``HTTPError 500``."""
    parts = [error.get("type") or "error", error.get("code")]
    return " ".join(str(p) for p in parts if p is not None)


def read_records(path: Path, window_ns: tuple[int, int] | None = None) -> Records:
    """Read ``profile_export.jsonl``.

    ``window_ns`` (Unix ns) is the time of the run: a record that starts outside it belongs to
    another one. Lines that are no complete JSON are counted as ``holes``; the caller decides
    whether the complete summary can stand in for them.

    Raises:
        RecordsError: the file is missing or empty of bytes, holds a line that is no aiperf record,
            a request twice, a record of another run, or times that go backwards.
    """
    if not path.is_file():
        raise RecordsError(f"{path}: the client left no record file; run the point again.")
    return _Reader(path, window_ns).read()


@dataclass(frozen=True)
class Summary:
    """aiperf's complete summary, ``profile_export_aiperf.json``: it covers every request."""

    path: Path
    data: dict[str, Any]

    def value(self, metric: str, stat: str = "avg") -> float | None:
        """A statistic of a metric in the unit aiperf wrote it in; None where it has none."""
        entry = self.data.get(metric)
        found = entry.get(stat) if isinstance(entry, dict) else None
        return float(found) if isinstance(found, int | float) and np.isfinite(found) else None

    def warmup(self, metric: str) -> float | None:
        """``value`` of the warm-up phase."""
        return Summary(self.path, self.data.get("warmup_metrics") or {}).value(metric)

    @property
    def complete(self) -> bool:
        """False when the client was cancelled or gave up before its end."""
        return self.data.get("is_complete") is not False and not self.data.get("was_cancelled")

    @property
    def client(self) -> str:
        """Client and version."""
        return f"aiperf {self.data.get('aiperf_version', 'of unknown version')}"

    @property
    def server_token_counts(self) -> bool:
        """Whether token counts are the server's (``--use-server-token-count``)."""
        endpoint = (self.data.get("input_config") or {}).get("endpoint") or {}
        return bool(endpoint.get("use_server_token_count"))

    def errors(self) -> Counter[str]:
        """Errors of the profiling phase by category."""
        counts: Counter[str] = Counter()
        for entry in self.data.get("error_summary") or []:
            counts[_category(entry.get("error_details") or {})] += int(entry.get("count") or 0)
        return counts


def read_summary(path: Path) -> Summary:
    """Read the client's complete summary.

    Raises:
        RecordsError: it is missing or no JSON object.
    """
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RecordsError(f"{path}: the client left no summary; run the point again.") from None
    except ValueError:
        raise RecordsError(f"{path}: this is no complete JSON; run the point again.") from None
    if not isinstance(data, dict):
        raise RecordsError(f"{path}: this is no aiperf summary; run the point again.")
    return Summary(path, data)
