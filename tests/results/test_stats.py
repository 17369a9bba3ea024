"""Ratios, p values, floors, verdicts and plans: exact cases and laws."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from results.order import abba
from results.stats import (
    NoiseFloor,
    holm,
    noise_floor,
    paired_ratio,
    pairs_for_p,
    pairs_needed,
    ratio_from_logs,
    sign_flip_p,
    verdict,
    verdict_power,
)

value = st.floats(min_value=1e-3, max_value=1e6)
pair_lists = st.lists(st.tuples(value, value), min_size=2, max_size=10)
fast = settings(max_examples=100, deadline=None, derandomize=True)


def split(pairs: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [b for b, _ in pairs], [a for _, a in pairs]


def floor_of(log: float, pairs: int, *, biased: bool = False) -> NoiseFloor:
    return NoiseFloor(log, pairs, aa_pairs=6, sd=log, biased=biased, level=0.95)


# ---- order ---------------------------------------------------------------------------------


def test_abba_mirrors_every_second_pair() -> None:
    assert abba(0) == ()
    assert abba(4) == ((0, 1), (1, 0), (0, 1), (1, 0))
    assert abba(3, arms=3) == ((0, 1, 2), (2, 1, 0), (0, 1, 2))


@pytest.mark.parametrize("arms", [2, 3, 4])
def test_abba_gives_every_slot_the_same_mean_position_over_two_rounds(arms: int) -> None:
    launches = [slot for group in abba(2, arms) for slot in group]
    places = {slot: [i for i, s in enumerate(launches) if s == slot] for slot in range(arms)}
    assert len({sum(places[slot]) for slot in range(arms)}) == 1


@pytest.mark.parametrize(("n", "arms"), [(-1, 2), (2, 0)])
def test_abba_refuses_impossible_counts(n: int, arms: int) -> None:
    with pytest.raises(ValueError, match="n_pairs must be"):
        abba(n, arms)


# ---- ratio and interval --------------------------------------------------------------------


def test_ratio_is_the_geometric_mean_and_the_interval_is_t() -> None:
    result = paired_ratio([100, 100, 100], [110, 120, 132])
    logs = [math.log(1.1), math.log(1.2), math.log(1.32)]
    expected = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert result.ratio == pytest.approx((1.1 * 1.2 * 1.32) ** (1 / 3))
    assert result.low == pytest.approx(math.exp(expected.low))
    assert result.high == pytest.approx(math.exp(expected.high))
    assert (result.n, result.dropped, result.note) == (3, 0, "")
    assert result.log_ratios == pytest.approx(tuple(logs))


def test_one_pair_has_a_ratio_and_no_interval_and_says_so() -> None:
    result = paired_ratio([100.0], [142.0])
    assert result.ratio == pytest.approx(1.42)
    assert (result.low, result.high, result.sd, result.p, result.p_min) == (None,) * 5
    assert result.note == "one pair, no interval"
    assert verdict(result, "higher", floor_of(0.01, 1)).word is None
    assert verdict(result, "higher", None).why == "one pair, no interval"


def test_no_pair_at_all_is_said_so() -> None:
    for result in (paired_ratio([], []), paired_ratio([None, math.nan], [1.0, 2.0])):
        assert (result.n, result.ratio, result.low, result.p) == (0, None, None, None)
        assert result.note.startswith("no valid pair")
        assert verdict(result, "higher", None).word is None


def test_one_good_and_two_failed_repeats_leave_the_failures_out_and_state_n() -> None:
    result = paired_ratio([100.0, None, 100.0], [110.0, 120.0, math.nan])
    assert (result.n, result.dropped) == (1, 2)
    assert result.note == "one pair, no interval; 2 pairs left out"
    assert result.ratio == pytest.approx(1.1)


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_a_value_that_has_no_log_drops_its_pair_on_either_side(bad: float | None) -> None:
    for baseline, arm in (([1.0, bad, 1.0], [2.0] * 3), ([1.0] * 3, [2.0, bad, 2.0])):
        result = paired_ratio(baseline, arm)
        assert (result.n, result.dropped) == (2, 1)
        assert result.ratio == pytest.approx(2.0)


def test_unequal_lengths_and_levels_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="2 baseline values against 1"):
        paired_ratio([1, 2], [1])
    with pytest.raises(ValueError, match="level"):
        paired_ratio([1, 2], [1, 2], level=1.0)
    with pytest.raises(ValueError, match="finite"):
        ratio_from_logs([0.1, math.nan])


@fast
@given(pair_lists)
def test_swapping_the_arms_inverts_ratio_and_interval_and_keeps_p(
    pairs: list[tuple[float, float]],
) -> None:
    forth = paired_ratio(*split(pairs))
    back = paired_ratio(*reversed(split(pairs)))
    assert forth.ratio is not None and forth.low is not None and forth.high is not None
    assert back.ratio == pytest.approx(1 / forth.ratio)
    assert (back.low, back.high) == pytest.approx((1 / forth.high, 1 / forth.low))
    assert back.p == forth.p


@fast
@given(pair_lists, st.floats(min_value=1e-3, max_value=1e3))
def test_the_unit_of_the_metric_does_not_matter(
    pairs: list[tuple[float, float]], unit: float
) -> None:
    plain = paired_ratio(*split(pairs))
    scaled = paired_ratio(*split([(b * unit, a * unit) for b, a in pairs]))
    assert (scaled.ratio, scaled.low, scaled.high) == pytest.approx(
        (plain.ratio, plain.low, plain.high)
    )


@fast
@given(pair_lists, st.randoms(use_true_random=False))
def test_the_order_of_the_pairs_does_not_matter(
    pairs: list[tuple[float, float]], rng: random.Random
) -> None:
    shuffled = list(pairs)
    rng.shuffle(shuffled)
    one, two = paired_ratio(*split(pairs)), paired_ratio(*split(shuffled))
    assert (two.ratio, two.low, two.high) == pytest.approx((one.ratio, one.low, one.high))
    assert two.p == one.p


@fast
@given(pair_lists)
def test_the_ratio_lies_in_its_interval_and_a_higher_level_is_wider(
    pairs: list[tuple[float, float]],
) -> None:
    narrow, wide = (paired_ratio(*split(pairs), level=level) for level in (0.8, 0.95))
    assert narrow.ratio is not None and narrow.low is not None and narrow.high is not None
    assert wide.low is not None and wide.high is not None
    slack = 1 + 1e-12
    assert wide.low <= narrow.low * slack <= narrow.ratio * slack**2
    assert narrow.ratio <= narrow.high * slack <= wide.high * slack**2


# ---- permutation p and Holm ----------------------------------------------------------------


@fast
@given(st.lists(st.integers(-40, 40), min_size=2, max_size=9))
def test_permutation_p_is_the_exact_share_of_sign_flips(numbers: list[int]) -> None:
    observed = abs(sum(numbers))
    flips = list(itertools.product((1, -1), repeat=len(numbers)))
    extreme = sum(
        abs(sum(s * x for s, x in zip(signs, numbers, strict=True))) >= observed for signs in flips
    )
    share = Fraction(extreme, len(flips))
    assert sign_flip_p([x / 7 for x in numbers]) == float(share)


def test_permutation_p_is_scipys_where_no_terms_cancel() -> None:
    logs = [0.031, 0.012, -0.004, 0.025, 0.0171, -0.0093, 0.0402]
    scipys = stats.permutation_test((logs,), np.mean, permutation_type="samples", vectorized=True)
    assert sign_flip_p(logs) == scipys.pvalue


def test_permutation_p_needs_a_pair() -> None:
    with pytest.raises(ValueError, match="at least one"):
        sign_flip_p([])


@pytest.mark.parametrize("n", range(2, 11))
def test_the_smallest_p_of_n_pairs_is_reached_when_all_agree(n: int) -> None:
    result = ratio_from_logs([0.01 * (i + 1) for i in range(n)])
    assert result.p == result.p_min == 2 ** (1 - n)


def test_beyond_16_pairs_p_is_drawn_and_the_note_says_so() -> None:
    logs = [0.02 + 0.01 * (-1) ** i for i in range(17)]
    result = ratio_from_logs(logs)
    assert result.note == "p from 65,536 random sign flips"
    assert result.p is not None and result.p < 0.001
    assert result.p == ratio_from_logs(logs).p


@pytest.mark.parametrize("size", [1, 2, 5, 20])
def test_holm_is_statsmodels_holm(size: int) -> None:
    p_values = np.random.default_rng(size).uniform(0, 0.3, size).round(2).tolist()
    assert holm(p_values) == pytest.approx(tuple(multipletests(p_values, method="holm")[1]))


def test_holm_by_hand_and_points_without_p_do_not_count() -> None:
    assert holm([0.01, None, 0.04, 0.03]) == pytest.approx((0.03, None, 0.06, 0.06))
    assert holm([None, None]) == (None, None)
    assert holm([]) == ()


@pytest.mark.parametrize(("points", "pairs"), [(1, 6), (2, 7), (4, 8), (8, 9)])
def test_fewest_pairs_for_a_significant_permutation_p(points: int, pairs: int) -> None:
    assert pairs_for_p(points) == pairs
    assert points * 2 ** (1 - pairs) <= 0.05 < points * 2 ** (2 - pairs)


@pytest.mark.parametrize(("points", "alpha"), [(0, 0.05), (1, 0.0), (1, 1.0)])
def test_fewest_pairs_refuses_what_has_no_answer(points: int, alpha: float) -> None:
    with pytest.raises(ValueError, match="points must be"):
        pairs_for_p(points, alpha)


# ---- noise floor ---------------------------------------------------------------------------


def test_noise_floor_by_hand() -> None:
    floor = noise_floor([0.01, -0.01, 0.03, -0.02], pairs=5)
    assert floor is not None
    mean, sd = 0.0025, math.sqrt((0.0015 - 4 * 0.0025**2) / 3)
    assert floor.sd == pytest.approx(sd)
    assert floor.log == pytest.approx(mean + stats.t.ppf(0.95, 3) * sd * math.sqrt(1 / 5 + 1 / 4))
    assert floor.percent == pytest.approx(100 * (math.exp(floor.log) - 1))
    assert (floor.pairs, floor.aa_pairs, floor.biased) == (5, 4, False)


def test_a_bias_between_the_aa_sides_stays_in_the_floor_however_many_pairs_follow() -> None:
    floor = noise_floor([0.030, 0.031, 0.029, 0.030], pairs=10_000)
    assert floor is not None
    assert floor.biased
    assert floor.log > 0.030


def test_fewer_than_two_aa_pairs_give_no_floor() -> None:
    assert noise_floor([], 3) is None
    assert noise_floor([0.01], 3) is None
    with pytest.raises(ValueError, match="pairs must be"):
        noise_floor([0.01, 0.02], 0)


@fast
@given(
    st.lists(st.floats(-0.2, 0.2), min_size=2, max_size=10),
    st.integers(1, 20),
    st.floats(0.1, 10),
)
def test_floor_scales_with_the_noise_ignores_its_sign_and_never_grows_with_pairs(
    aa: list[float], pairs: int, scale: float
) -> None:
    floor, more = noise_floor(aa, pairs), noise_floor(aa, pairs + 1)
    flipped, scaled = (
        noise_floor([-a for a in aa], pairs),
        noise_floor([scale * a for a in aa], pairs),
    )
    assert floor and more and flipped and scaled
    assert more.log <= floor.log
    assert flipped.log == pytest.approx(floor.log)
    assert scaled.log == pytest.approx(scale * floor.log)


# ---- verdict -------------------------------------------------------------------------------

CLEAR = ratio_from_logs([0.10, 0.11, 0.09, 0.10])
WEAK = ratio_from_logs([0.010, 0.011, 0.009, 0.010])
NOTHING = ratio_from_logs([0.10, -0.11, 0.09, -0.10])


def test_an_interval_off_1_and_beyond_the_floor_is_called_by_the_metrics_direction() -> None:
    floor = floor_of(0.02, 4)
    inverse = ratio_from_logs([-x for x in CLEAR.log_ratios])
    assert verdict(CLEAR, "higher", floor).word == "faster"
    assert verdict(CLEAR, "lower", floor).word == "slower"
    assert verdict(inverse, "higher", floor).word == "slower"
    assert verdict(inverse, "lower", floor).word == "faster"
    assert verdict(CLEAR, "higher", floor).why.startswith(
        "+10.52 % exceeds the A/A floor of 2.02 %"
    )


def test_an_interval_that_holds_1_is_no_difference_seen_with_or_without_a_floor() -> None:
    judged = verdict(NOTHING, "higher", floor_of(0.001, 4))
    assert judged.word == "no difference seen"
    assert judged.why.startswith("1 lies in the 95% interval")
    unjudged = verdict(NOTHING, "higher", None)
    assert unjudged.word == "no difference seen"
    assert "no A/A floor" in unjudged.why


def test_a_change_within_the_floor_is_no_difference_seen_however_tight_the_interval() -> None:
    judged = verdict(WEAK, "higher", floor_of(0.02, 4))
    assert judged.word == "no difference seen"
    assert judged.why.startswith("+1.01 % does not exceed the A/A floor of 2.02 %")
    mean = sum(WEAK.log_ratios) / 4
    assert verdict(WEAK, "higher", floor_of(mean * 1.001, 4)).word == "no difference seen"
    assert verdict(WEAK, "higher", floor_of(mean * 0.999, 4)).word == "faster"


def test_without_a_floor_nothing_is_called_faster_and_it_is_said_so() -> None:
    judged = verdict(CLEAR, "higher", None)
    assert judged.word is None
    assert judged.why.startswith("no A/A floor for this node and workload")


def test_a_raised_floor_is_said_so() -> None:
    assert (
        "A/A ratio itself leaves 1" in verdict(CLEAR, "lower", floor_of(0.02, 4, biased=True)).why
    )


def test_the_reason_states_how_many_pairs_were_left_out() -> None:
    result = paired_ratio([100.0, 100.0, None], [110.0, 112.0, 111.0])
    assert verdict(result, "higher", floor_of(0.02, 2)).why.endswith("n=2; 1 pair left out")


def test_a_metric_without_a_direction_has_no_verdict() -> None:
    assert verdict(CLEAR, "none", floor_of(0.02, 4)).word is None


def test_a_floor_for_another_number_of_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match="floor is for 3 pairs, the result has 4"):
        verdict(CLEAR, "higher", floor_of(0.02, 3))


@fast
@given(pair_lists, st.floats(0, 1))
def test_swapping_arms_or_direction_swaps_faster_and_slower(
    pairs: list[tuple[float, float]], log: float
) -> None:
    floor = floor_of(log, len(pairs))
    forth, back = paired_ratio(*split(pairs)), paired_ratio(*reversed(split(pairs)))
    opposite = {"faster": "slower", "slower": "faster"}
    word = verdict(forth, "higher", floor).word
    assert word is not None
    assert verdict(forth, "lower", floor).word == opposite.get(word, word)
    assert verdict(back, "higher", floor).word == opposite.get(word, word)


# ---- power ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", [2, 3, 6, 10, 40, 1000])
@pytest.mark.parametrize("size", [0.1, 0.5, 1.0, 2.0])
def test_without_a_floor_power_is_the_noncentral_t(pairs: int, size: float) -> None:
    power = verdict_power(0.01 * size, 0.01, pairs, 0.0)
    critical = stats.t.ppf(0.975, pairs - 1)
    assert power == pytest.approx(stats.nct.sf(critical, pairs - 1, size * math.sqrt(pairs)))
    both_tails = TTestPower().power(size, pairs, 0.05)
    assert math.isnan(both_tails) or 0 <= both_tails - power <= 0.0251


@fast
@given(st.floats(0.001, 0.1), st.floats(0.001, 0.1), st.integers(2, 200), st.floats(0, 0.1))
def test_power_is_a_probability_and_falls_with_the_floor(
    delta: float, sd: float, pairs: int, floor: float
) -> None:
    power = verdict_power(delta, sd, pairs, floor)
    assert 0 <= power <= 1 + 1e-9
    assert verdict_power(delta, sd, pairs, floor + 0.005) <= power + 1e-9
    assert verdict_power(delta, sd, pairs, 0.0) >= power - 1e-9


def test_pairs_interval_is_the_textbook_sample_size() -> None:
    aa = [0.02 * math.sqrt(15 / 16), -0.02 * math.sqrt(15 / 16)] * 8
    plan = pairs_needed(aa, 0.02, duration_s=600)
    textbook = TTestPower().solve_power(math.log(1.02) / 0.02, power=0.8, alpha=0.05)
    assert plan.pairs_interval == math.ceil(textbook)
    assert plan.sd == pytest.approx(0.02)
    assert plan.pairs is not None and plan.pairs >= math.ceil(textbook)
    assert plan.seconds == 2 * plan.pairs * 600


def test_more_aa_pairs_never_ask_for_more_pairs_and_caution_never_for_fewer() -> None:
    plans = [
        pairs_needed([0.01 * (-1) ** i for i in range(m)], 0.03, duration_s=60)
        for m in (4, 8, 16, 32, 64)
    ]
    pairs = [plan.pairs for plan in plans if plan.pairs is not None]
    cautious = [plan.pairs_cautious for plan in plans if plan.pairs_cautious is not None]
    assert len(pairs) == len(cautious) == 5
    assert pairs == sorted(pairs, reverse=True)
    assert cautious == sorted(cautious, reverse=True)
    assert all(c >= p for c, p in zip(cautious, pairs, strict=True))


def test_another_duration_scales_the_noise_only_when_asked_and_says_it_is_assumed() -> None:
    aa = [0.01, -0.01] * 8
    plain = pairs_needed(aa, 0.02, duration_s=60)
    longer = pairs_needed(aa, 0.02, duration_s=60, wanted_duration_s=240)
    assert longer.sd == pytest.approx(plain.sd / 2)
    assert plain.pairs is not None and longer.pairs is not None
    assert longer.pairs < plain.pairs
    assert longer.duration_s == 240
    assert plain.note == ""
    assert longer.note == "noise assumed, not measured, to fall as 1/sqrt(duration) from 60 s"


def test_a_short_aa_campaign_that_limits_the_verdict_is_named() -> None:
    plan = pairs_needed([0.01, -0.01, 0.0], 0.02, duration_s=60)
    assert plan.pairs is not None and plan.pairs_interval is not None
    assert plan.pairs > plan.pairs_interval
    assert plan.note == (
        "the floor of 3 A/A pairs is what limits it: with a longer A/A campaign down to "
        f"{plan.pairs_interval} pairs would do"
    )


def test_an_effect_below_a_biased_floor_is_out_of_reach() -> None:
    plan = pairs_needed([0.03, 0.031, 0.029], 0.02, duration_s=60)
    assert (plan.pairs, plan.seconds) == (None, None)


def test_a_noiseless_node_needs_the_two_pairs_of_an_interval() -> None:
    assert pairs_needed([0.0, 0.0], -0.01, duration_s=60).pairs == 2


@pytest.mark.parametrize(
    ("aa", "effect", "options", "message"),
    [
        ([0.01], 0.02, {}, "two A/A pairs"),
        ([0.01, -0.01], 0.0, {}, "effect"),
        ([0.01, -0.01], -1.0, {}, "effect"),
        ([0.01, -0.01], 0.02, {"duration_s": 0}, "durations"),
        ([0.01, -0.01], 0.02, {"power": 1.0}, "power"),
        ([0.01, -0.01], 0.02, {"alpha": 0.0}, "alpha"),
    ],
)
def test_a_plan_refuses_arguments_out_of_range(
    aa: list[float], effect: float, options: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pairs_needed(aa, effect, **{"duration_s": 60, **options})
