"""The report of a campaign: what it says, and what it says when something is gone."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator, Sequence
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from point_folder import DATA, FIRST_NS, LAST_NS, arm_row, write_samples, write_scrapes

from results.columns import Row
from results.compare import compare
from results.report import render, write_report
from results.report_data import load, metric_label
from results.report_figures import drawing_style, forest, pareto, pareto_points
from results.report_provenance import facts, server_diffs
from results.report_series import read_point
from results.report_words import limits, verdicts
from results.tables import write_tables
from samenode.errors import UserError
from serve.samples import Process, Sample, encode_processes

SECOND = 1_000_000_000
ARMS = ("mono-off", "mono-on", "upstream-mono")
HOSTILE = "<script>alert('x')</script> & \"q\" $x_1$ Ünïcödé 漢字"


def made_rows(
    *,
    configs: Sequence[str] = ("tp2",),
    concs: Sequence[int] = (8,),
    arms: Sequence[str] = ARMS[:2],
    pairs: int = 3,
    effect: float = 1.2,
    campaign: str = "made",
    **changes: Any,
) -> list[Row]:
    """Rows of a campaign in which each arm is ``effect`` times the one before it, with noise."""
    rows = []
    for place, config in enumerate(configs):
        for conc in concs:
            for repeat in range(1, pairs + 1):
                for slot, arm in enumerate(arms):
                    noise = 1 + 0.004 * math.sin(7 * repeat + 3 * slot + conc + place)
                    gain = effect**slot * noise
                    row = arm_row(0, None) | {
                        "campaign": campaign,
                        "point": f"{len(rows) + 1:03}-{arm}-{config}-c{conc}-r{repeat}",
                        "slot": slot,
                        "arm": arm,
                        "baseline": arms[0],
                        "config": config,
                        "conc": conc,
                        "repeat": repeat,
                        "launch": len(arms) * place + slot + 1,
                        "gpus": 2,
                        "interactivity_p50": 130.0 / math.sqrt(conc) * gain * (1 + 0.06 * place),
                        "interactivity_p90": 100.0 / math.sqrt(conc) * gain * (1 + 0.06 * place),
                        "total_throughput": 4000.0 * conc**0.6 * gain / (1 + 0.2 * place),
                        "total_throughput_per_gpu": 2000.0 * conc**0.6 * gain / (1 + 0.2 * place),
                        "ttft_p50_ms": 300.0 * math.sqrt(conc) / gain,
                        "completed": 100,
                        "errors": 0,
                        "source": "records",
                        "spec_method": "none",
                    }
                    rows.append(row | changes)
    return rows


def made_campaign(folder: Path, rows: Sequence[Row]) -> Path:
    """A campaign's folder without raw artefacts."""
    for row in rows:
        path = folder / "points" / str(row["point"]) / "row.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(row), encoding="utf-8")
        launch = folder / "servers" / f"{row['launch']:03}"
        launch.mkdir(parents=True, exist_ok=True)
        on = row["slot"]
        command = (
            f"VLLM_LOG=1 {'DSV41_MONO=1 ' if on else ''}vllm serve /m --port 8000 "
            f"--max-num-seqs {16 + 16 * bool(on)}{' --enforce-eager' if on else ''}"
        )
        server = {"arm": row["arm"], "config": row["config"], "command": command}
        (launch / "server.json").write_text(json.dumps(server), encoding="utf-8")
    node = {
        "host": {"name": "knoten-ä", "os": "Debian", "kernel": "6.18", "machine": "x86_64"},
        "cpu": {"model": "EPYC", "cores": 2, "threads": 2, "virtual": True},
        "gpus": [],
        "packages": {"client": {}, "server": {"vllm": "0.32.0"}},
        "git": {"revision": "0123456789abcdef", "dirty": True},
    }
    (folder / "node.json").write_text(json.dumps(node), encoding="utf-8")
    plan = {"schema": 1, "samenode": "0.1.0", "recipe": {"about": "made"}}
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    write_tables(folder, rows, [cell.row() for cell in compare(rows)])
    return folder


