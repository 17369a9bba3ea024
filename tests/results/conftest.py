"""Fixtures that write and read point folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from point_folder import (
    AFTER,
    BEFORE,
    DATA,
    FIRST_NS,
    LAST_NS,
    POINT,
    RUN,
    MakePoint,
    ReadRecords,
    WriteRecords,
    write_samples,
    write_scrapes,
)

from serve.samples import Sample


@pytest.fixture
def make_point(tmp_path: Path) -> MakePoint:
    """``make_point(name, run={…}, **changes to point.json)`` writes a point folder."""

    def make(name: str = "001", run: dict[str, Any] | None = None, **changes: Any) -> Path:
        folder = tmp_path / name
        shutil.copytree(DATA / "aiperf", folder / "aiperf")
        (folder / "point.json").write_text(json.dumps(POINT | changes), encoding="utf-8")
        (folder / "run.json").write_text(json.dumps(RUN | (run or {})), encoding="utf-8")
        second = 1_000_000_000
        write_scrapes(
            folder,
            [
                (FIRST_NS - 2 * second, {}),
                (FIRST_NS - 1, BEFORE),
                (FIRST_NS + second, BEFORE | {"vllm:kv_cache_usage_perc": 0.25}),
                (LAST_NS, AFTER),
                (LAST_NS + second, AFTER | {"vllm:generation_tokens_total": 9999.0}),
            ],
        )
        ticks = range(FIRST_NS - 2 * second, LAST_NS + 2 * second, second)
        write_samples(folder, [Sample(t, "cpu", util_pct=50.0) for t in ticks])
        return folder

    return make


@pytest.fixture
def records_of() -> ReadRecords:
    """Reads the record lines of a point folder."""

    def read(folder: Path) -> list[dict[str, Any]]:
        text = (folder / "aiperf" / "profile_export.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    return read


@pytest.fixture
def write_records() -> WriteRecords:
    """Writes the record lines of a point folder."""

    def write(folder: Path, records: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(record) + "\n" for record in records)
        (folder / "aiperf" / "profile_export.jsonl").write_text(text, encoding="utf-8")

    return write
