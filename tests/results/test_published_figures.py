"""The published figures give the ratios that the documents printed, digit by digit."""

from __future__ import annotations

import pytest

from results.columns import Row
from results.compare import Cell
from results.published_figures import cells, change, rows, text, times


@pytest.fixture(scope="module")
def published() -> list[Row]:
    return rows()


@pytest.fixture(scope="module")
def compared(published: list[Row]) -> dict[tuple[str, str, int | None], Cell]:
    return {(c.config, c.metric, c.conc): c for c in cells(published) if c.kind != "gsm8k"}


MONO = {
    ("tp2", "interactivity_p90"): "1.42 1.34 1.24 1.20",
    ("tp2", "total_throughput"): "1.12 1.13 1.09 1.04",
    ("tp4", "interactivity_p90"): "1.52 1.44 1.45 1.35",
    ("tp4", "total_throughput"): "1.13 1.15 1.06 1.04",
}
EP2 = {
    "interactivity_p90": "-22.2% -32.6% -53.8% -56.5%",
    "output_throughput": "-11.5% -7.2% -13.5% -33.3%",
    "total_throughput": "-15.9% -9.7% -22.6% -37.3%",
}


@pytest.mark.parametrize(("config", "metric"), MONO)
def test_mono_ratios(
    compared: dict[tuple[str, str, int | None], Cell], config: str, metric: str
) -> None:
    found = [times(compared[config, metric, conc]) for conc in (1, 2, 4, 8)]
    assert found == [f"{r}×" for r in MONO[config, metric].split()]


@pytest.mark.parametrize("metric", EP2)
def test_ep2_changes(compared: dict[tuple[str, str, int | None], Cell], metric: str) -> None:
    config = "tp2 → tp1-dp2-ep2"
    assert [change(compared[config, metric, c]) for c in (1, 4, 16, 64)] == EP2[metric].split()


def test_single_stream_ratio(compared: dict[tuple[str, str, int | None], Cell]) -> None:
    assert times(compared["tp2", "output_throughput", 1]) == "1.31×"


def test_gsm8k_scores_agree_with_their_counts(published: list[Row]) -> None:
    counted = [r for r in published if r["gsm8k_strict_correct"] is not None]
    assert [r["gsm8k_strict_correct"] for r in counted] == [1281, 1286]
    for row in counted:
        share = int(str(row["gsm8k_strict_correct"])) / int(str(row["gsm8k_n"]))
        assert f"{100 * share:.3f}" == f"{100 * float(str(row['gsm8k_strict'])):.3f}"


def test_accounting_of_the_ep2_sweep(published: list[Row]) -> None:
    ep2 = [r for r in published if r["arm"] == "ep2-megamoe" and r["kind"] == "agentx"]
    assert [r["conc"] for r in ep2] == [1, 4, 16, 64]
    assert [r["completed"] for r in ep2] == [258, 598, 2231, 5041]
    assert [r["cancelled"] for r in ep2] == [1, 0, 0, 10]
    assert [r["warmup_errors"] for r in ep2] == [0, 0, 0, 2]
    assert [r["errors"] for r in ep2] == [0, 0, 0, 0]
    assert [r["acceptance_length"] for r in ep2] == [3.510312, 3.509701, 3.510071, 3.509569]
    tp2 = [r for r in published if r["arm"] == "tp2"]
    assert [r["errors"] for r in tp2] == [0, 0, 1, 2]
    assert [r["warmup_errors"] for r in tp2] == [0, 0, 0, 2]


def test_both_tp2_references_are_kept_with_their_source(published: list[Row]) -> None:
    at_c1 = {
        r["interactivity_p90"]: str(r["source"]).split(",")[0]
        for r in published
        if r["config"] == "tp2" and r["conc"] == 1 and r["slot"] == 0 and r["kind"] == "agentx"
    }
    assert at_c1 == {302.6: "ROCm/aiter#6196", 308.63: "ROCm/aiter#6154"}


def test_every_row_names_its_document_and_table(published: list[Row]) -> None:
    for row in published:
        assert str(row["source"]).startswith("ROCm/aiter#")
        assert ", table " in str(row["source"]) or ", text " in str(row["source"])
        assert row["node"] or not row["valid"]


def test_figures_without_a_point_and_the_wrong_protocol_are_kept_but_enter_no_ratio(
    published: list[Row],
) -> None:
    out = [r for r in published if not r["valid"]]
    assert [r["ttft_p90_ms"] for r in out if r["ttft_p90_ms"]] == [470, 810, 1080, 1280]
    assert [r["gsm8k_strict"] for r in out if r["gsm8k_strict"]] == [0.908]
    assert all(r["invalid_reasons"] for r in out)


def test_the_text_says_on_top_that_these_are_no_verdicts() -> None:
    shown = text()
    head = shown[: shown.index("tp2 → tp1-dp2-ep2")]
    assert "Compared across: node, image, config" in head
    assert "not same-node verdicts" in head
    for printed in ("1.42×", "-37.3%", "1.31×", "0.97119"):
        assert printed in shown
