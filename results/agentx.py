"""An AgentX point's artefacts to the serving metrics of a row."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from results import server
from results.columns import QUANTILES, Row, min_samples
from results.counters import share
from results.records import Floats, Records, Summary, percentile
from results.validity import TOKEN_TOLERANCE, Findings
from samenode.errors import UserError
from serve.samples import mean_power_w, read_samples


def append_note(row: Row, text: str) -> None:
    """Add ``text`` to the row's note."""
    row["note"] = f"{row['note']}; {text}" if row["note"] else text


def hole(records: Records, summary: Summary | None) -> str | None:
    """What the record file lacks, in words; None if it is whole as far as can be told."""
    if records.holes:
        return f"{records.holes} lines are cut off, the first is line {records.first_hole}"
    if summary is None or not summary.complete:
        return None
    for what, recorded, metric in (
        ("completed", records.completed, "request_count"),
        ("failed", records.failed, "error_request_count"),
    ):
        expected = summary.value(metric) or 0
        if recorded < expected:
            return f"{recorded} of {expected:.0f} {what} requests are recorded"
    return None


def surplus(records: Records, summary: Summary | None) -> str | None:
    """What the record file has beyond the complete summary, in words; None if nothing."""
    expected = summary.value("request_count") if summary and summary.complete else None
    if expected is None or records.completed <= expected:
        return None
    return f"{records.completed} completed requests are recorded, the client counted {expected:.0f}"


def cancelled(folder: Path, records: Records) -> int:
    """Profiled requests that were cancelled, in ``folder`` (aiperf's).

    Those of the final drain leave no record; the client only logs their number.
    """
    logged = 0
    log = folder / "logs" / "aiperf.log"
    if log.is_file():
        with log.open(encoding="utf-8", errors="replace") as handle:
            for line in handle:
                if match := _PHASE_COMPLETE.search(line):
                    logged = int(match[1])
    return max(logged, records.cancelled)


_PHASE_COMPLETE = re.compile(r"Phase profiling .*complete \| completed=\d+, cancelled=(\d+)")


