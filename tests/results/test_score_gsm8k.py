"""lm-eval's files to an accuracy row and to outcomes by item."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from point_folder import DATA, POINT, RUN, reasons, write_scrapes

from results.gsm8k import read_items
from results.records import RecordsError
from results.score import score


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "002-gsm8k"
    shutil.copytree(DATA / "lm_eval", folder / "lm_eval")
    drafted = {"vllm:spec_decode_num_drafts_total": 10.0}
    accepted = "vllm:spec_decode_num_accepted_tokens_total"
    scrapes = [(t, {k: v * t for k, v in drafted.items()} | {accepted: 25.0 * t}) for t in (1, 3)]
    write_scrapes(folder, scrapes)
    (folder / "point.json").write_text(json.dumps(POINT | {"kind": "gsm8k"}), encoding="utf-8")
    (folder / "run.json").write_text(json.dumps(RUN | {"client": "lm-eval"}), encoding="utf-8")
    return folder


def samples(folder: Path) -> Path:
    return next(folder.glob("lm_eval/*/samples_*.jsonl"))


def test_acceptance_is_counted_over_the_whole_evaluation(folder: Path) -> None:
    row = score(folder)
    assert (row["drafts"], row["accepted_tokens"], row["acceptance_length"]) == (20, 50, 3.5)


def test_a_kernel_that_did_not_run_makes_a_score_invalid(folder: Path) -> None:
    path = folder / "point.json"
    point = json.loads(path.read_text(encoding="utf-8")) | {"must_dispatch": ["mono_k1"]}
    path.write_text(json.dumps(point), encoding="utf-8")
    assert "kernel-missing: mono_k1 was not dispatched" in reasons(score(folder))


def test_scores_are_those_of_lm_eval(folder: Path) -> None:
    row = score(folder)
    assert row["valid"] is True, reasons(row)
    assert (row["gsm8k_strict"], row["gsm8k_flexible"], row["gsm8k_n"]) == (0.5, 0.75, 12)
    assert (row["gsm8k_strict_correct"], row["gsm8k_flexible_correct"]) == (6, 9)
    assert row["gsm8k_strict_stderr"] == pytest.approx((0.25 / 11) ** 0.5)
    assert row["gsm8k_empty_rate"] == pytest.approx(1 / 12)
    assert row["gsm8k_truncation_rate"] == pytest.approx(1 / 12)
    assert row["gsm8k_reasoning_fallback_rate"] == pytest.approx(1 / 12)


def test_the_protocol_is_part_of_the_row(folder: Path) -> None:
    row = score(folder)
    assert row["gsm8k_fewshot_form"] == "multi-turn chat"
    assert (row["gsm8k_fewshot"], row["gsm8k_max_tokens"], row["gsm8k_temperature"]) == (5, 64, 0.0)
    assert row["gsm8k_lm_eval"] == "0.4.13"
    assert len(str(row["gsm8k_prompts_sha256"])) == 64
    path = folder / "lm_eval" / "gsm8k.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["protocol"]["few_shot"]["form"] = "one message"
    path.write_text(json.dumps(data), encoding="utf-8")
    assert score(folder)["gsm8k_protocol"] != row["gsm8k_protocol"]


def test_outcomes_by_item_do_not_rest_on_the_order(folder: Path) -> None:
    plain = read_items(folder)
    path = samples(folder)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(reversed(lines)), encoding="utf-8")
    assert read_items(folder) == plain
    assert sum(plain["strict"].values()) == 6
    assert plain["strict"].keys() == plain["flexible"].keys()


def drop_key(line: str) -> str:
    sample = json.loads(line)
    del sample["exact_match"]
    return json.dumps(sample) + "\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: [*lines, lines[3]], "line 25: the item was scored before"),
        (lambda lines: [*lines[:-1], lines[-1][:50]], "line 24: this is no lm-eval sample"),
        (lambda lines: [*lines[:4], drop_key(lines[4])], "line 5: this is no lm-eval sample"),
        (lambda lines: lines[:-1], "two filters did not score the same items"),
        (lambda lines: [], "two filters did not score the same items"),
        (lambda lines: lines[1:12] + lines[13:], "lm-eval reports"),
    ],
)
def test_damaged_samples_are_an_invalid_row(
    folder: Path, change: Callable[[list[str]], list[str]], words: str
) -> None:
    path = samples(folder)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(change(lines)), encoding="utf-8")
    row = score(folder)
    assert row["valid"] is False
    assert words in reasons(row)


def remove(pattern: str) -> Callable[[Path], None]:
    return lambda folder: next(folder.glob(pattern)).unlink()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (remove("lm_eval/gsm8k.json"), "the evaluation did not finish"),
        (remove("lm_eval/*/results_*"), "0 files"),
        (remove("lm_eval/*/samples_*"), "0 files"),
        (remove("run.json"), "the point did not finish"),
        (lambda f: (f / "lm_eval" / "gsm8k.json").write_text("[]"), "no JSON object"),
        (lambda f: (f / "lm_eval" / "gsm8k.json").write_text("{"), "no complete JSON"),
    ],
)
def test_missing_files_are_an_invalid_row(
    folder: Path, change: Callable[[Path], Any], words: str
) -> None:
    change(folder)
    row = score(folder)
    assert row["valid"] is False
    assert words in reasons(row)


def test_read_items_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="holds 0 files"):
        read_items(tmp_path)