def add_artefacts(folder: Path, row: Row, *, scrapes: bool = True, samples: bool = True) -> None:
    """Give an AgentX point the recorded request records, and counters and samples around them."""
    point = folder / "points" / str(row["point"])
    shutil.copytree(DATA / "aiperf", point / "aiperf")
    ticks = range(FIRST_NS - 10 * SECOND, LAST_NS + 4 * SECOND, SECOND)
    if scrapes:
        write_scrapes(point, [(t, _counters(i, row)) for i, t in enumerate(ticks)])
    if samples:
        write_samples(
            point,
            [
                Sample(t, "cpu", clock_mhz=2400.0 + 5 * (i % 7), util_pct=90.0, power_w=65.0)
                for i, t in enumerate(ticks)
            ],
        )


def _counters(second: int, row: Row) -> dict[str, float]:
    hits = 30.0 if row["slot"] else 10.0
    return {
        "vllm:prompt_tokens_total": 100.0 * second,
        "vllm:generation_tokens_total": 20.0 * second,
        'vllm:prompt_tokens_by_source_total{source="local_compute"}': (100 - hits) * second,
        'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}': hits * second,
        "vllm:prefix_cache_queries_total": 100.0 * second,
        "vllm:prefix_cache_hits_total": hits * second,
    }


def gsm8k_rows(campaign: str = "made", arms: Sequence[str] = ARMS[:2]) -> list[Row]:
    """One GSM8K row an arm, as scored from the recorded lm-eval folder."""
    return [
        arm_row(0, None)
        | {
            "campaign": campaign, "kind": "gsm8k", "point": f"{90 + slot:03}-{arm}-gsm8k",
            "slot": slot, "arm": arm, "config": "tp2", "conc": 8, "launch": slot + 1,
            "gsm8k_n": 12, "gsm8k_strict": 0.25, "gsm8k_strict_correct": 3,
            "gsm8k_flexible": 0.5, "gsm8k_flexible_correct": 6, "gsm8k_margin": 0.05,
            "gsm8k_floor": 0.2, "gsm8k_empty_rate": 0.0833, "gsm8k_truncation_rate": 0.0833,
        }
        for slot, arm in enumerate(arms)
    ]  # fmt: skip


def add_items(folder: Path, row: Row, flip: int | None = None, question: str | None = None) -> None:
    """The recorded lm-eval folder; ``flip``: the item whose outcome is turned round."""
    point = folder / "points" / str(row["point"])
    shutil.copytree(DATA / "lm_eval", point / "lm_eval")
    (path,) = point.glob("lm_eval/**/samples_*.jsonl")
    samples = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for sample in samples:
        if sample["doc_id"] == flip:
            sample["exact_match"] = 1.0 - sample["exact_match"]
            sample["filtered_resps"] = ["flipped"]
        if question is not None:
            sample["doc"]["question"] = question
    path.write_text("".join(json.dumps(s) + "\n" for s in samples), encoding="utf-8")


class _Reader(HTMLParser):
    """The page's visible text, its tags and the addresses that it refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.hidden += tag in ("style", "script")
        for name, value in attrs:
            if name in ("href", "src", "xlink:href", "srcset", "data", "action"):
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("style", "script")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.words.append(data)


def read(page: Path | str) -> _Reader:
    reader = _Reader()
    reader.feed(page if isinstance(page, str) else page.read_text(encoding="utf-8"))
    return reader


def text_of(folder: Path) -> str:
    """The text of the campaign's report, spaces made one."""
    page, _ = render(load(folder))
    return " ".join(" ".join(read(page).words).split())


@pytest.fixture(autouse=True)
def _style() -> Iterator[None]:
    with drawing_style():
        yield


# ---- the verdict


def aa_beside(folder: Path, **changes: Any) -> None:
    """An A/A campaign of eight pairs beside ``folder``: it gives the floors."""
    rows = made_rows(arms=("mono-off", "mono-off"), effect=1.0, pairs=8, campaign="aa", **changes)
    made_campaign(folder.parent / "aa", rows)


def test_the_verdict_comes_first_and_in_the_words_of_the_statistics(tmp_path: Path) -> None:
    folder = made_campaign(tmp_path / "made", made_rows(pairs=6))
    aa_beside(folder)
    text = text_of(folder)
    data = load(folder)
    (row,) = [r for r in data.comparison if r["metric"] == "interactivity_p90"]
    assert row["verdict"] == "faster"
    assert f"mono-on against mono-off interactivity p90 ▲ faster {row['ratio']:.3f}×" in text
    assert f"[{row['low']:.3f}, {row['high']:.3f}] {row['why']}." in text
    assert f"Holm p {row['p_holm']:.3g}; A/A floor: {100 * float(str(row['floor'])):.2f} %." in text
    assert text.index("▲ faster") < text.index("What this cannot say") < text.index("Trade-off")


