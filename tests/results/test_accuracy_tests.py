"""Scores, floors, McNemar and non-inferiority: published values, exact cases and laws."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

from results.accuracy_tests import (
    GSM8K_ITEMS,
    NOT_SETTLED,
    WORSE,
    mcnemar_p,
    not_worse,
    paired_accuracy,
    score_interval,
    tango_interval,
    widened_floor,
)
from samenode.errors import UserError

Answers = dict[int, bool]

fast = settings(max_examples=100, deadline=None, derandomize=True)
answers = st.dictionaries(
    st.integers(0, 2000), st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=80
)
margins = st.sampled_from([0.005, 0.01, 0.02, 0.05, 0.2])


def arms(lost: int, gained: int, both_right: int, both_wrong: int = 0) -> tuple[Answers, Answers]:
    """Baseline and arm with these counts; item ids in the order lost, gained, right, wrong."""
    cells = [(True, False)] * lost + [(False, True)] * gained
    cells += [(True, True)] * both_right + [(False, False)] * both_wrong
    return {i: b for i, (b, _) in enumerate(cells)}, {i: a for i, (_, a) in enumerate(cells)}


# ---- one score -----------------------------------------------------------------------------


@pytest.mark.parametrize(("correct", "items"), [(0, 50), (1, 50), (1286, 1319), (50, 50)])
def test_score_intervals_are_statsmodels(correct: int, items: int) -> None:
    wilson, exact = (
        score_interval(correct, items),
        score_interval(correct, items, method="clopper-pearson"),
    )
    expected = proportion_confint(correct, items, method="wilson")
    assert (wilson.low, wilson.high) == pytest.approx(expected, abs=1e-12)
    expected = proportion_confint(correct, items, method="beta")
    assert (exact.low, exact.high) == pytest.approx(expected, abs=1e-12)
    assert wilson.score == correct / items


def test_clopper_pearson_covers_at_least_its_level_and_wilson_nearly() -> None:
    items = 50
    for method, least in (("clopper-pearson", 0.95), ("wilson", 0.92)):
        scores = [score_interval(k, items, method=method) for k in range(items + 1)]  # type: ignore[arg-type]
        for p in (0.5, 0.8, 0.9, 0.95, 0.975):
            inside = [k for k, s in enumerate(scores) if s.low <= p <= s.high]
            assert sum(stats.binom.pmf(inside, items, p)) >= least


@pytest.mark.parametrize(
    ("correct", "items", "level"), [(1, 0, 0.95), (-1, 5, 0.95), (6, 5, 0.95), (1, 5, 1.0)]
)
def test_score_interval_refuses_impossible_counts(correct: int, items: int, level: float) -> None:
    with pytest.raises(ValueError, match=r"counts must satisfy|level must lie"):
        score_interval(correct, items, level=level)


# ---- widened floor -------------------------------------------------------------------------


def test_the_full_set_keeps_its_floor() -> None:
    floor = widened_floor(0.90, GSM8K_ITEMS)
    assert (floor.value, floor.needed) == (0.90, 1188)
    assert floor.passes(1188) and not floor.passes(1187)
    assert 1187 / 1319 < 0.90 <= 1188 / 1319


def test_fifty_items_against_a_1319_item_floor_widen_it_by_the_binomial_error() -> None:
    floor = widened_floor(0.90, 50)
    assert (floor.needed, floor.value) == (41, 0.82)
    assert floor.needed == stats.binom.ppf(0.05, 50, 0.90)
    assert floor.passes(41) and not floor.passes(40)


def test_a_floor_that_is_a_whole_number_of_items_is_not_rounded_up() -> None:
    assert widened_floor(0.07, 100, full_items=100).needed == 7


@fast
@given(st.floats(0.05, 0.99), st.integers(1, 300), st.integers(0, 300), st.floats(0.01, 0.2))
def test_a_model_at_the_floor_fails_with_probability_alpha_at_most_and_no_count_is_given_away(
    floor: float, items: int, more: int, alpha: float
) -> None:
    full = items + more
    widened = widened_floor(floor, items, full_items=full, alpha=alpha)
    at_floor = stats.hypergeom(full, math.ceil(round(floor * full, 9)), items)
    assert at_floor.cdf(widened.needed - 1) <= alpha
    assert at_floor.cdf(widened.needed) >= alpha * (1 - 1e-9)
    assert widened.value <= floor


def test_the_floor_rises_to_the_full_sets_without_a_step() -> None:
    values = [widened_floor(0.90, items).value for items in (50, 100, 200, 500, 1000, 1318, 1319)]
    assert values == sorted(values)
    assert values[-2] == pytest.approx(0.90, abs=0.001)


@pytest.mark.parametrize(
    ("floor", "items", "alpha"), [(0.9, 0, 0.05), (0.9, 1320, 0.05), (1.0, 5, 0.05), (0.9, 5, 0)]
)
def test_widened_floor_refuses_what_it_cannot_widen(floor: float, items: int, alpha: float) -> None:
    with pytest.raises(ValueError, match="must lie between"):
        widened_floor(floor, items, alpha=alpha)


# ---- McNemar -------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [0, 1, 5, 12, 40])
@pytest.mark.parametrize("gained", [0, 1, 6, 30])
def test_mcnemar_is_statsmodels_exact_and_symmetric(gained: int, lost: int) -> None:
    expected = mcnemar([[9, lost], [gained, 3]], exact=True).pvalue
    assert mcnemar_p(gained, lost) == pytest.approx(min(1.0, expected))
    assert mcnemar_p(gained, lost) == pytest.approx(mcnemar_p(lost, gained))


def test_mcnemar_by_hand() -> None:
    assert mcnemar_p(0, 0) == 1.0
    assert mcnemar_p(1, 6) == pytest.approx(2 * (1 + 7) / 2**7)
    with pytest.raises(ValueError, match="counts"):
        mcnemar_p(-1, 2)


# ---- Tango's interval ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gained", "lost", "items", "level", "low", "high", "digits"),
    [
        # Tango (1998): the crossover trial, and the table with an empty off-diagonal cell.
        (9, 3, 32, 0.95, -0.027, 0.390, 3),
        (0, 1, 44, 0.90, -0.096, 0.037, 3),
        # Cavo et al. (2012) as in Fagerland, Lydersen & Laake (2017), chapter 8.
        (6, 16, 161, 0.95, -0.1240, -0.0054, 4),
        (3, 0, 3, 0.95, -0.1230, 1.0, 4),
        (0, 3, 3, 0.95, -1.0, 0.1230, 4),
    ],
)
def test_tango_interval_matches_published_examples(
    gained: int, lost: int, items: int, level: float, low: float, high: float, digits: int
) -> None:
    interval = tango_interval(gained, lost, items, level=level)
    assert tuple(round(x, digits) for x in interval) == (low, high)


@pytest.mark.parametrize("items", [1, 20, 1319])
def test_without_a_flip_the_interval_is_z2_over_n_plus_z2(items: int) -> None:
    z2 = stats.norm.ppf(0.975) ** 2
    expected = z2 / (items + z2)
    assert tango_interval(0, 0, items) == pytest.approx((-expected, expected))


@fast
@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 1400))
def test_tango_interval_holds_the_estimate_and_mirrors_when_the_arms_swap(
    gained: int, lost: int, rest: int
) -> None:
    items = gained + lost + rest
    low, high = tango_interval(gained, lost, items)
    assert -1 <= low < (gained - lost) / items < high <= 1
    assert tango_interval(lost, gained, items) == pytest.approx((-high, -low), abs=1e-9)
    assert tango_interval(gained, lost + 1, items + 1)[0] < low


@pytest.mark.parametrize("counts", [(-1, 0, 5), (3, 3, 5), (0, 0, 0)])
def test_tango_interval_refuses_impossible_counts(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="counts must"):
        tango_interval(*counts)


# ---- the arm against the baseline ----------------------------------------------------------


def test_counts_scores_and_flipped_items() -> None:
    baseline, arm = arms(lost=2, gained=1, both_right=6, both_wrong=1)
    result = paired_accuracy(baseline, arm, margin=0.01)
    assert (result.items, result.both_right, result.both_wrong) == (10, 6, 1)
    assert (result.lost, result.gained) == ((0, 1), (2,))
    assert (result.baseline_score, result.arm_score) == (0.8, 0.7)
    assert result.difference == pytest.approx(-0.1)
    assert (result.low, result.high) == tango_interval(1, 2, 10)
    assert result.mcnemar_p == mcnemar_p(1, 2)


def test_the_same_answers_on_the_full_set_are_not_worse() -> None:
    result = paired_accuracy(*arms(4, 5, 1270, 40), margin=0.01)
    assert result.word == "not worse than the baseline by more than 0.01"
    assert result.margin_p < 0.025


def test_fifty_items_settle_nothing_at_one_point_and_it_is_said_why() -> None:
    result = paired_accuracy(*arms(0, 0, 48, 2), margin=0.01)
    assert result.word == "not settled (n too small)"
    assert "even without a flip 50 items rule out no loss below 0.0713" in result.why


def test_a_clear_loss_is_worse() -> None:
    result = paired_accuracy(*arms(40, 5, 1230, 44), margin=0.01)
    assert result.word == "worse"
    assert "40 lost, 5 gained of 1319" in result.why


def test_a_seen_loss_within_the_margin_is_not_worse_by_more_and_is_told() -> None:
    result = paired_accuracy(*arms(9, 0, 1270, 40), margin=0.05)
    assert result.word == not_worse(0.05)
    assert result.mcnemar_p < 0.05
    assert result.why.endswith("a loss within the margin is seen")


def test_an_unclear_loss_is_not_settled_and_an_unclear_gain_is_neither() -> None:
    for lost, gained in ((20, 14), (40, 45)):
        result = paired_accuracy(*arms(lost, gained, 250), margin=0.01)
        assert result.word == NOT_SETTLED
        assert "even without a flip" in result.why or result.items > 381


def test_arms_that_answered_different_items_are_refused_by_name() -> None:
    baseline = dict.fromkeys(range(10), True)
    arm = dict.fromkeys(range(5, 11), True)
    with pytest.raises(UserError) as error:
        paired_accuracy(baseline, arm, margin=0.01)
    assert str(error.value) == (
        "The arms answered different items (5 (0, 1, 2, …) only in the baseline, 1 (10) only in "
        "the arm); run both with the same limit."
    )
    with pytest.raises(UserError, match="No item was answered"):
        paired_accuracy({}, {}, margin=0.01)


@pytest.mark.parametrize(("margin", "level"), [(0.0, 0.95), (1.0, 0.95), (0.01, 1.0)])
def test_margin_and_level_out_of_range_are_refused(margin: float, level: float) -> None:
    with pytest.raises(ValueError, match="must lie between"):
        paired_accuracy({1: True}, {1: True}, margin=margin, level=level)


@fast
@given(answers, margins, st.randoms(use_true_random=False))
def test_laws_of_the_paired_comparison(
    items: dict[int, tuple[bool, bool]], margin: float, rng: random.Random
) -> None:
    baseline = {i: b for i, (b, _) in items.items()}
    arm = {i: a for i, (_, a) in items.items()}
    forth = paired_accuracy(baseline, arm, margin=margin)
    back = paired_accuracy(arm, baseline, margin=margin)
    assert (back.lost, back.gained) == (forth.gained, forth.lost)
    assert back.mcnemar_p == pytest.approx(forth.mcnemar_p)
    assert (back.low, back.high) == pytest.approx((-forth.high, -forth.low), abs=1e-9)
    order = list(items)
    rng.shuffle(order)
    assert paired_accuracy({i: baseline[i] for i in order}, arm, margin=margin) == forth
    flips = len(forth.lost) + len(forth.gained)
    assert forth.both_right + forth.both_wrong + flips == forth.items
    if abs(forth.low + margin) > 1e-9:
        assert (forth.margin_p < 0.025) == (forth.low > -margin)
        assert (forth.word == not_worse(margin)) == (forth.low > -margin)
    if forth.word == WORSE:
        assert forth.difference < 0 and forth.mcnemar_p < 0.05
        assert back.word != WORSE
