"""A point folder made of a real aiperf run (SmolLM2-135M on vLLM, CPU) and its counters."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results.columns import BY_NAME, SCHEMA, Row
from results.tables import write_tables
from serve.samples import Sample, encode, encode_header

DATA = Path(__file__).parent / "data"

FIRST_NS = 1795980742916356064
LAST_NS = 1795980763876076096
"""Start of the first and end of the last profiled request of ``data/aiperf``."""

POINT: dict[str, Any] = {
    "schema": 1,
    "campaign": "20261129-193000-smoke-cpu",
    "point": "001-prefix-off-tp1-c2-r1",
    "kind": "agentx",
    "recipe": "smoke-cpu",
    "fingerprint": "f" * 64,
    "model": "smol",
    "arm": "prefix-off",
    "baseline": "prefix-off",
    "config": "tp1",
    "tp": 1,
    "pp": 1,
    "dp": 1,
    "ep": 1,
    "gpus": 1,
    "conc": 2,
    "spec_method": "none",
    "spec_tokens": 0,
    "rejection": "none",
    "target_acceptance_length": None,
    "repeat": 1,
    "slot": 0,
    "launch": 1,
    "duration_s": 20,
    "seed": 42,
    "corpus": "synthetic:0",
    "canonical": False,
    "non_canonical_why": "traces are generated",
    "must_dispatch": [],
    "slo": {"ttft_ms": 500.0, "itl_ms": 45.0},
}
RUN: dict[str, Any] = {
    "schema": 1,
    "started": "2026-11-29T19:32:10+00:00",
    "ended": "2026-11-29T19:32:50+00:00",
    "client": "aiperf 0.13.0",
    "client_exit": 0,
    "invalid": [],
    "interrupted": False,
}
AFTER: dict[str, float] = {
    "vllm:prompt_tokens_total": 25118.0,
    "vllm:generation_tokens_total": 710.0,
    'vllm:prompt_tokens_by_source_total{source="local_compute"}': 6142.0,
    'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}': 18976.0,
    'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}': 0.0,
    "vllm:prefix_cache_queries_total": 25118.0,
    "vllm:prefix_cache_hits_total": 18976.0,
    "vllm:num_preemptions_total": 0.0,
    "vllm:kv_cache_usage_perc": 0.1,
}
"""Counters that the server of ``data/aiperf`` showed after it."""

BEFORE = AFTER | {
    "vllm:prompt_tokens_total": 13981.0,
    "vllm:generation_tokens_total": 29.0,
    'vllm:prompt_tokens_by_source_total{source="local_compute"}': 3997.0,
    'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}': 9984.0,
    "vllm:prefix_cache_queries_total": 13981.0,
    "vllm:prefix_cache_hits_total": 9984.0,
}
"""The same less what the profiled requests added."""


def write_scrapes(folder: Path, scrapes: list[tuple[int, dict[str, float]]]) -> None:
    """Write ``prometheus.jsonl``: (Unix ns, samples) a line."""
    text = "".join(json.dumps({"t_ns": t, "samples": s}) + "\n" for t, s in scrapes)
    (folder / "prometheus.jsonl").write_text(text, encoding="utf-8")


def write_samples(folder: Path, samples: list[Sample]) -> None:
    """Write ``samples.csv``."""
    (folder / "samples.csv").write_bytes(encode_header() + encode(samples))


def edit_summary(folder: Path, **changes: Any) -> None:
    """Change entries of aiperf's summary."""
    path = folder / "aiperf" / "profile_export_aiperf.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(data | changes), encoding="utf-8")


def reasons(row: Row) -> str:
    """Why a row is invalid."""
    return str(row["invalid_reasons"])


def arm_row(slot: int, interactivity: float | None, **changes: Any) -> Row:
    """A valid scored row of arm ``off`` (slot 0) or ``on`` (slot 1)."""
    row: Row = dict.fromkeys(BY_NAME)
    row |= {
        "schema": SCHEMA,
        "campaign": "x",
        "kind": "agentx",
        "recipe": "smoke-cpu",
        "model": "smol",
        "config": "tp1",
        "conc": 2,
        "repeat": 1,
        "slot": slot,
        "arm": ("off", "on")[slot],
        "corpus": "synthetic:0",
        "seed": 42,
        "duration_s": 60,
        "node": "host 0123456789ab",
        "image": "packages:0",
        "client": "aiperf 0.13.0",
        "token_count_source": "server",
        "valid": True,
        "interactivity_p90": interactivity,
    }
    return row | changes


def write_run(folder: Path, rows: list[Row]) -> Path:
    """Write scored rows as a campaign's folder, with its CSVs."""
    for number, row in enumerate(rows, 1):
        path = folder / "points" / f"{number:03}" / "row.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(row), encoding="utf-8")
    write_tables(folder, rows)
    return folder


MakePoint = Callable[..., Path]
ReadRecords = Callable[[Path], list[dict[str, Any]]]
WriteRecords = Callable[[Path, list[dict[str, Any]]], None]