def test_a_lower_latency_is_faster_and_a_lower_throughput_slower(tmp_path: Path) -> None:
    folder = made_campaign(tmp_path / "made", made_rows(pairs=6, effect=0.8))
    aa_beside(folder)
    (verdict,) = verdicts(load(folder))
    words = {line.label: [count.word for count in line.counts] for line in verdict.headlines}
    assert words == {
        "interactivity p90": ["slower"], "total throughput": ["slower"], "TTFT p50": ["slower"],
    }  # fmt: skip


def test_one_pair_has_a_ratio_no_interval_and_no_verdict(tmp_path: Path) -> None:
    text = text_of(made_campaign(tmp_path / "made", made_rows(pairs=1)))
    assert "interactivity p90 ○ no verdict" in text
    assert "one pair, no interval." in text
    assert "Whether a ratio from one pair is more than noise: it has no interval." in text
    assert "faster" not in text.replace("neither faster nor slower", "")


def test_without_a_floor_the_page_says_how_to_get_one(tmp_path: Path) -> None:
    folder = made_campaign(tmp_path / "made", made_rows())
    text = text_of(folder)
    assert "no A/A floor for this node and workload, measure it to have a verdict" in text
    assert "(ARMS=off,off) gives one" in text


def test_three_pairs_cannot_reach_p_005_and_the_page_says_so(tmp_path: Path) -> None:
    data = load(made_campaign(tmp_path / "made", made_rows(pairs=3)))
    assert any(
        "with 3 pairs the permutation p is at least 0.25; to reach 0.05 over 1 point takes 6 pairs"
        in limit
        for limit in limits(data)
    )
    assert not any("More than p allows" in limit for limit in limits(load(
        made_campaign(tmp_path / "more", made_rows(pairs=6))
    )))  # fmt: skip


def test_several_points_are_counted_by_word(tmp_path: Path) -> None:
    rows = made_rows(pairs=6, concs=(1, 8))
    for row in rows:
        if row["conc"] == 1 and row["slot"] == 1:
            row["interactivity_p90"] = 100.0 * (1 + 0.05 * (-1) ** int(str(row["repeat"])))
    folder = made_campaign(tmp_path / "made", rows)
    aa_beside(folder, concs=(1, 8))
    line = verdicts(load(folder))[0].headlines[0]
    assert {count.word: count.points for count in line.counts} == {
        "faster": 1, "no difference seen": 1,
    }  # fmt: skip
    assert "faster at 1" in text_of(folder)


def test_three_arms_have_a_verdict_each(tmp_path: Path) -> None:
    folder = made_campaign(tmp_path / "made", made_rows(arms=ARMS))
    text = text_of(folder)
    assert "mono-on against mono-off" in text
    assert "upstream-mono against mono-off" in text


def test_an_aa_campaign_names_its_slots_and_shows_its_noise(tmp_path: Path) -> None:
    rows = made_rows(arms=("mono-off", "mono-off"), effect=1.0, pairs=4)
    text = text_of(made_campaign(tmp_path / "made", rows))
    assert "A/A campaign made" in text
    assert "mono-off (slot 1) against mono-off (slot 0)" in text
    assert "● no difference seen" in text
    assert "Both sides are the same arm, so their ratios are this node's noise." in text


def test_a_campaign_of_one_arm_compares_nothing(tmp_path: Path) -> None:
    text = text_of(made_campaign(tmp_path / "made", made_rows(arms=ARMS[:1])))
    assert "Only one arm has a row so far, so nothing is compared." in text


# ---- rows that are invalid, or scored from the summary


