"""Point folders, whole and damaged, to rows."""

from __future__ import annotations

import shutil

import pytest
from point_folder import (
    AFTER,
    BEFORE,
    FIRST_NS,
    LAST_NS,
    MakePoint,
    ReadRecords,
    edit_summary,
    reasons,
    write_scrapes,
)

from results.columns import BY_NAME
from results.score import score


def test_a_whole_point_is_valid_and_has_the_metrics_of_its_artefacts(make_point: MakePoint) -> None:
    row = score(make_point())
    assert row["valid"] is True, reasons(row)
    assert row["invalid_reasons"] is None
    assert row.keys() == BY_NAME.keys()
    assert row["interactivity_p90"] == pytest.approx(1000 / 42.421090061798836)
    assert row["total_throughput"] == pytest.approx((11137 + 681) / 20.959720032)
    assert row["ttft_p90_ms"] == pytest.approx(536.5147444)
    assert row["source"] == "records"
    assert row["token_count_source"] == "server"
    assert (row["records"], row["warmup_records"], row["completed"]) == (51, 29, 22)
    assert (row["errors"], row["cancelled"], row["single_token"]) == (0, 0, 0)


def test_interactivity_is_the_slow_tail(make_point: MakePoint) -> None:
    row = score(make_point())
    tail = [float(str(row[f"interactivity_p{q}"])) for q in (50, 75, 90, 95)]
    assert tail == sorted(tail, reverse=True)
    assert row["interactivity_p99"] is None, "22 requests are too few for a p99"


def test_server_counters_are_taken_over_the_profiling_window_only(make_point: MakePoint) -> None:
    row = score(make_point())
    assert row["prefix_cache_hit_rate"] == pytest.approx(8992 / 11137)
    assert row["prefix_cache_hit_rate_client"] == pytest.approx(420 / 533)
    assert row["kv_cache_usage_max"] == 0.25
    assert row["preemptions"] == 0
    assert row["acceptance_length"] is None


def test_acceptance_overall_and_by_position(make_point: MakePoint) -> None:
    folder = make_point(spec_method="ngram", spec_tokens=3, rejection="standard")
    pos = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="%d"}'
    counters = {
        "vllm:spec_decode_num_drafts_total": 100.0,
        "vllm:spec_decode_num_draft_tokens_total": 300.0,
        "vllm:spec_decode_num_accepted_tokens_total": 140.0,
        pos % 0: 80.0,
        pos % 1: 40.0,
        pos % 2: 20.0,
    }
    before = BEFORE | dict.fromkeys(counters, 7.0)
    after = AFTER | {name: value + 7.0 for name, value in counters.items()}
    write_scrapes(folder, [(FIRST_NS, before), (LAST_NS, after)])
    row = score(folder)
    assert row["acceptance_length"] == pytest.approx(2.4)
    assert row["acceptance_rate"] == pytest.approx(140 / 300)
    assert [row[f"acceptance_rate_pos{i}"] for i in range(4)] == [0.8, 0.4, 0.2, None]
    assert (row["drafts"], row["draft_tokens"], row["accepted_tokens"]) == (100, 300, 140)


def test_a_server_without_prefix_cache_has_no_hit_rate(make_point: MakePoint) -> None:
    folder = make_point()
    off = {"vllm:prefix_cache_queries_total": 0.0, "vllm:prefix_cache_hits_total": 0.0}
    write_scrapes(folder, [(FIRST_NS, BEFORE | off), (LAST_NS, AFTER | off)])
    assert score(folder)["prefix_cache_hit_rate"] is None


def test_goodput_counts_requests_that_meet_every_slo(
    make_point: MakePoint, records_of: ReadRecords
) -> None:
    folder = make_point(slo={"ttft_ms": 300.0, "itl_ms": 40.0})
    good = sum(
        r["metrics"]["time_to_first_token"]["value"] <= 300
        and r["metrics"]["inter_token_latency"]["value"] <= 40
        for r in records_of(folder)
        if r["metadata"]["benchmark_phase"] == "profiling"
    )
    row = score(folder)
    assert 0 < good < 22
    assert row["goodput"] == pytest.approx(good / 20.959720032)
    assert row["goodput_fraction"] == pytest.approx(good / 22)


