"""Recipes: what is shipped loads, and what is wrong is named with its place."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from recipes.inferencex import import_entry
from recipes.load import DEFAULTS, FOLDER, load, shipped
from recipes.schema import SearchSpace
from samenode.errors import UserError


def edited(tmp_path: Path, old: str, new: str) -> Path:
    """The smoke recipe with one text replaced."""
    text = (FOLDER / "smoke-cpu.yaml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "edited.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", shipped())
def test_shipped_recipes_load(name: str) -> None:
    recipe = load(name)
    assert recipe.name == name
    assert recipe.baseline in recipe.arms


def test_every_accelerator_has_a_default_recipe_of_its_own_kind() -> None:
    for accelerator, name in DEFAULTS.items():
        assert load(name).accelerator == accelerator


def test_the_flagship_recipe_holds_what_the_leaderboard_runs() -> None:
    recipe = load("dsv41flash-fp4-mi355x-vllm-agentic-dspark")
    spaces = {space.name: space for space in recipe.search_space}
    assert spaces["tp2-dspark"].concurrencies == (1, 2, 4, 8)
    assert spaces["tp4-dspark"].concurrencies == (1, 2, 4, 8)
    ep2 = spaces["tp1-dp2-ep2-dspark"]
    assert ep2.concurrencies == (1, 4, 16, 64)
    assert ep2.gpus == 2
    spec = recipe.speculative["dspark"]
    assert spec.throughput["synthetic_acceptance_length"] == 3.51
    assert spec.throughput["num_speculative_tokens"] == 5
    assert spec.accuracy["rejection_sample_method"] == "block"
    assert list(recipe.arms) == ["mono-off", "mono-on", "upstream-mono"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "conc-list",
            "conc-lst",
            r"edited.yaml:22: .*unknown key 'conc-lst'; did you mean 'conc-l",
        ),
        ("about: prefix", "abuot: prefix", r"edited.yaml:4: .*did you mean 'about'"),
        ("precision: bf16", "model: x", r"edited.yaml:14: key 'model' is given twice; .*line 6"),
        ("conc-list: [1, 2, 4], accuracy", "accuracy", r"yaml:22: .*give either conc-list"),
        ("tp: 1, conc-list", "tp: 0, conc-list", r"edited.yaml:22: .*tp: .*greater than or equal"),
        ("tp: 1, conc-list", "ep: 3, conc-list", r"edited.yaml:22: .*ep must be 1 or tp·dp = 1"),
        ("spec-decoding: ngram", "spec-decoding: eagle", r"'eagle' is not one of: none, ngram"),
        ("    baseline: true\n", "", r"exactly one arm must say 'baseline: true', not 0"),
        ("  prefix-on:", "  Prefix/on:", r"edited.yaml:30: .*match pattern"),
        ("framework: vllm", "framework: sglang", r"edited.yaml:15: framework: .*'vllm'"),
        ("scenarios:", "scenarios: [", r"edited.yaml:\d+: not valid YAML"),
    ],
)
def test_a_wrong_recipe_is_named_with_file_line_and_key(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        load(str(edited(tmp_path, old, new)))


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown recipe 'smoke-gpu'; did you mean 'smoke-cpu'"):
        load("smoke-gpu")


def test_synthetic_rejection_is_refused_for_accuracy(tmp_path: Path) -> None:
    path = edited(
        tmp_path,
        "accuracy: *ngram",
        "accuracy: { method: ngram, rejection_sample_method: synthetic }",
    )
    with pytest.raises(UserError, match="accuracy must not use synthetic rejection"):
        load(str(path))


@given(start=st.integers(1, 64), factor=st.integers(1, 40))
def test_a_concurrency_span_doubles_and_holds_both_ends(start: int, factor: int) -> None:
    end = start * factor
    values = SearchSpace(conc_start=start, conc_end=end).concurrencies
    assert values[0] == start or start == end
    assert values[-1] == end
    assert all(b == 2 * a for a, b in itertools.pairwise(values[:-1]))
    assert list(values) == sorted(set(values))


def test_a_fingerprint_ignores_names_and_concurrency_and_sees_the_rest(tmp_path: Path) -> None:
    smoke = load("smoke-cpu")
    space = smoke.search_space[0]
    before = smoke.fingerprint(space)
    for old, new in (
        ("about: prefix caching", "about: other words"),
        ("conc-list: [1, 2, 4], accuracy", "conc-list: [8], accuracy"),
        ("runner: cpu", "runner: another"),
    ):
        other = load(str(edited(tmp_path, old, new)))
        assert other.fingerprint(other.search_space[0]) == before
    for old, new in (("block-size: 32", "block-size: 16"), ("sessions: 24", "sessions: 25")):
        other = load(str(edited(tmp_path, old, new)))
        assert other.fingerprint(other.search_space[0]) != before
    assert smoke.fingerprint(smoke.search_space[1]) != before


ENTRIES = """
model-fp4-mi355x-vllm-agentic-mtp:
  image: vllm/vllm-openai-rocm:nightly
  model: org/Model
  model-prefix: model
  runner: cluster:mi355x-a
  precision: fp4
  framework: vllm
  multinode: false
  scenarios:
    agentic-coding:
    - dram-utilization: 0.8
      search-space:
      - { tp: 4, kv-offloading: none, conc-list: [4, 1], spec-decoding: mtp }
      - { tp: 4, kv-offloading: none, conc-list: [8], spec-decoding: mtp }
      - { tp: 8, ep: 8, dp-attn: true, kv-offloading: none, conc-start: 16, conc-end: 64 }
      - { tp: 8, kv-offloading: dram, kv-offload-backend: { name: vllm-native }, conc-list: [64] }
    fixed-seq-len:
    - isl: 1024
      osl: 1024
      search-space:
      - { tp: 8, conc-list: [4] }
sglang-entry:
  framework: sglang
  scenarios: { agentic-coding: [ { search-space: [ { tp: 1, conc-list: [1] } ] } ] }
"""


def test_an_inferencex_entry_becomes_a_recipe_and_says_what_was_dropped(tmp_path: Path) -> None:
    path = tmp_path / "master.yaml"
    path.write_text(ENTRIES, encoding="utf-8")
    imported = import_entry(path, "model-fp4-mi355x-vllm-agentic-mtp")
    out = tmp_path / "imported.yaml"
    out.write_text(imported.text, encoding="utf-8")
    recipe = load(str(out))
    assert {s.name: s.concurrencies for s in recipe.search_space} == {
        "tp4-mtp": (1, 4, 8),
        "tp1-dp8-ep8": (16, 32, 64),
    }
    assert recipe.accelerator == "rocm"
    dropped = "\n".join(imported.dropped)
    for told in ("dram-utilization", "fixed-seq-len", "[2].dp-attn: written as tp 1, dp 8",
                 "[3]: KV offloading", "server flags"):  # fmt: skip
        assert told in dropped
    assert yaml.safe_load(imported.text)["model"] == "org/Model"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("sglang-entry", "not a single-node agentic vLLM recipe"),
        ("model-fp4-mi355x-vllm-agentic", "did you mean 'model-fp4-mi355x-vllm-agentic-mtp'"),
    ],
)
def test_an_entry_that_cannot_be_imported_says_why(tmp_path: Path, key: str, message: str) -> None:
    path = tmp_path / "master.yaml"
    path.write_text(ENTRIES, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        import_entry(path, key)