def test_invalid_rows_stay_on_the_page_with_every_reason_and_out_of_the_ratio(
    tmp_path: Path,
) -> None:
    rows = made_rows()
    rows[1] |= {
        "valid": False,
        "invalid_reasons": "throttled: gpu0: 12 % of the window; twice; errors: 5 errors to 20",
    }
    folder = made_campaign(tmp_path / "made", rows)
    text = text_of(folder)
    assert "6 rows, 5 valid, 1 invalid : kept here and out of every ratio" in text
    assert "throttled gpu0: 12 % of the window; twice." in text
    assert "errors 5 errors to 20." in text
    assert "Clocks were held down for more than 1 % of the point." in text
    assert "Up to 1 pair a point left out" in text
    assert {row["n"] for row in load(folder).comparison} == {2}


def test_a_campaign_of_invalid_rows_alone_is_reported(tmp_path: Path) -> None:
    rows = made_rows(valid=False, invalid_reasons="server-died: exit code 137")
    text = text_of(made_campaign(tmp_path / "made", rows))
    assert "6 rows, 0 valid" in text
    assert "No valid row has both an interactivity and a throughput." in text
    assert text.count("exit code 137") == 6


def test_a_row_scored_from_the_summary_says_so(tmp_path: Path) -> None:
    note = "scored from the client's complete summary: line 7 is cut"
    rows = made_rows(source="summary", note=note)
    assert note in text_of(made_campaign(tmp_path / "made", rows))


# ---- what is gone


def test_points_without_artefacts_are_named_and_the_rest_is_drawn(tmp_path: Path) -> None:
    rows = made_rows(pairs=1)
    folder = made_campaign(tmp_path / "made", rows)
    add_artefacts(folder, rows[0])
    add_artefacts(folder, rows[1], scrapes=False, samples=False)
    text = text_of(folder)
    name = rows[1]["point"]
    assert f"Not there: prometheus.jsonl of {name}; samples.csv of {name}." in text
    assert "seconds since the profiling window began" in text


def test_a_campaign_without_any_artefact_says_what_is_missing(tmp_path: Path) -> None:
    rows = made_rows(pairs=2)
    folder = made_campaign(tmp_path / "made", rows)
    text = text_of(folder)
    assert "Nothing to draw of tp2 c8; not there: profile_export.jsonl (so the profiling" in text
    assert "prometheus.jsonl of every point; samples.csv of every point." in text


def test_the_csvs_alone_make_a_report_and_keep_the_recorded_verdict(tmp_path: Path) -> None:
    rows = made_rows(pairs=6) + gsm8k_rows()
    folder = made_campaign(tmp_path / "made", rows)
    aa_beside(folder)
    for row in rows[-2:]:
        add_items(folder, row)
    data = load(folder)
    write_tables(folder, rows, data.comparison)
    for name in ("points", "servers"):
        shutil.rmtree(folder / name)
    shutil.rmtree(folder.parent / "aa")
    for name in ("plan.json", "node.json"):
        (folder / name).unlink()
    text = text_of(folder)
    assert "The point folders are gone: the rows are those of points.csv." in text
    assert "plan.json is missing or garbled" in text
    assert "The server commands are not there" in text
    assert "▲ faster" in text
    assert "(as recorded in comparison.csv)" in text
    assert "● not settled (n too small)" in text


def test_a_recorded_verdict_on_other_figures_is_not_taken(tmp_path: Path) -> None:
    rows = made_rows(pairs=6)
    folder = made_campaign(tmp_path / "made", rows)
    aa_beside(folder)
    write_tables(folder, rows, load(folder).comparison)
    shutil.rmtree(folder.parent / "aa")
    path = folder / "points" / str(rows[1]["point"]) / "row.json"
    path.write_text(json.dumps(rows[1] | {"interactivity_p90": 43.0}), encoding="utf-8")
    words = {row["metric"]: row["verdict"] for row in load(folder).comparison}
    assert words["interactivity_p90"] is None
    assert words["total_throughput"] == "faster"


def test_a_campaign_that_is_not_done_says_how_much_is_left(tmp_path: Path) -> None:
    folder = made_campaign(tmp_path / "made", made_rows(pairs=1))
    plan = {"schema": 1, "launches": [{"points": [{}, {}]}, {"points": [{}]}]}
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    assert load(folder).missing == ["1 of 3 planned points have no row yet."]


def test_an_empty_folder_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no scored point"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_gsm8k_and_no_speculation_are_said(tmp_path: Path) -> None:
    text = text_of(made_campaign(tmp_path / "made", made_rows()))
    assert "GSM8K was not run in this campaign." in text
    assert "No row decoded speculatively." in text
    assert "Anything about accuracy: GSM8K was not compared in this campaign." in text


