"""The streaming reader against aiperf's own summary, and against damaged files."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.columns import QUANTILES, min_samples
from results.records import Records, RecordsError, percentile, read_records, read_summary

AIPERF = Path(__file__).parent / "data" / "aiperf"
FILE = AIPERF / "profile_export.jsonl"


@pytest.fixture
def lines() -> list[str]:
    return FILE.read_text(encoding="utf-8").splitlines(keepends=True)


@pytest.fixture
def read(tmp_path: Path) -> Callable[[list[str]], Records]:
    def read(lines: list[str]) -> Records:
        path = tmp_path / "profile_export.jsonl"
        path.write_text("".join(lines), encoding="utf-8")
        return read_records(path)

    return read


def edit(line: str, change: Callable[[dict[str, Any]], None]) -> str:
    record = json.loads(line)
    change(record)
    return json.dumps(record) + "\n"


def test_percentiles_equal_the_summary_of_aiperf() -> None:
    records, summary = read_records(FILE), read_summary(AIPERF / "profile_export_aiperf.json")
    for values, metric in (
        (records.itl_ms, "inter_token_latency"),
        (records.ttft_ms, "time_to_first_token"),
        (records.latency_ms, "request_latency"),
    ):
        for q in (50, 75, 90, 95):
            assert percentile(values, q) == pytest.approx(summary.value(metric, f"p{q}"), rel=1e-12)
    assert records.completed == summary.value("request_count")
    assert records.input_tokens.sum() == summary.value("total_isl")
    assert records.output_tokens.sum() == summary.value("total_osl")
    duration = summary.value("benchmark_duration")
    assert records.measured_s == pytest.approx(duration, abs=1e-6)


def test_itl_of_aiperf_is_the_formula_in_every_record() -> None:
    records = read_records(FILE)
    assert records.itl_mismatches == 0
    assert not np.isnan(records.itl_ms).any()


def test_warmup_is_dropped_and_counted() -> None:
    records = read_records(FILE)
    assert (records.lines, records.warmup, records.profiled) == (51, 29, 22)


@given(st.lists(st.floats(0.01, 1e6), max_size=300), st.sampled_from(QUANTILES))
def test_a_percentile_of_too_few_values_is_suppressed(values: list[float], q: int) -> None:
    found = percentile(np.array(values), q)
    if len(values) < min_samples(q):
        assert found is None
    else:
        assert found == np.percentile(values, q)


@given(st.randoms(use_true_random=False))
def test_the_order_of_the_lines_does_not_matter(shuffler: random.Random) -> None:
    lines = FILE.read_text(encoding="utf-8").splitlines(keepends=True)
    shuffler.shuffle(lines)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "profile_export.jsonl"
        path.write_text("".join(lines), encoding="utf-8")
        shuffled, plain = read_records(path), read_records(FILE)
    assert sorted(shuffled.itl_ms) == sorted(plain.itl_ms)
    assert shuffled.measured_s == plain.measured_s
    for q in (50, 75, 90, 95):
        assert percentile(shuffled.itl_ms, q) == percentile(plain.itl_ms, q)


@pytest.mark.parametrize("cut", [1, 40, 500])
def test_a_cut_last_line_is_a_hole(
    lines: list[str], read: Callable[[list[str]], Records], cut: int
) -> None:
    records = read([*lines[:-1], lines[-1][:cut]])
    assert (records.holes, records.first_hole, records.completed) == (1, 51, 21)


def test_a_last_line_without_newline_is_whole(
    lines: list[str], read: Callable[[list[str]], Records]
) -> None:
    assert read([*lines[:-1], lines[-1].rstrip("\n")]).holes == 0


def test_zeros_left_by_a_full_disk_are_holes(
    lines: list[str], read: Callable[[list[str]], Records]
) -> None:
    records = read([*lines[:40], "\0" * 700 + "\n", *lines[41:]])
    assert (records.holes, records.first_hole) == (1, 41)


def test_a_repeated_line_is_refused_with_its_number(
    lines: list[str], read: Callable[[list[str]], Records]
) -> None:
    with pytest.raises(RecordsError, match=r"line 52: .*recorded before"):
        read([*lines, lines[30]])


@pytest.mark.parametrize(
    "foreign",
    ["[1, 2]\n", '"text"\n', "{}\n", '{"metadata": {}, "metrics": {}}\n', "7\n", "null\n"],
)
def test_a_foreign_line_is_refused_with_its_number(
    lines: list[str], read: Callable[[list[str]], Records], foreign: str
) -> None:
    with pytest.raises(RecordsError, match=r"line 6: this is not an aiperf record"):
        read([*lines[:5], foreign, *lines[5:]])


def test_another_unit_than_milliseconds_is_refused(
    lines: list[str], read: Callable[[list[str]], Records]
) -> None:
    def to_seconds(record: dict[str, Any]) -> None:
        record["metrics"]["request_latency"]["unit"] = "s"

    with pytest.raises(RecordsError, match="not an aiperf record"):
        read([edit(lines[-1], to_seconds)])


def test_a_record_of_another_run_is_refused() -> None:
    with pytest.raises(RecordsError, match="not of this run"):
        read_records(FILE, (0, 1_000_000_000))


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r["metadata"].update(request_end_ns=r["metadata"]["request_start_ns"] - 1),
        lambda r: r["metadata"].update(credit_issued_ns=r["metadata"]["request_end_ns"] + 10**10),
        lambda r: r["metrics"]["request_latency"].update(value=-3.0),
        lambda r: r["metrics"]["time_to_first_token"].update(value=10**9),
    ],
)
def test_a_clock_that_goes_backwards_is_refused(
    lines: list[str],
    read: Callable[[list[str]], Records],
    change: Callable[[dict[str, Any]], None],
) -> None:
    with pytest.raises(RecordsError, match="a clock went backwards"):
        read([edit(lines[-1], change)])


def test_errors_are_counted_by_category_and_dropped(
    lines: list[str], read: Callable[[list[str]], Records]
) -> None:
    def fail(record: dict[str, Any]) -> None:
        record["error"] = {"code": 500, "type": "HTTPError", "message": "no"}
        record["metrics"] = {"error_isl": {"value": 5, "unit": "tokens"}}

    def no_output(record: dict[str, Any]) -> None:
        del record["metrics"]["output_sequence_length"]

    def cancel(record: dict[str, Any]) -> None:
        record["metadata"]["was_cancelled"] = True

    changed = [edit(lines[-1], fail), edit(lines[-2], no_output), edit(lines[-3], cancel)]
    records = read([*lines[:-3], *changed])
    assert records.errors == {"HTTPError 500": 1, "no output": 1}
    assert (records.cancelled, records.completed, records.profiled) == (1, 19, 22)


def test_no_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="left no record file"):
        read_records(tmp_path / "profile_export.jsonl")


@pytest.mark.parametrize("text", ["", "[]", '{"a": '])
def test_a_damaged_summary_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile_export_aiperf.json"
    path.write_text(text)
    with pytest.raises(RecordsError, match="profile_export_aiperf"):
        read_summary(path)


def test_nan_in_a_summary_is_no_value(tmp_path: Path) -> None:
    path = tmp_path / "profile_export_aiperf.json"
    path.write_text('{"total_token_throughput": {"unit": "tokens/sec", "avg": NaN}}')
    assert read_summary(path).value("total_token_throughput") is None


@pytest.mark.timeout(120)
def test_200_mb_are_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "profile_export.jsonl"
    lines = [line for line in FILE.read_bytes().splitlines(keepends=True) if b'"profiling"' in line]
    written = requests = 0
    with path.open("wb") as handle:
        while written < 200_000_000:
            line = lines[requests % len(lines)].replace(
                b'"x_request_id":"', b'"x_request_id":"%d-' % requests
            )
            written += handle.write(line)
            requests += 1
    # VmHWM begins anew with the program; ru_maxrss would count what pytest held when it forked.
    code = (
        "import sys; from pathlib import Path; from results.records import read_records;"
        "records = read_records(Path(sys.argv[1]));"
        "status = Path('/proc/self/status').read_text();"
        "print(records.completed, int(status.split('VmHWM:')[1].split()[0]) // 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    completed, peak_mb = map(int, done.stdout.split())
    assert completed == requests
    assert peak_mb < 400
