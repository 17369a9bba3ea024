"""Inputs that break other benchmark tools, each with the behaviour that is right.

Left out are those that are no matter of results: warm caches, shared warm-up prompts, taken ports,
orphaned servers and load before readiness.
"""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
from point_folder import (
    DATA,
    FIRST_NS,
    LAST_NS,
    POINT,
    RUN,
    MakePoint,
    ReadRecords,
    WriteRecords,
    arm_row,
    edit_summary,
    reasons,
    write_samples,
    write_scrapes,
)

from results.columns import BY_NAME, SCHEMA
from results.compare import compare, render
from results.gsm8k import read_items
from results.pareto import front
from results.score import score
from results.tables import read_csv, write_tables
from results.validity import Findings, check_floor
from serve.samples import Sample, judge


def test_zero_completed_requests_are_an_invalid_row_with_its_cause_and_never_0_ms(
    make_point: MakePoint, records_of: ReadRecords, write_records: WriteRecords
) -> None:
    folder = make_point()
    records = records_of(folder)
    for record in records:
        if record["metadata"]["benchmark_phase"] == "profiling":
            record["error"] = {"code": 503, "type": "HTTPError", "message": "overloaded"}
            record["metrics"] = {}
    write_records(folder, records)
    edit_summary(folder, request_count=None, error_request_count={"unit": "requests", "avg": 22.0})
    row = score(folder)
    assert row["valid"] is False
    assert "nothing-completed" in reasons(row)
    assert row["errors_by_category"] == '{"HTTPError 503": 22}'
    assert row["error_rate"] == 1.0
    for name, value in row.items():
        if name.endswith(("_ms", "_s")) and name != "duration_s":
            assert value is None, name
    assert row["total_throughput"] is None
    assert row["interactivity_p90"] is None


def test_requests_over_no_time_have_an_empty_throughput_and_a_reason_and_are_valid_json(
    make_point: MakePoint, records_of: ReadRecords, write_records: WriteRecords, tmp_path: Path
) -> None:
    folder = make_point()
    records = [r for r in records_of(folder) if r["metadata"]["benchmark_phase"] == "profiling"][:1]
    records[0]["metadata"]["request_end_ns"] = records[0]["metadata"]["request_start_ns"]
    write_records(folder, records)
    edit_summary(folder, request_count={"unit": "requests", "avg": 1.0})
    row = score(folder)
    assert row["completed"] == 1
    assert row["total_throughput"] is None
    assert "cover no time" in reasons(row)
    json.dumps(row, allow_nan=False)
    write_tables(tmp_path / "csv", [row])
    with (tmp_path / "csv" / "points.csv").open(encoding="utf-8", newline="") as handle:
        assert next(csv.DictReader(handle))["total_throughput"] == ""


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_nan_throughput_is_an_empty_cell(tmp_path: Path, value: float) -> None:
    write_tables(tmp_path, [arm_row(0, 1.0, total_throughput=value)])
    found = read_csv(tmp_path / "points.csv")[0]
    assert found["total_throughput"] is None
    json.dumps(found, allow_nan=False)


def test_no_row_holds_nan(make_point: MakePoint) -> None:
    for folder in (make_point("a"), make_point("b", gpus=0, duration_s=0)):
        row = score(folder)
        json.dumps(row, allow_nan=False)
        assert not [n for n, v in row.items() if isinstance(v, float) and not math.isfinite(v)]


def test_of_one_good_and_two_failed_repeats_the_failures_are_left_out_and_n_is_stated() -> None:
    rows = [arm_row(s, 10.0 + s, repeat=r) for r in (1, 2, 3) for s in (0, 1)]
    rows[2]["valid"] = rows[5]["valid"] = False
    (cell,) = compare(rows)
    assert cell.ratio == pytest.approx(1.1)
    assert (cell.n, cell.result.dropped) == (1, 2)
    assert "n=1  one pair, no interval; 2 pairs left out" in render([cell])


def test_one_repeat_says_n_1_and_no_interval() -> None:
    (cell,) = compare([arm_row(0, 20.0), arm_row(1, 30.0)])
    assert cell.ratio == pytest.approx(1.5)
    assert (cell.n, cell.baseline, cell.arm) == (1, "off", "on")
    assert "n=1  one pair, no interval" in render([cell])
    assert (cell.row()["low"], cell.row()["verdict"]) == (None, None)


