"""``samenode compare``: one run, several runs, refusals, files and the gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from point_folder import DATA, arm_row, write_run

from results.columns import Row
from results.command import compare_command, compared
from results.comparable import ACROSS, FIELDS
from results.published_figures import FOLDER
from results.tables import read_csv
from samenode.errors import UserError


def pairs(*ratios: float, **changes: Any) -> list[Row]:
    return [
        arm_row(slot, (10.0, 10.0 * ratio)[slot], repeat=repeat, **changes)
        for repeat, ratio in enumerate(ratios, 1)
        for slot in (0, 1)
    ]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "x", pairs(1.2, 1.21, 1.19))


def test_one_run_compares_its_arms(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare_command([run]) == 0
    out = capsys.readouterr().out
    assert "smoke-cpu  tp1  agentx: off → on" in out
    assert "1.200× [1.175, 1.225]" in out
    assert "n=3  no A/A floor" in out


def test_a_csv_and_its_run_folder_say_the_same(run: Path) -> None:
    assert [c.row() for c in compared([run])[0]] == [
        c.row() for c in compared([run / "points.csv"])[0]
    ]


def test_an_aa_history_gives_the_floor_and_the_words(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aa = [row | {"campaign": "aa", "arm": "off"} for row in pairs(1.01, 0.99, 1.0, 1.005)]
    write_run(tmp_path / "runs" / "aa", aa)
    assert compare_command([run], history=tmp_path / "runs") == 0
    assert "n=3  faster, p 0.25" in capsys.readouterr().out
    (cell,) = compared([run], history=tmp_path / "runs")[0]
    assert cell.floor is not None
    assert cell.floor.aa_pairs == 4


def test_within_the_floor_no_difference_is_seen(tmp_path: Path) -> None:
    small = write_run(tmp_path / "small", pairs(1.020, 1.021, 1.022))
    aa = [row | {"campaign": "aa", "arm": "off"} for row in pairs(1.06, 0.95, 1.04, 0.97)]
    write_run(tmp_path / "runs" / "aa", aa)
    (cell,) = compared([small], history=tmp_path / "runs")[0]
    assert cell.verdict.word == "no difference seen"
    assert "does not exceed the A/A floor" in cell.verdict.why


def test_an_aa_campaign_is_not_its_own_floor(tmp_path: Path) -> None:
    aa = write_run(tmp_path / "aa", [r | {"arm": "off"} for r in pairs(1.06, 0.95, 1.04, 0.97)])
    (cell,) = compared([aa], history=tmp_path)[0]
    assert cell.floor is None
    assert cell.verdict.word == "no difference seen"


@pytest.mark.parametrize("change", [{"node": "other"}, {"corpus": "other"}, {"conc": 4}])
def test_a_floor_of_another_node_or_workload_does_not_count(
    run: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    aa = [r | {"campaign": "aa", "arm": "off"} | change for r in pairs(1.01, 0.99, 1.0)]
    write_run(tmp_path / "runs" / "aa", aa)
    assert compared([run], history=tmp_path / "runs")[0][0].floor is None


def test_a_broken_old_run_does_not_stop_a_comparison(run: Path, tmp_path: Path) -> None:
    (tmp_path / "runs" / "old").mkdir(parents=True)
    (tmp_path / "runs" / "old" / "points.csv").write_text("schema\n99\n", encoding="utf-8")
    assert compare_command([run], history=tmp_path / "runs") == 0


def test_speed_words_are_not_said_of_acceptance(tmp_path: Path) -> None:
    rows = pairs(1.2, 1.21, acceptance_length=2.0)
    found = compared([write_run(tmp_path / "x", rows)])[0]
    (cell,) = [c for c in found if c.metric == "acceptance_length"]
    assert (cell.ratio, cell.verdict.word) == (1.0, None)


def test_p_is_adjusted_over_the_points_of_a_metric(tmp_path: Path) -> None:
    rows = [r for conc in (1, 2) for r in pairs(1.2, 1.21, 1.19, conc=conc)]
    found = compared([write_run(tmp_path / "x", rows)])[0]
    assert [c.result.p for c in found] == [0.25, 0.25]
    assert [c.p_holm for c in found] == [0.5, 0.5]


# ---- several runs


def test_runs_are_lined_up_arm_for_arm_without_a_verdict(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = [r | {"campaign": "y", "interactivity_p90": 9.0} for r in pairs(1.2, 1.2)]
    assert compare_command([run, write_run(tmp_path / "y", other)]) == 0
    out = capsys.readouterr().out
    assert "off → off" in out
    assert "on → on" in out
    assert "n=3 vs 2  the runs were not interleaved" in out
    assert "0.900×" in out
    assert "0.750×" in out


def test_runs_of_one_arm_each_are_lined_up(run: Path, tmp_path: Path) -> None:
    off, on = pairs(1.5)
    a = write_run(tmp_path / "a", [off | {"arm": "main"}])
    b = write_run(tmp_path / "b", [on | {"arm": "branch"}])
    (cell,) = compared([a, b])[0]
    assert (cell.baseline, cell.arm, cell.ratio) == ("main", "branch", pytest.approx(1.5))
    with pytest.raises(UserError, match="share no arm"):
        compared([run, b])


def test_several_runs_are_each_compared_with_the_first(run: Path, tmp_path: Path) -> None:
    others = [
        write_run(tmp_path / name, [r | {"campaign": name} for r in pairs(ratio)])
        for name, ratio in (("y", 1.0), ("z", 2.0))
    ]
    found = [c for c in compared([run, *others])[0] if c.arm == "on"]
    assert [c.slot for c in found] == [1, 2]
    assert [c.ratio for c in found] == pytest.approx([1 / 1.2, 2 / 1.2], rel=1e-3)


def test_runs_without_a_common_point_are_refused(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "y", pairs(1.0, conc=64))
    with pytest.raises(UserError, match="share no point"):
        compared([run, other])


DIFFERENT = {
    "node": {"node": "other"},
    "image": {"image": "sha256:1"},
    "workload": {"corpus": "other"},
    "client": {"client": "aiperf 0.12.0"},
    "basis": {"token_count_source": "client"},
}


@pytest.mark.parametrize("field", DIFFERENT)
def test_a_difference_is_refused_unless_named_and_then_printed_on_top(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str
) -> None:
    other = write_run(tmp_path / "y", [r | DIFFERENT[field] for r in pairs(1.2)])
    with pytest.raises(UserError, match=rf"differ in {field} .*--across {field}\.") as error:
        compare_command([run, other])
    assert error.value.exit_code == 2
    assert compare_command([run, other], across=[field]) == 0
    assert capsys.readouterr().out.startswith(f"ACROSS {field}: ")


@pytest.mark.parametrize("field", DIFFERENT)
def test_what_is_unknown_equals_nothing(run: Path, tmp_path: Path, field: str) -> None:
    unknown = dict.fromkeys(DIFFERENT[field])
    other = write_run(tmp_path / "y", [r | unknown for r in pairs(1.2)])
    with pytest.raises(UserError, match="unknown"):
        compared([run, other])


def test_every_field_is_tested_and_accepted() -> None:
    assert set(DIFFERENT) == set(FIELDS["agentx"]) == set(ACROSS) - {"config"}


def test_an_unknown_field_is_refused(run: Path) -> None:
    with pytest.raises(UserError, match=r"--across nodes: .* known: node"):
        compare_command([run], across=["nodes"])


@pytest.mark.parametrize("metric", ["interactivity", "note", "drafts"])
def test_what_is_no_metric_is_one_sentence(run: Path, metric: str) -> None:
    with pytest.raises(UserError, match=f"'{metric}' is no metric"):
        compare_command([run], metrics=[metric])


def test_invalid_rows_do_not_cause_a_refusal(tmp_path: Path) -> None:
    rows = pairs(1.2, 1.2)
    rows[3] |= {"valid": False, "node": None}
    (cell,) = compared([write_run(tmp_path / "x", rows)])[0]
    assert (cell.n, cell.result.dropped) == (1, 1)


def test_configs_are_lined_up_only_when_named(tmp_path: Path) -> None:
    rows = pairs(1.5)
    rows[1]["config"] = "tp1-dp2-ep2"
    run = write_run(tmp_path / "x", rows)
    with pytest.raises(UserError, match="no two arms"):
        compared([run])
    cells, notes = compared([run], across=["config"])
    assert cells[0].config == "tp1 → tp1-dp2-ep2"
    assert "ACROSS config" in notes[-1]


def test_published_figures_are_refused_without_their_differences_named() -> None:
    with pytest.raises(UserError, match="differ in node "):
        compared([FOLDER / "mono-tp2.csv"])
    everything = ["node", "image", "workload", "client", "basis"]
    cells, notes = compared([FOLDER / "mono-tp2.csv"], across=everything)
    assert len(notes) == 5
    (cell,) = [c for c in cells if (c.metric, c.conc) == ("interactivity_p90", 1)]
    assert f"{cell.ratio:.2f}" == "1.42"


# ---- what can be read


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "is no scored row"),
        ("{", "is no scored row"),
        ('{"schema": 2}', "has schema 2 and this samenode reads up to 1"),
    ],
)
def test_a_damaged_or_newer_row_is_one_sentence(run: Path, content: str, words: str) -> None:
    (run / "points" / "001" / "row.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        compare_command([run])


def test_what_is_no_run_is_one_sentence(run: Path, tmp_path: Path) -> None:
    for source, words in (
        (tmp_path, "holds no scored point"),
        (tmp_path / "nothing.csv", "does not exist"),
        (run / "comparison.csv", "no two arms"),
    ):
        with pytest.raises(UserError, match=words):
            compared([source])


def test_a_csv_of_comparisons_is_no_source(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    compare_command([run], csv_file=path)
    with pytest.raises(UserError, match="holds comparisons"):
        compared([path])


# ---- files and gate


def test_the_comparison_is_written_as_csv_and_json(run: Path, tmp_path: Path) -> None:
    csv_file, json_file = tmp_path / "c.csv", tmp_path / "c.json"
    compare_command([run], csv_file=csv_file, json_file=json_file)
    (row,) = read_csv(csv_file)
    data = json.loads(json_file.read_text(encoding="utf-8"))
    assert data["cells"] == [row]
    assert (row["metric"], row["n"], row["pairing"]) == ("interactivity_p90", 3, "pairs")
    assert (row["unit"], row["direction"]) == ("tok/s/user", "higher")
    assert data["schema"] == 1


@pytest.mark.parametrize(
    ("ratio", "gate", "code"),
    [
        (0.98, "interactivity_p90:-3%", 0),
        (0.96, "interactivity_p90:-3%", 3),
        (1.50, "interactivity_p90:-3%", 0),
        (0.96, "interactivity_p90:-4.5%", 0),
    ],
)
def test_the_gate_fails_beyond_its_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ratio: float, gate: str, code: int
) -> None:
    run = write_run(tmp_path / "x", pairs(ratio, ratio))
    assert compare_command([run], fail_if=[gate]) == code
    assert ("FAIL interactivity_p90 tp1 c2 on: -4.00 %" in capsys.readouterr().out) == bool(code)


@pytest.mark.parametrize(("value", "code"), [(104.0, 0), (106.0, 3), (80.0, 0)])
def test_a_metric_that_is_better_when_lower_fails_when_it_rises(
    tmp_path: Path, value: float, code: int
) -> None:
    rows = pairs(1.0)
    rows[0]["ttft_p99_ms"], rows[1]["ttft_p99_ms"] = 100.0, value
    run = write_run(tmp_path / "x", rows)
    assert compare_command([run], fail_if=["ttft_p99_ms:+5%"]) == code


def test_a_gate_without_valid_rows_is_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "x", pairs(1.0, valid=False))
    assert compare_command([run], fail_if=["interactivity_p90:-3%"]) == 3
    assert "FAIL interactivity_p90: no valid rows on both sides" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("gate", "words"),
    [
        ("interactivity_p90", "is not of the form"),
        ("interactivity_p90:-3", "is not of the form"),
        ("interactivity_p90:3%", "is not of the form"),
        ("interactivity_p90:+3%", "write interactivity_p90:-3%"),
        ("interactivity_p90:-0%", "write interactivity_p90:-0%"),
        ("ttft_p90_ms:-3%", r"write ttft_p90_ms:\+3%"),
        ("total_throughputs:-3%", "did you mean 'total_throughput'"),
        ("note:-3%", "no metric 'note' has a better way"),
    ],
)
def test_a_gate_that_makes_no_sense_is_one_sentence(run: Path, gate: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        compare_command([run], fail_if=[gate])
    assert error.value.exit_code == 2


# ---- GSM8K


@pytest.fixture
def accuracy_run(tmp_path: Path) -> Path:
    """Two arms of GSM8K, the second with two items flipped."""
    folder = tmp_path / "g"
    rows = []
    for slot in (0, 1):
        name = f"{slot + 1:03}"
        rows.append(
            arm_row(
                slot, None, kind="gsm8k", campaign="g", point=name, gsm8k_protocol="p",
                gsm8k_strict=0.5, gsm8k_flexible=0.75, gsm8k_margin=0.05, corpus=None,
            )
        )  # fmt: skip
        source = next((DATA / "lm_eval" / "dummy").glob("samples_*"))
        lines = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
        if slot:
            for line in lines:
                if line["filter"] == "strict-match" and line["doc_id"] in (0, 1):
                    line["exact_match"] = 1.0 - line["exact_match"]
        target = folder / "points" / name / "lm_eval" / "dummy" / source.name
        target.parent.mkdir(parents=True)
        target.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        (folder / "points" / name / "row.json").write_text(json.dumps(rows[-1]), encoding="utf-8")
    return folder


def test_gsm8k_is_tested_on_the_same_items(
    accuracy_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = {cell.metric: cell for cell in compared([accuracy_run])[0]}
    strict = cells["gsm8k_strict"].accuracy
    assert strict is not None
    assert (strict.lost, strict.gained, strict.mcnemar_p) == ((0,), (1,), 1.0)
    flexible = cells["gsm8k_flexible"].accuracy
    assert flexible is not None
    assert (flexible.lost, flexible.gained) == ((), ())
    row = cells["gsm8k_strict"].row()
    assert row["verdict"] == "not settled (n too small)"
    assert row["p"] == 1.0
    assert compare_command([accuracy_run]) == 0
    assert "not settled (n too small)" in capsys.readouterr().out


def test_gsm8k_without_its_items_is_not_tested(accuracy_run: Path, tmp_path: Path) -> None:
    rows = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(accuracy_run.glob("points/*/row.json"))
    ]
    bare = write_run(tmp_path / "bare", rows)
    for cell in compared([bare / "points.csv"])[0]:
        assert cell.accuracy is None
        assert "nothing is tested" in cell.verdict.why


def test_other_protocols_are_refused(accuracy_run: Path, tmp_path: Path) -> None:
    rows = [
        json.loads(path.read_text(encoding="utf-8")) | {"gsm8k_protocol": "q"}
        for path in sorted(accuracy_run.glob("points/*/row.json"))
    ]
    with pytest.raises(UserError, match="differ in workload"):
        compared([accuracy_run, write_run(tmp_path / "other", rows)])


def test_arms_that_solve_nothing_are_shown_and_tested(accuracy_run: Path) -> None:
    for path in accuracy_run.glob("points/*/lm_eval/*/samples_*"):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        wrong = [line | {"exact_match": 0.0} for line in lines]
        path.write_text("".join(json.dumps(line) + "\n" for line in wrong), encoding="utf-8")
    for path in accuracy_run.glob("points/*/row.json"):
        row = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(row | {"gsm8k_strict": 0.0}), encoding="utf-8")
    strict = next(c for c in compared([accuracy_run])[0] if c.metric == "gsm8k_strict")
    assert (strict.means, strict.ratio) == ((0.0, 0.0), None)
    assert strict.accuracy is not None
    assert strict.accuracy.both_wrong == 12
    for cell in compared([accuracy_run, accuracy_run])[0]:
        assert cell.ratio == (None if cell.metric == "gsm8k_strict" else 1.0)