# ---- accuracy and acceptance


def test_the_items_that_flipped_are_listed_with_both_answers(tmp_path: Path) -> None:
    rows = gsm8k_rows()
    folder = made_campaign(tmp_path / "made", rows)
    add_items(folder, rows[0])
    add_items(folder, rows[1], flip=0)
    data = load(folder)
    strict = next(a for a in data.accuracy if a.row["metric"] == "gsm8k_strict")
    (flip,) = strict.flips
    assert (flip.item, flip.lost, flip.target, flip.answers) == (0, True, "18", ("18", "flipped"))
    text = text_of(folder)
    assert "GSM8K strict ● not settled (n too small) 25.0 % → 25.0 %" in text
    assert "▼ lost Janet’s ducks lay 16 eggs per day." in text
    assert "25.0 % [8.9, 53.2], 3 of 12" in text


def test_arms_that_answered_different_items_are_reported_untested(tmp_path: Path) -> None:
    rows = gsm8k_rows()
    folder = made_campaign(tmp_path / "made", rows)
    add_items(folder, rows[0])
    add_items(folder, rows[1])
    (path,) = (folder / "points" / str(rows[1]["point"])).glob("lm_eval/**/samples_*.jsonl")
    lines = [line for line in path.read_text(encoding="utf-8").splitlines()
             if json.loads(line)["doc_id"] != 3]  # fmt: skip
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert "GSM8K is not tested: The arms answered different items" in text_of(folder)


def test_acceptance_by_position_is_drawn_and_tabled(tmp_path: Path) -> None:
    rows = made_rows(
        spec_method="dspark", spec_tokens=2, rejection="synthetic", acceptance_length=2.415,
        target_acceptance_length=2.4, acceptance_rate_pos0=0.8125, acceptance_rate_pos1=0.6025,
    )  # fmt: skip
    folder = made_campaign(tmp_path / "made", rows)
    text = text_of(folder)
    assert "draft position" in text
    assert "dspark 2 synthetic 2.415 2.4 0.812 0.603" in text
    assert "position 1" in text and "position 2" not in text


# ---- figures


def test_the_front_is_each_arms_own_and_dominated_points_are_shown(tmp_path: Path) -> None:
    rows = made_rows(concs=(1, 2, 4), pairs=1)
    for row in rows:
        if row["conc"] == 2:
            row["total_throughput_per_gpu"] = 1.0
    folder = made_campaign(tmp_path / "made", rows)
    points = pareto_points(load(folder))
    assert [(p.side.slot, p.label, p.on_front) for p in points] == [
        (slot, f"tp2 c{conc}", conc != 2) for slot in (0, 1) for conc in (1, 2, 4)
    ]
    assert text_of(folder).count("dominated") >= 3


def test_pareto_points_are_geometric_means_of_the_valid_rows(tmp_path: Path) -> None:
    rows = made_rows(arms=ARMS[:1], pairs=3)
    for row, x in zip(rows, (10.0, 40.0, 7.0), strict=True):
        row |= {"interactivity_p90": x, "total_throughput_per_gpu": 10 * x}
    rows[2]["valid"] = False
    (point,) = pareto_points(load(made_campaign(tmp_path / "made", rows)))
    assert (point.x, point.y) == pytest.approx((20.0, 200.0))
    assert point.each == ((10.0, 100.0), (40.0, 400.0))


def test_the_median_stands_in_where_p90_is_suppressed(tmp_path: Path) -> None:
    rows = made_rows(interactivity_p90=None)
    assert "interactivity p50 ○ no verdict" in text_of(made_campaign(tmp_path / "made", rows))


def test_a_figure_takes_its_colours_from_the_page_and_its_text_stays_text(tmp_path: Path) -> None:
    data = load(made_campaign(tmp_path / "made", made_rows()))
    for drawing in (pareto(data), forest(data)):
        assert drawing is not None
        svg = drawing.svg()
        assert re.findall(r"#[0-9a-fA-F]{6}\b", svg) == []
        assert "var(--ink)" in svg and "<text" in svg
        ids = re.findall(r'\bid="([^"]*)"', svg)
        assert len(ids) == len(set(ids))
        for used in re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', svg):
            assert "".join(used) in ids