def test_a_dominated_pareto_point_with_equal_y_is_dropped() -> None:
    assert front([(10.0, 5.0), (20.0, 5.0), (5.0, 9.0)]) == [1, 2]
    assert front([(1.0, 1.0), (1.0, 1.0), (1.0, 2.0)]) == [2]
    assert front([(1.0, 1.0), (1.0, 1.0)]) == [0]
    assert front([]) == []


def test_a_missing_gpu_tool_fails_closed_and_is_not_clean(make_point: MakePoint) -> None:
    second = 1_000_000_000
    ticks = range(FIRST_NS - second, LAST_NS + 2 * second, second)
    samples = [Sample(t, "cpu", util_pct=50.0) for t in ticks]
    samples += [Sample(t, "gpu", error="no GPU tool is installed") for t in ticks]
    found = judge(samples, FIRST_NS, LAST_NS)
    folder = make_point(run={"invalid": found})
    write_samples(folder, samples)
    row = score(folder)
    assert row["valid"] is False
    assert "telemetry-missing: gpu: no GPU tool is installed" in reasons(row)
    assert row["joules_per_output_token"] is None


def test_a_point_without_samples_is_not_clean(make_point: MakePoint) -> None:
    folder = make_point()
    (folder / "samples.csv").unlink()
    assert "sampler-gap" in reasons(score(folder))


def test_direction_is_stored_with_the_metric_not_guessed_from_its_name() -> None:
    assert BY_NAME["interactivity_p99"].direction == "higher"
    assert BY_NAME["ttft_p90_ms"].direction == "lower"
    assert BY_NAME["error_rate"].direction == "lower"
    assert BY_NAME["acceptance_rate"].direction == "higher"
    assert BY_NAME["prefix_cache_hit_rate_client"].direction == "none"


def test_one_token_outputs_keep_their_ttft_and_tpot_is_not_applicable(
    make_point: MakePoint, records_of: ReadRecords, write_records: WriteRecords
) -> None:
    folder = make_point()
    records = records_of(folder)
    for record in records:
        metrics = record["metrics"]
        metrics["output_sequence_length"]["value"] = 1
        metrics["usage_completion_tokens"]["value"] = 1
        metrics["request_latency"]["value"] = metrics["time_to_first_token"]["value"]
        metrics.pop("inter_token_latency", None)
    write_records(folder, records)
    row = score(folder)
    assert row["ttft_p50_ms"] is not None
    assert row["single_token"] == 22
    for name in ("itl_mean_ms", "itl_p50_ms", "interactivity_p50"):
        assert row[name] is None, name
    assert row["goodput"] is not None


def test_a_partial_run_after_ctrl_c_loads_and_is_flagged(make_point: MakePoint) -> None:
    folder = make_point(run={"interrupted": True})
    edit_summary(folder, was_cancelled=True)
    row = score(folder)
    assert row["valid"] is False
    assert "interrupted" in reasons(row)
    assert row["completed"] == 22
    assert row["interactivity_p50"] is not None


def test_client_and_server_token_counts_that_differ_are_named_and_fail(
    make_point: MakePoint, records_of: ReadRecords, write_records: WriteRecords
) -> None:
    folder = make_point()
    records = records_of(folder)
    for record in records:
        record["metrics"]["output_sequence_length"]["value"] += 1
    write_records(folder, records)
    edit_summary(folder, input_config={"endpoint": {"use_server_token_count": False}})
    row = score(folder)
    assert row["token_count_source"] == "client"
    assert "token-counts: the client counts 703 output tokens, the server 681" in reasons(row)


