"""The GSM8K room without a server: settings, data, items, protocol and command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals import gsm8k
from samenode.errors import UserError

ITEM = {"question": "What is 1 + 1?", "answer": "1 + 1 = <<1+1=2>>2\n#### 2"}


def write_data(folder: Path, train: list[dict[str, str]], test: list[dict[str, str]]) -> Path:
    for split, rows in {"train": train, "test": test}.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")
    return folder


def numbered(count: int) -> list[dict[str, str]]:
    return [{"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in range(count)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path, numbered(6), numbered(9))


@pytest.mark.parametrize(
    ("name", "value"),
    [("shots", -1), ("limit", 0), ("max_tokens", 0), ("concurrency", 0), ("max_retries", 0)],
)
def test_a_number_out_of_range_is_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(UserError, match=f"{name} is {value}"):
        replace(gsm8k.Gsm8kSettings(), **{name: value})  # type: ignore[arg-type]


def test_data_comes_from_the_setting_then_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GSM8K_PATH", raising=False)
    assert gsm8k.Gsm8kSettings().data_folder is None
    monkeypatch.setenv("GSM8K_PATH", "/elsewhere")
    assert gsm8k.Gsm8kSettings().data_folder == Path("/elsewhere")
    assert gsm8k.Gsm8kSettings(data_path=tmp_path).data_folder == tmp_path


def test_items_are_the_first_of_the_test_split_whatever_the_other_settings(data: Path) -> None:
    rows = gsm8k.read_data(data)
    few = gsm8k.items(gsm8k.Gsm8kSettings(limit=4), rows)
    other_arm = gsm8k.items(gsm8k.Gsm8kSettings(limit=4, max_tokens=7, concurrency=1), rows)
    assert few == other_arm == gsm8k.items(gsm8k.Gsm8kSettings(), rows)[:4]
    assert [item["index"] for item in few] == [0, 1, 2, 3]
    # sha256 of "What is 0 + 1?", by coreutils' sha256sum
    assert few[0]["question_sha256"] == (
        "b75d4f398120d37c1c7e5f9b0d6ffe590c127c33fdc2ca136e4b11106aca2712"
    )


def test_more_items_or_shots_than_there_are_is_refused(data: Path) -> None:
    for settings, sentence in [
        (gsm8k.Gsm8kSettings(limit=10), "limit is 10, but the test split has 9"),
        (gsm8k.Gsm8kSettings(shots=7), "shots is 7, but the train split has 6"),
    ]:
        with pytest.raises(UserError, match=sentence):
            gsm8k.items(settings, gsm8k.read_data(data))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", r"test.jsonl line 2 is not JSON"),
        ("[1]", r"test.jsonl line 2 is not an object"),
        ('{"question": "How?"}', r"test.jsonl line 2 needs a 'question' and an 'answer'"),
        ('{"question": "How?", "answer": "5"}', r"test.jsonl line 2 needs .* '#### number'"),
    ],
)
def test_a_line_that_is_no_item_is_named(data: Path, line: str, sentence: str) -> None:
    (data / "test.jsonl").write_text(json.dumps(ITEM) + "\n" + line + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=sentence):
        gsm8k.read_data(data)


def test_a_missing_file_says_how_to_mend_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no .*train\.jsonl; point GSM8K_PATH at"):
        gsm8k.read_data(tmp_path)


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=1))
def test_any_text_is_read_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    rows = [{"question": text, "answer": f"{text}\n#### 3"}, ITEM]
    folder = write_data(tmp_path_factory.mktemp("data"), rows, rows)
    assert gsm8k.read_data(folder)["test"] == rows


def test_protocol_agrees_between_arms_and_tells_every_other_change(data: Path) -> None:
    def protocol(**changes: Any) -> dict[str, Any]:
        return gsm8k.protocol(gsm8k.Gsm8kSettings(**{"data_path": data, **changes}))

    base = protocol()
    assert base == protocol(concurrency=64, timeout=5, max_retries=1)
    changes: list[dict[str, Any]] = [
        {"shots": 3},
        {"limit": 2},
        {"max_tokens": 99},
        {"seed": 1},
        {"chat_template_kwargs": {"thinking": True}},
    ]
    for change in changes:
        assert protocol(**change) != base
    write_data(data, [*numbered(5), ITEM], numbered(9))
    assert protocol() != base
    json.dumps(base, allow_nan=False)


def test_protocol_states_the_defaults(data: Path) -> None:
    protocol = gsm8k.protocol(gsm8k.Gsm8kSettings(data_path=data))
    assert protocol["sampling"] == {
        "do_sample": False,
        "temperature": 0.0,
        "top_p": 1.0,
        "max_tokens": 12288,
        "until": ["</s>", "<|im_end|>"],
        "seed": 1234,
    }
    assert protocol["few_shot"]["shots"] == 5
    assert protocol["lm_eval_version"] == "0.4.13"
    assert protocol["items"]["count"] == 9


def test_the_task_file_has_the_same_defaults_as_the_settings() -> None:
    task, settings = gsm8k.read_task(), gsm8k.Gsm8kSettings()
    assert task["generation_kwargs"]["max_tokens"] == settings.max_tokens
    assert task["num_fewshot"] == settings.shots