def test_four_configs_at_four_concurrencies_with_three_arms(tmp_path: Path) -> None:
    rows = made_rows(
        configs=("tp1", "tp2", "tp4", "tp2-dp2-ep4"), concs=(1, 4, 16, 64), arms=ARMS, pairs=2
    )
    folder = made_campaign(tmp_path / "made", rows)
    text = text_of(folder)
    assert len(pareto_points(load(folder))) == 48
    assert text.count("96 rows") == 2
    for config in ("tp1", "tp2", "tp4", "tp2-dp2-ep4"):
        for conc in (1, 4, 16, 64):
            assert f"{config} c{conc} upstream-mono" in text
    assert len(text) < 200_000


# ---- series


def test_rates_and_hit_shares_are_the_growth_of_the_counters(tmp_path: Path) -> None:
    rows = made_rows(pairs=1)
    folder = made_campaign(tmp_path / "made", rows)
    add_artefacts(folder, rows[1])
    point = read_point(folder / "points" / str(rows[1]["point"]), rows[1])
    assert point.window_s == pytest.approx((LAST_NS - FIRST_NS) / SECOND)
    assert (point.step_s, point.devices, point.missing) == (1.0, "CPU", [])
    times, rate = point.series["throughput"]
    known = rate[~(rate != rate)]
    assert known == pytest.approx(120.0)
    assert len(known) == 34 and times[0] == pytest.approx(-9.5)
    hits = point.series["cache_hit"][1]
    assert hits[hits == hits] == pytest.approx(30.0)
    assert point.series["power"][1] == pytest.approx(65.0)


def test_a_counter_that_fell_leaves_a_gap_and_a_cut_line_is_passed_over(tmp_path: Path) -> None:
    scrapes = [(t * SECOND, {"vllm:prompt_tokens_total": v})
               for t, v in enumerate([0.0, 50.0, 7.0, 57.0])]  # fmt: skip
    write_scrapes(tmp_path, scrapes)
    with (tmp_path / "prometheus.jsonl").open("a", encoding="utf-8") as handle:
        handle.write('{"t_ns": 99')
    point = read_point(tmp_path, made_rows()[0])
    rate = point.series["throughput"][1]
    assert rate[:3].tolist() == pytest.approx([50.0, math.nan, 50.0], nan_ok=True)
    assert point.window_s is None
    assert "cache_hit" not in point.series


def test_a_server_that_looks_nothing_up_has_no_hit_series(tmp_path: Path) -> None:
    counters = {
        'vllm:prompt_tokens_by_source_total{source="local_compute"}': 1.0,
        "vllm:prefix_cache_queries_total": 0.0,
    }
    write_scrapes(tmp_path, [(t * SECOND, {k: v * t for k, v in counters.items()})
                             for t in range(4)])  # fmt: skip
    assert "cache_hit" not in read_point(tmp_path, made_rows()[0]).series


def test_only_the_servers_gpus_count_the_slowest_clock_and_the_power_together(
    tmp_path: Path,
) -> None:
    own = encode_processes([Process(7, "vllm", True)])
    samples = [
        Sample(t * SECOND, device, clock_mhz=clock, power_w=500.0, util_pct=80.0, processes=who)
        for t in range(5)
        for device, clock, who in (
            ("gpu0", 1900.0, own), ("gpu1", 1500.0, own), ("gpu2", 300.0, "none"),
        )
    ]  # fmt: skip
    write_samples(tmp_path, [*samples, Sample(0, "cpu", clock_mhz=2000.0)])
    point = read_point(tmp_path, made_rows()[0])
    assert point.devices == "GPU"
    assert set(point.series["clock"][1]) == {1500.0}
    assert set(point.series["power"][1]) == {1000.0}


# ---- provenance


