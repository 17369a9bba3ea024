"""Pairs and their ratios."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from point_folder import arm_row as row

from results.compare import compare, render


def test_the_ratio_is_the_geometric_mean_over_pairs() -> None:
    rows = [
        row(s, v, repeat=r) for r, vs in enumerate([(10, 20), (10, 5)]) for s, v in enumerate(vs)
    ]
    (cell,) = compare(rows)
    assert cell.n == 2
    assert cell.ratio == pytest.approx(1.0)


@given(st.lists(st.tuples(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6)), min_size=1, max_size=9))
def test_swapping_the_arms_inverts_the_ratio(pairs: list[tuple[float, float]]) -> None:
    def ratio(order: int) -> float:
        rows = [row(s, p[s ^ order], repeat=i) for i, p in enumerate(pairs) for s in (0, 1)]
        return compare(rows)[0].ratio

    assert ratio(0) * ratio(1) == pytest.approx(1.0)
    assert ratio(0) == pytest.approx(math.exp(sum(math.log(b / a) for a, b in pairs) / len(pairs)))


@pytest.mark.parametrize("bad", [None, 0.0, -1.0])
def test_a_missing_or_zero_value_makes_no_pair(bad: float | None) -> None:
    assert compare([row(0, bad), row(1, 1.0)]) == []
    assert compare([row(0, 1.0), row(1, bad)]) == []
    assert "no pair" in render([])


@pytest.mark.parametrize("key", ["campaign", "kind", "recipe", "config", "conc", "repeat"])
def test_rows_that_differ_in_the_key_are_not_paired(key: str) -> None:
    other: Any = 9 if key in ("conc", "repeat") else "gsm8k" if key == "kind" else "other"
    assert compare([row(0, 1.0), row(1, 1.0, **{key: other})]) == []


def test_identical_arms_are_told_apart_by_their_slot() -> None:
    (cell,) = compare([row(0, 10.0), row(1, 11.0, arm="off")])
    assert (cell.baseline, cell.arm, cell.slot) == ("off", "off", 1)
    assert cell.ratio == pytest.approx(1.1)


def test_a_ratio_of_one_gsm8k_pair_says_so() -> None:
    rows = [row(s, None, kind="gsm8k", acceptance_length=v) for s, v in enumerate((2.1, 2.2))]
    (cell,) = compare(rows, ["acceptance_length"])
    assert "n=1  one pair, no interval" in render([cell])


def test_every_arm_is_compared_with_slot_0() -> None:
    cells = compare([row(0, 10.0), row(1, 20.0), row(1, 5.0) | {"slot": 2, "arm": "upstream"}])
    assert [c.arm for c in cells] == ["on", "upstream"]
    assert [c.ratio for c in cells] == pytest.approx([2.0, 0.5])