def test_a_model_called_org_slash_model_keeps_its_name_and_its_files_are_found(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "001"
    lm_eval = folder / "lm_eval"
    for path in sorted((DATA / "lm_eval").rglob("*.json*")):
        target = lm_eval / ("org__model" if path.parent.name == "dummy" else "") / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    point = POINT | {"kind": "gsm8k", "model": "org/model"}
    (folder / "point.json").write_text(json.dumps(point), encoding="utf-8")
    (folder / "run.json").write_text(json.dumps(RUN), encoding="utf-8")
    write_scrapes(folder, [(1, {}), (2, {})])
    row = score(folder)
    assert row["valid"] is True, reasons(row)
    assert row["model"] == "org/model"
    assert len(read_items(folder)["strict"]) == 12


def test_cells_with_commas_quotes_and_newlines_round_trip(tmp_path: Path) -> None:
    text = 'a,b "quoted"\nsecond line\r\nüñïcode → 漢字; =1+1'
    write_tables(tmp_path, [arm_row(0, 1 / 3, invalid_reasons=text, note='"')])
    found = read_csv(tmp_path / "points.csv")[0]
    assert (found["invalid_reasons"], found["note"]) == (text, '"')
    assert found["interactivity_p90"] == 1 / 3
    assert found["schema"] == SCHEMA


def test_p99_of_3_samples_is_suppressed(
    make_point: MakePoint, records_of: ReadRecords, write_records: WriteRecords
) -> None:
    folder = make_point()
    records = [r for r in records_of(folder) if r["metadata"]["benchmark_phase"] == "profiling"][:3]
    write_records(folder, records)
    edit_summary(folder, request_count={"unit": "requests", "avg": 3.0})
    row = score(folder)
    assert row["interactivity_p50"] is not None
    for name in ("interactivity_p99", "itl_p99_ms", "ttft_p90_ms", "e2e_latency_p75_s"):
        assert row[name] is None, name


@pytest.mark.parametrize(("correct", "passes"), [(45, True), (41, True), (40, False), (0, False)])
def test_gsm8k_on_50_items_is_held_against_a_floor_widened_by_the_binomial_error(
    correct: int, passes: bool
) -> None:
    row = dict.fromkeys(BY_NAME) | {
        "gsm8k_n": 50,
        "gsm8k_floor": 0.90,
        "gsm8k_strict_correct": correct,
        "gsm8k_flexible_correct": 50,
    }
    findings = Findings()
    check_floor(row, findings)
    assert (not findings.items) == passes


def test_the_full_test_set_is_held_against_the_floor_itself() -> None:
    for correct, passes in ((1189, True), (1188, True), (1187, False)):
        findings = Findings()
        row: dict[str, Any] = {"gsm8k_n": 1319, "gsm8k_floor": 0.90}
        check_floor(row | {"gsm8k_strict_correct": correct}, findings)
        assert (not findings.items) == (correct / 1319 >= 0.90) == passes


def test_a_disk_that_fills_leaves_a_row_from_the_complete_summary_that_is_marked(
    make_point: MakePoint,
) -> None:
    whole = score(make_point("whole"))
    folder = make_point("hole")
    path = folder / "aiperf" / "profile_export.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:45], lines[45][:300] + b"\n", *lines[46:]]))
    row = score(folder)
    assert row["valid"] is True, reasons(row)
    assert row["source"] == "summary"
    assert "line 46" in str(row["note"])
    for name in ("interactivity_p90", "itl_p50_ms", "ttft_p95_ms", "e2e_latency_p90_s"):
        assert row[name] == pytest.approx(whole[name], rel=1e-12), name
    for name in ("total_throughput", "input_throughput", "output_throughput", "measured_s"):
        assert row[name] == pytest.approx(whole[name], rel=1e-3), name
    assert row["completed"] == whole["completed"]
    assert row["e2e_interactivity_p90"] is None
    assert row["goodput"] is None
    assert row["prefix_cache_hit_rate"] == whole["prefix_cache_hit_rate"]


def test_records_that_were_never_written_are_noticed_from_the_summary(
    make_point: MakePoint,
) -> None:
    folder = make_point()
    path = folder / "aiperf" / "profile_export.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-3]))
    row = score(folder)
    assert row["source"] == "summary"
    assert "19 of 22 completed requests are recorded" in str(row["note"])


def test_chunks_that_carry_several_tokens_count_per_token_not_per_chunk(
    make_point: MakePoint, records_of: ReadRecords, write_records: WriteRecords
) -> None:
    single = score(make_point("single"))
    folder = make_point("merged")
    records = records_of(folder)
    for record in records:
        gaps = record["metrics"].get("inter_chunk_latency")
        if gaps:
            gaps["value"] = [sum(gaps["value"])]
    write_records(folder, records)
    merged = score(folder)
    for name in ("itl_mean_ms", "itl_p90_ms", "interactivity_p90", "output_throughput"):
        assert merged[name] == single[name], name
