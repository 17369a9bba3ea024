"""What the server's own counters say of a point, of either kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from results.columns import SPEC_POSITIONS, Row
from results.counters import DISPATCHES, Window, read_window, share
from results.records import RecordsError
from results.validity import Findings, check_dispatch


def fill(
    row: Row,
    folder: Path,
    point: dict[str, Any],
    findings: Findings,
    bounds: tuple[int, int] | None = None,
) -> Window | None:
    """Fill in acceptance, cache hits, preemptions and KV use, and check which kernels ran.

    ``bounds`` are the profiling window's ends (Unix ns); None takes the whole point. Returns the
    window, or None where the counters cannot be used.
    """
    try:
        window = read_window(folder / "prometheus.jsonl", *(bounds or (None, None)))
    except RecordsError as error:
        findings.add("counters", str(error))
        return None
    if window is None:
        findings.add("counters", "the server's counters do not cover the profiling window")
        return None
    if window.fallen:
        findings.add("server-restarted", f"{window.fallen[0]} fell during the run")
        return None
    _acceptance(row, window)
    row["prefix_cache_hit_rate"] = _hit_rate(window)
    row["preemptions"] = _int(window.delta("vllm:num_preemptions_total"))
    dp = row["dp"]
    usage = window.peaks.get("vllm:kv_cache_usage_perc")
    row["kv_cache_usage_max"] = share(usage, dp if isinstance(dp, int) else 1)
    check_dispatch(window.by_label(DISPATCHES, "kernel"), point, findings)
    return window


def _acceptance(row: Row, window: Window) -> None:
    drafts = window.delta("vllm:spec_decode_num_drafts_total")
    accepted = window.delta("vllm:spec_decode_num_accepted_tokens_total")
    if not drafts or accepted is None:
        return
    draft_tokens = window.delta("vllm:spec_decode_num_draft_tokens_total")
    row["drafts"], row["accepted_tokens"] = int(drafts), int(accepted)
    row["draft_tokens"] = _int(draft_tokens)
    row["acceptance_length"] = 1 + accepted / drafts
    row["acceptance_rate"] = share(accepted, draft_tokens)
    positions = window.by_label("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position")
    for i in range(SPEC_POSITIONS):
        row[f"acceptance_rate_pos{i}"] = share(positions.get(str(i)), drafts)


def _hit_rate(window: Window) -> float | None:
    """Share of prompt tokens that came from a cache; None when nothing was looked up."""
    queries = window.delta("vllm:prefix_cache_queries_total")
    if not queries:
        return None
    sources = window.by_label("vllm:prompt_tokens_by_source_total", "source")
    total = sum(sources.values())
    if total:
        return (total - sources.get("local_compute", 0.0)) / total
    return share(window.delta("vllm:prefix_cache_hits_total"), queries)


def _int(value: float | None) -> int | None:
    return None if value is None else int(value)