def test_no_slo_no_goodput(make_point: MakePoint) -> None:
    assert score(make_point(slo=None))["goodput"] is None


def test_throughput_per_gpu_divides_by_all_gpus(make_point: MakePoint) -> None:
    row = score(make_point(tp=2, dp=2, gpus=4))
    assert row["output_throughput_per_gpu"] == pytest.approx(
        float(str(row["output_throughput"])) / 4
    )


def test_a_hole_without_a_complete_summary_is_invalid(make_point: MakePoint) -> None:
    folder = make_point()
    path = folder / "aiperf" / "profile_export.jsonl"
    path.write_bytes(path.read_bytes()[:-100])
    (folder / "aiperf" / "profile_export_aiperf.json").unlink()
    row = score(folder)
    assert row["valid"] is False
    assert "no complete summary" in reasons(row)


@pytest.mark.parametrize("name", ["point.json", "run.json", "prometheus.jsonl", "aiperf"])
def test_a_missing_artefact_is_a_reason_not_an_error(make_point: MakePoint, name: str) -> None:
    folder = make_point()
    target = folder / name
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    row = score(folder)
    assert row["valid"] is False
    assert row["schema"] == 1
    assert str(folder) not in reasons(row)


@pytest.mark.parametrize("name", ["point.json", "run.json", "prometheus.jsonl"])
def test_a_garbled_artefact_is_a_reason_not_an_error(make_point: MakePoint, name: str) -> None:
    folder = make_point()
    (folder / name).write_bytes(b"\xff\x00{{{")
    assert score(folder)["valid"] is False


def test_a_duplicated_record_is_an_invalid_row(make_point: MakePoint) -> None:
    folder = make_point()
    path = folder / "aiperf" / "profile_export.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, lines[-1]]))
    row = score(folder)
    assert row["valid"] is False
    assert "recorded before" in reasons(row)


def test_tokens_that_the_server_never_made_fail(make_point: MakePoint) -> None:
    folder = make_point()
    short = {"vllm:generation_tokens_total": BEFORE["vllm:generation_tokens_total"] + 600}
    write_scrapes(folder, [(FIRST_NS, BEFORE), (LAST_NS, AFTER | short)])
    assert "the server made 600" in reasons(score(folder))


def test_counters_that_fall_mean_a_restarted_server(make_point: MakePoint) -> None:
    folder = make_point()
    write_scrapes(folder, [(FIRST_NS, BEFORE), (LAST_NS, dict.fromkeys(AFTER, 1.0))])
    assert "server-restarted" in reasons(score(folder))


def test_counters_that_do_not_cover_the_window_are_not_used(make_point: MakePoint) -> None:
    folder = make_point()
    for scrapes in ([(FIRST_NS, BEFORE)], [(FIRST_NS + 1, BEFORE), (LAST_NS, AFTER)]):
        write_scrapes(folder, scrapes)
        row = score(folder)
        assert row["prefix_cache_hit_rate"] is None
        assert "do not cover" in reasons(row)


def test_cancellations_at_the_drain_are_read_from_the_log(make_point: MakePoint) -> None:
    folder = make_point()
    log = folder / "aiperf" / "logs" / "aiperf.log"
    log.write_text(log.read_text().replace("=22, cancelled=0", "=22, cancelled=3"))
    assert score(folder)["cancelled"] == 3


def test_more_records_than_the_client_counted_are_an_invalid_row(make_point: MakePoint) -> None:
    folder = make_point()
    edit_summary(folder, request_count={"unit": "requests", "avg": 20.0})
    assert "22 completed requests are recorded, the client counted 20" in reasons(score(folder))


def test_failed_requests_that_were_never_written_are_a_hole(make_point: MakePoint) -> None:
    folder = make_point()
    error = {"error_details": {"type": "HTTPError", "code": 500, "message": "no"}, "count": 2}
    edit_summary(
        folder, error_request_count={"unit": "requests", "avg": 3.0}, error_summary=[error]
    )
    row = score(folder)
    assert row["source"] == "summary"
    assert row["errors_by_category"] == '{"HTTPError 500": 2, "uncategorised": 1}'
    assert (row["errors"], row["completed"], row["profiled"]) == (3, 22, 25)