def from_records(
    row: Row, records: Records, summary: Summary | None, slo: dict[str, float | None]
) -> None:
    """Fill ``row`` from the per-request records. ``slo``: limits in ms, ``ttft_ms``, ``itl_ms``."""
    row["source"] = "records"
    row["records"] = records.lines
    row["warmup_records"] = records.warmup
    row["warmup_errors"] = records.warmup_errors
    row["profiled"] = records.profiled
    row["completed"] = records.completed
    _errors(row, dict(records.errors))
    row["context_overflow_skips"] = (
        int(summary.value("skipped_context_overflow_count") or 0) if summary else None
    )
    row["single_token"] = int(np.isnan(records.itl_ms).sum())
    row["token_count_source"] = _token_count_source(records, summary)
    if records.itl_mismatches:
        append_note(
            row, f"the client's ITL departs from the formula in {records.itl_mismatches} requests"
        )
    input_tokens, output_tokens = records.input_tokens.sum(), records.output_tokens.sum()
    _throughput(row, records.completed, input_tokens, output_tokens, records.measured_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        per_token = np.where(
            records.output_tokens >= 1, records.latency_ms / records.output_tokens, np.nan
        )
    _distributions(
        row,
        lambda q: percentile(records.itl_ms, q),
        lambda q: percentile(records.ttft_ms, q),
        lambda q: percentile(records.latency_ms, q),
        lambda q: percentile(per_token, q),
    )
    row["itl_mean_ms"] = _mean(records.itl_ms)
    row["ttft_mean_ms"] = _mean(records.ttft_ms)
    row["e2e_latency_mean_s"] = _scaled(_mean(records.latency_ms), 1e-3)
    _goodput(row, records, slo)


def from_summary(row: Row, summary: Summary) -> None:
    """The complete summary covers every request; it has no e2e interactivity and no goodput."""
    row["source"] = "summary"
    completed = int(summary.value("request_count") or 0)
    errors = dict(summary.errors())
    counted = int(summary.value("error_request_count") or 0)
    if counted > sum(errors.values()):
        errors["uncategorised"] = counted - sum(errors.values())
    row["warmup_records"] = _int(summary.warmup("completed_request_count"))
    row["warmup_errors"] = int(summary.warmup("error_request_count") or 0)
    row["completed"] = completed
    row["profiled"] = completed + sum(errors.values())
    row["context_overflow_skips"] = int(summary.value("skipped_context_overflow_count") or 0)
    row["single_token"] = completed - int(summary.value("inter_token_latency", "count") or 0)
    row["token_count_source"] = "server" if summary.server_token_counts else "client"
    _errors(row, errors)
    _throughput(
        row,
        completed,
        summary.value("total_isl") or 0.0,
        summary.value("total_osl") or 0.0,
        summary.value("benchmark_duration"),
    )

    def of(metric: str) -> Callable[[int], float | None]:
        enough = int(summary.value(metric, "count") or 0)
        return lambda q: summary.value(metric, f"p{q}") if enough >= min_samples(q) else None

    _distributions(
        row,
        of("inter_token_latency"),
        of("time_to_first_token"),
        of("request_latency"),
        lambda _q: None,
    )
    row["itl_mean_ms"] = summary.value("inter_token_latency")
    row["ttft_mean_ms"] = summary.value("time_to_first_token")
    row["e2e_latency_mean_s"] = _scaled(summary.value("request_latency"), 1e-3)


Percentile = Callable[[int], float | None]


def _distributions(
    row: Row, itl: Percentile, ttft: Percentile, latency: Percentile, per_token: Percentile
) -> None:
    """Percentiles from four functions of q, all in ms."""
    for q in QUANTILES:
        row[f"itl_p{q}_ms"] = itl(q)
        row[f"ttft_p{q}_ms"] = ttft(q)
        row[f"e2e_latency_p{q}_s"] = _scaled(latency(q), 1e-3)
        row[f"interactivity_p{q}"] = _rate(itl(q))
        row[f"e2e_interactivity_p{q}"] = _rate(per_token(q))


def _throughput(
    row: Row, completed: int, input_tokens: float, output_tokens: float, measured_s: float | None
) -> None:
    row["input_tokens"], row["output_tokens"] = int(input_tokens), int(output_tokens)
    row["measured_s"] = measured_s
    duration = row["duration_s"]
    if measured_s and isinstance(duration, int | float) and duration > 0:
        row["coverage"] = measured_s / duration
    row["input_throughput"] = share(input_tokens, measured_s)
    row["output_throughput"] = share(output_tokens, measured_s)
    row["total_throughput"] = share(input_tokens + output_tokens, measured_s)
    row["request_throughput"] = share(completed, measured_s)


def per_gpu(row: Row) -> None:
    """Throughput / gpus."""
    gpus = row["gpus"]
    for kind in ("total", "input", "output"):
        rate = row[f"{kind}_throughput"]
        if isinstance(rate, float) and isinstance(gpus, int) and gpus > 0:
            row[f"{kind}_throughput_per_gpu"] = rate / gpus


def _errors(row: Row, errors: dict[str, int]) -> None:
    count = sum(errors.values())
    row["errors"] = count
    row["errors_by_category"] = json.dumps(errors, sort_keys=True, ensure_ascii=False)
    completed = row["completed"]
    assert isinstance(completed, int)
    row["error_rate"] = share(count, completed + count)


def _goodput(row: Row, records: Records, slo: dict[str, float | None]) -> None:
    """Requests that meet every SLO; a request of one output token has no ITL to miss."""
    limits = {k: v for k, v in slo.items() if v is not None}
    if not limits or not records.completed:
        return
    good = np.ones(records.completed, bool)
    if "ttft_ms" in limits:
        good &= records.ttft_ms <= limits["ttft_ms"]
    if "itl_ms" in limits:
        good &= np.isnan(records.itl_ms) | (records.itl_ms <= limits["itl_ms"])
    row["goodput"] = share(float(good.sum()), records.measured_s)
    asked = records.completed + sum(records.errors.values())
    row["goodput_fraction"] = share(float(good.sum()), asked)


# ---- server counters


def from_counters(
    row: Row, folder: Path, records: Records, point: dict[str, Any], findings: Findings
) -> None:
    """Fill in what the server counted over the profiling window."""
    if records.first_start_ns is None or records.last_end_ns is None:
        return
    bounds = (records.first_start_ns, records.last_end_ns)
    window = server.fill(row, folder, point, findings, bounds)
    generated = window.delta("vllm:generation_tokens_total") if window else None
    output_tokens = row["output_tokens"]
    if (
        generated is not None
        and isinstance(output_tokens, int)
        and generated < output_tokens * (1 - TOKEN_TOLERANCE)
    ):
        findings.add(
            "token-counts",
            f"the client counts {output_tokens} output tokens and the server made {generated:.0f}",
        )


def from_samples(row: Row, folder: Path, records: Records, findings: Findings) -> None:
    """Energy over the completed requests, where the node sampler could read power."""
    try:
        samples = read_samples(folder / "samples.csv")
    except UserError as error:
        findings.add("sampler-gap", str(error))
        return
    if not samples:
        findings.add("sampler-gap", "the sampler wrote nothing")
    start, end = records.completed_start_ns, records.completed_end_ns
    if start is None or end is None or end <= start:
        return
    power = mean_power_w(samples, start, end)
    measured_s, output_tokens = row["measured_s"], row["output_tokens"]
    if power is None or not isinstance(measured_s, float) or not isinstance(output_tokens, int):
        return
    energy = power * measured_s
    row["mean_power"], row["energy"] = power, energy
    row["joules_per_output_token"] = share(energy, output_tokens)
    input_tokens = row["input_tokens"]
    if isinstance(input_tokens, int):
        row["joules_per_total_token"] = share(energy, input_tokens + output_tokens)


def _token_count_source(records: Records, summary: Summary | None) -> str:
    if summary is not None:
        return "server" if summary.server_token_counts else "client"
    same = records.usage_output_tokens == int(records.output_tokens.sum())
    return "server" if records.usage_requests == records.completed and same else "client"


def check_tokens(row: Row, records: Records, findings: Findings) -> None:
    """The client's own count must agree with the server's usage field where both are there."""
    if row["source"] != "records" or records.usage_requests != records.completed:
        return
    for what, counted, usage in (
        ("input", row["input_tokens"], records.usage_input_tokens),
        ("output", row["output_tokens"], records.usage_output_tokens),
    ):
        if isinstance(counted, int) and abs(counted - usage) > TOKEN_TOLERANCE * usage:
            findings.add(
                "token-counts", f"the client counts {counted} {what} tokens, the server {usage}"
            )


# ---- small arithmetic: never 0 for "none", never NaN


def _rate(milliseconds: float | None) -> float | None:
    return 1000.0 / milliseconds if milliseconds else None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _mean(values: Floats) -> float | None:
    present = values[~np.isnan(values)]
    return float(present.mean()) if len(present) else None


def _int(value: float | None) -> int | None:
    return None if value is None else int(value)
