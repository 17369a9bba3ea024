"""The order of launches and points."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.load import load
from samenode.errors import UserError
from samenode.plan import Selection, expand, from_json, pick_arms, to_json

SMOKE = load("smoke-cpu")
FLASH = load("dsv41flash-fp4-mi355x-vllm-agentic-dspark")


def selection(**changes: object) -> Selection:
    base: dict[str, object] = {"kinds": ("agentx",), "arms": tuple(SMOKE.arms), "repeats": 1}
    return Selection(**{**base, **changes})  # type: ignore[arg-type]


def test_pairs_mirror_each_other_and_concurrencies_turn_round() -> None:
    launches = expand(SMOKE, selection(repeats=3, spec="none", conc=(1, 4)))
    assert [launch.arm for launch in launches] == [
        "prefix-off", "prefix-on", "prefix-on", "prefix-off", "prefix-off", "prefix-on",
    ]  # fmt: skip
    assert [[p.conc for p in launch.points] for launch in launches[:3]] == [[1, 4], [4, 1], [1, 4]]
    assert [launch.repeat for launch in launches] == [1, 1, 2, 2, 3, 3]


@given(repeats=st.integers(1, 6), concs=st.sets(st.integers(1, 64), min_size=1, max_size=4))
def test_every_point_is_measured_once_and_numbered_in_order(repeats: int, concs: set[int]) -> None:
    launches = expand(SMOKE, selection(repeats=repeats, conc=tuple(sorted(concs))))
    points = [point for launch in launches for point in launch.points]
    assert [p.number for p in points] == list(range(1, len(points) + 1))
    assert len({p.name for p in points}) == len(points) == 2 * 2 * repeats * len(concs)
    assert all(launch.conc == max(concs) for launch in launches)
    for launch in launches:
        assert {p.launch for p in launch.points} == {launch.number}
    assert from_json(to_json(launches)) == launches


def test_gsm8k_shares_the_server_that_rejects_for_real() -> None:
    launches = expand(SMOKE, selection(kinds=("agentx", "gsm8k"), conc=(2,), repeats=2))
    kinds = [(launch.config, launch.arm, [p.kind for p in launch.points]) for launch in launches]
    assert ("tp1-ngram", "prefix-off", ["agentx", "gsm8k"]) in kinds
    assert sum("gsm8k" in found for _, _, found in kinds) == 2  # once an arm, not once a pair
    assert all(config == "tp1-ngram" for config, _, found in kinds if "gsm8k" in found)


def test_gsm8k_gets_its_own_server_where_throughput_accepts_synthetically() -> None:
    arms = ("mono-off", "mono-on")
    launches = expand(FLASH, selection(kinds=("agentx", "gsm8k"), arms=arms, tp=2, conc=(8,)))
    assert [(launch.phase, launch.arm) for launch in launches] == [
        ("throughput", "mono-off"), ("throughput", "mono-on"),
        ("accuracy", "mono-off"), ("accuracy", "mono-on"),
    ]  # fmt: skip
    wide = expand(FLASH, selection(kinds=("gsm8k",), arms=arms, ep=2))
    assert {launch.conc for launch in wide} == {64}


def test_an_a_a_campaign_tells_its_two_sides_apart() -> None:
    launches = expand(SMOKE, selection(arms=("prefix-off", "prefix-off"), spec="none", conc=(2,)))
    assert [p.slot for launch in launches for p in launch.points] == [0, 1]
    assert [p.name for launch in launches for p in launch.points] == [
        "001-prefix-off-s0-tp1-c2-r1", "002-prefix-off-s1-tp1-c2-r1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "arms"),
    [
        (None, ("mono-off", "mono-on", "upstream-mono")),
        (["on", "off"], ("mono-off", "mono-on")),
        (["off", "off"], ("mono-off", "mono-off")),
        (["upstream-mono", "mono-on"], ("upstream-mono", "mono-on")),
    ],
)
def test_arms_are_picked_by_name_or_ending_baseline_first(
    wanted: list[str] | None, arms: tuple[str, ...]
) -> None:
    assert pick_arms(FLASH, wanted) == arms


def test_an_unknown_arm_names_the_nearest() -> None:
    with pytest.raises(UserError, match="no single arm 'mono-onn'; did you mean 'mono-on'"):
        pick_arms(FLASH, ["mono-onn"])


def test_a_selection_that_leaves_nothing_lists_what_there_is() -> None:
    with pytest.raises(UserError, match=r"no config with TP=2; it has tp1, tp1-ngram .*RECIPE="):
        expand(SMOKE, selection(tp=2))