def test_the_servers_differences_are_environment_flags_and_packages(tmp_path: Path) -> None:
    folder = made_campaign(tmp_path / "made", made_rows(configs=("tp1", "tp2"), pairs=1))
    for launch in ("002", "004"):
        path = folder / "servers" / launch / "server.json"
        server = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(server | {"packages": {"vllm": "0.33.0"}}), encoding="utf-8")
    (diff,) = server_diffs(load(folder))
    assert diff.configs == ("tp1", "tp2")
    assert [(d.what, *d.values) for d in diff.differences] == [
        ("--max-num-seqs", "16", "32"),
        ("DSV41_MONO", "not set", "1"),
        ("--enforce-eager", "not set", "set"),
        ("package vllm", "0.32.0", "0.33.0"),
    ]
    marked = [word.text for word in diff.commands[1][1] if word.differs]
    assert marked == ["DSV41_MONO=1", "--max-num-seqs 32", "--enforce-eager"]


def test_the_commit_and_the_node_are_named(tmp_path: Path) -> None:
    found = dict(facts(load(made_campaign(tmp_path / "made", made_rows(pairs=1)))))
    assert found["samenode"] == "0.1.0, commit 0123456789ab, with uncommitted changes"
    assert found["CPU"] == "EPYC, 2 cores, 2 threads, virtual"
    assert "GPUs" not in found


def test_equal_servers_differ_in_nothing(tmp_path: Path) -> None:
    rows = made_rows(arms=("mono-off", "mono-off"), launch=1)
    text = text_of(made_campaign(tmp_path / "made", rows))
    assert "In nothing: command, environment and packages are the same." in text


# ---- the files


def test_the_page_is_whole_and_refers_to_nothing_outside(tmp_path: Path) -> None:
    rows = made_rows() + gsm8k_rows()
    folder = made_campaign(tmp_path / "made", rows)
    for row in rows[:2]:
        add_artefacts(folder, row)
    write_report(folder)
    page = read(folder / "report.html")
    assert "script" not in page.tags and "img" not in page.tags
    assert all(link.startswith("#") or link == "data:," for link in page.links)
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    raw = (folder / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"@import|url\((?!#)", raw)


def test_text_is_shown_and_never_run(tmp_path: Path) -> None:
    rows = made_rows(arms=("mono-off", f"on {HOSTILE}"), model=HOSTILE, note=HOSTILE)
    rows[0] |= {"valid": False, "invalid_reasons": f"errors: {HOSTILE}"}
    gsm8k = gsm8k_rows(arms=("mono-off", f"on {HOSTILE}"))
    for number, row in enumerate([*rows, *gsm8k]):
        row["point"] = f"{number:03}"
    folder = made_campaign(tmp_path / "made", [*rows, *gsm8k])
    add_items(folder, gsm8k[0], question=HOSTILE)
    add_items(folder, gsm8k[1], flip=0, question=HOSTILE)
    raw, _ = render(load(folder))
    text = " ".join(" ".join(read(raw).words).split())
    assert "<script" not in raw
    assert "script" not in read(raw).tags
    assert text.count(HOSTILE) >= 10
    figure = raw[raw.index("<svg") : raw.index("</svg>")]
    assert f"on {HOSTILE}"[:37] + "…" in unescape(figure)


def test_it_writes_the_page_and_the_figures_and_removes_stale_ones(tmp_path: Path) -> None:
    folder = made_campaign(tmp_path / "made", made_rows())
    (folder / "figures").mkdir()
    for name in ("old.png", "notes.txt"):
        (folder / "figures" / name).write_text("x", encoding="utf-8")
    before = {p for p in folder.rglob("*") if p.is_file()}
    written = write_report(folder)
    assert written == [folder / "report.html", *(folder / "figures" / f"{name}.png"
                                                 for name in ("pareto", "ratios"))]  # fmt: skip
    assert {p for p in folder.rglob("*") if p.is_file()} == (before | set(written)) - {
        folder / "figures" / "old.png"
    }
    for path in written[1:]:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_the_same_campaign_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = made_campaign(tmp_path / "made", made_rows())
    first = [path.read_bytes() for path in write_report(folder)]
    assert [path.read_bytes() for path in write_report(folder)] == first


@pytest.mark.parametrize(
    ("metric", "label"),
    [
        ("ttft_p50_ms", "TTFT p50"),
        ("gsm8k_strict", "GSM8K strict"),
        ("e2e_latency_p90_s", "e2e latency p90"),
        ("total_throughput_per_gpu", "total throughput per GPU"),
        ("drafts", "drafts"),
    ],
)
def test_a_metrics_label_is_its_column_without_the_unit(metric: str, label: str) -> None:
    assert metric_label(metric) == label
