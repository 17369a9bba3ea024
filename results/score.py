"""A point folder to one row. Bad artefacts give an invalid row with its reasons, never an error."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from results import agentx, gsm8k, provenance, server
from results.columns import BY_NAME, SCHEMA, Row
from results.counters import share
from results.provenance import read_json
from results.records import Records, RecordsError, Summary, read_records, read_summary
from results.validity import CACHE_HIT_TOLERANCE, Findings, check_floor, check_serving

CLOCK_SLACK_NS = 60_000_000_000
"""Requests may start this long before ``run.json``'s start or after its end."""


def score(folder: Path) -> Row:
    """Score a point folder of either kind."""
    point = read_json(folder / "point.json")
    return score_gsm8k(folder) if point.get("kind") == "gsm8k" else score_agentx(folder)


def score_agentx(folder: Path) -> Row:
    """Score an AgentX point: one row of ``results.columns``, empty cells being None.

    Never raises for bad artefacts: the row then has ``valid`` False and says why.
    """
    row, point, run, findings = _open(folder)
    summary = _read_summary(row, folder, findings)
    records = _read_records(folder, run, findings)
    if records is not None:
        hole = agentx.hole(records, summary)
        if hole and summary is not None and summary.complete:
            agentx.from_summary(row, summary)
            agentx.append_note(row, f"scored from the client's complete summary: {hole}")
        else:
            if hole:
                findings.add("records", f"{hole}, and there is no complete summary")
            agentx.from_records(row, records, summary, point.get("slo") or {})
        if surplus := agentx.surplus(records, summary):
            findings.add("records", surplus)
        row["cancelled"] = agentx.cancelled(folder / "aiperf", records)
        agentx.from_counters(row, folder, records, point, findings)
        agentx.from_samples(row, folder, records, findings)
        agentx.check_tokens(row, records, findings)
    agentx.per_gpu(row)
    check_serving(row, point.get("validity") or {}, findings)
    return findings.close(row, folder)


def score_gsm8k(folder: Path) -> Row:
    """Score a GSM8K point; like ``score_agentx`` it never raises for bad artefacts."""
    row, point, _, findings = _open(folder)
    gsm8k.fill(row, folder, findings)
    server.fill(row, folder, point, findings)
    check_floor(row, findings)
    return findings.close(row, folder)


def _open(folder: Path) -> tuple[Row, dict[str, Any], dict[str, Any], Findings]:
    """The row's identity and provenance, what is in point.json and run.json, and first findings."""
    findings = Findings()
    row: Row = dict.fromkeys(BY_NAME)
    row["schema"] = SCHEMA
    point, run = read_json(folder / "point.json"), read_json(folder / "run.json")
    for name, column in BY_NAME.items():
        if column.group == "identity" and name != "schema":
            row[name] = point.get(name)
    if not point:
        row["point"], row["kind"] = folder.name, "agentx"
        findings.add("no-point", f"{folder / 'point.json'} is missing or no JSON object")
    if not run:
        findings.add("unfinished", f"{folder / 'run.json'} is missing: the point did not finish")
    gsm8k_settings = point.get("gsm8k") or {}
    row["gsm8k_floor"], row["gsm8k_margin"] = (gsm8k_settings.get(k) for k in ("floor", "margin"))
    validity = point.get("validity") or {}
    row["cache_hit_tolerance"] = validity.get("cache_hit_tolerance", CACHE_HIT_TOLERANCE)
    provenance.fill(row, folder.parent.parent)
    for name in ("started", "ended", "client"):
        row[name] = run.get(name)
    if run.get("interrupted"):
        findings.add("interrupted", "the run was interrupted; what is here is partial")
    seen = run.get("invalid") or []
    for item in seen:
        findings.add(str(item.get("rule")), str(item.get("detail")))
    failed = run.get("client_exit") not in (None, 0) and not run.get("interrupted")
    if failed and "client-failed" not in [item.get("rule") for item in seen]:
        findings.add("client-failed", f"the client ended with exit code {run['client_exit']}")
    return row, point, run, findings


def _read_summary(row: Row, folder: Path, findings: Findings) -> Summary | None:
    try:
        summary = read_summary(folder / "aiperf" / "profile_export_aiperf.json")
    except RecordsError as error:
        findings.add("summary", str(error))
        return None
    row["prefix_cache_hit_rate_client"] = share(
        summary.value("theoretical_prefix_cache_hit", "sum"),
        summary.value("theoretical_prefix_cache_hit", "count"),
    )
    if not summary.complete:
        why = summary.data.get("incomplete_reason") or "it was cancelled"
        findings.add("client-incomplete", f"the client did not finish: {why}")
    return summary


def _read_records(folder: Path, run: dict[str, Any], findings: Findings) -> Records | None:
    try:
        return read_records(folder / "aiperf" / "profile_export.jsonl", _window(run))
    except RecordsError as error:
        findings.add("records", str(error))
        return None


def _window(run: dict[str, Any]) -> tuple[int, int] | None:
    """The run's time in Unix ns, with slack; None if run.json does not say."""
    try:
        start, end = (datetime.fromisoformat(run[k]).timestamp() for k in ("started", "ended"))
    except (KeyError, TypeError, ValueError):
        return None
    return int(start * 1e9) - CLOCK_SLACK_NS, int(end * 1e9) + CLOCK_SLACK_NS
