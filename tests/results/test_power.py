"""``samenode power`` from an A/A history."""

from __future__ import annotations

import pytest
from point_folder import arm_row

from results.columns import Row
from results.history import Floors, floors_of
from results.power import power_text
from samenode.errors import UserError

NODE = "host 0123456789ab"


def history(*ratios: float, campaign: str = "aa") -> list[Row]:
    return [
        arm_row(slot, (10.0, 10.0 * ratio)[slot], arm="off", campaign=campaign, repeat=repeat)
        for repeat, ratio in enumerate(ratios, 1)
        for slot in (0, 1)
    ]


def test_it_says_pairs_and_time_for_each_point() -> None:
    text = power_text(floors_of(history(1.002, 0.998, 1.003, 0.997)), NODE, 0.02)
    assert "tp1 c2 interactivity_p90" in text
    assert "from 4 A/A pairs" in text
    assert "pairs (cautious: " in text


def test_a_quieter_node_needs_fewer_pairs() -> None:
    def pairs(floors: Floors) -> int:
        line = power_text(floors, NODE, 0.02).splitlines()[1]
        return int(line.split("interactivity_p90")[1].split()[0])

    loud = floors_of(history(1.008, 0.992, 1.007, 0.993))
    quiet = floors_of(history(1.002, 0.998, 1.001, 0.999))
    assert pairs(quiet) < pairs(loud)


def test_campaigns_are_pooled_and_only_valid_aa_pairs_count() -> None:
    rows = history(1.01, 0.99) + history(1.02, 0.98, campaign="bb")
    rows[3]["valid"] = False
    rows += [arm_row(slot, 10.0 + slot, campaign="not-aa") for slot in (0, 1)]
    floors = floors_of(rows)
    assert len(floors.log_ratios(arm_row(0, 1.0), "interactivity_p90")) == 3
    assert len(floors.log_ratios(arm_row(0, 1.0, campaign="bb"), "interactivity_p90")) == 1


@pytest.mark.parametrize("rows", [[], history(1.01)])
def test_no_history_is_one_sentence_that_says_how_to_get_one(rows: list[Row]) -> None:
    with pytest.raises(UserError, match="ARMS=off,off"):
        power_text(floors_of(rows), NODE, 0.02)


@pytest.mark.parametrize("effect", [0.0, -1.0])
def test_an_effect_that_cannot_be_looked_for_is_refused(effect: float) -> None:
    with pytest.raises(UserError, match="cannot be looked for"):
        power_text(floors_of(history(1.01, 0.99)), NODE, effect)
