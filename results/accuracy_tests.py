"""Did the arm keep the score? Tests on right/wrong answers to the same items; pure functions.

Which method, why, and its measured error rates: ``docs/statistics.md``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from scipy import optimize, stats

from samenode.errors import UserError

WORSE = "worse"
NOT_SETTLED = "not settled (n too small)"

GSM8K_ITEMS = 1319
"""Test items of openai/gsm8k main."""


def not_worse(margin: float) -> str:
    """The verdict word of a shown non-inferiority, e.g. "... by more than 0.01"."""
    return f"not worse than the baseline by more than {margin:g}"


@dataclass(frozen=True)
class Score:
    """Share of right answers with its interval.

    Attributes:
        correct: right answers.
        items: items answered or counted as wrong.
        score: correct / items.
        low: lower end of the interval, 0 to 1.
        high: upper end.
        level: confidence level.
    """

    correct: int
    items: int
    score: float
    low: float
    high: float
    level: float


def score_interval(
    correct: int,
    items: int,
    *,
    level: float = 0.95,
    method: Literal["wilson", "clopper-pearson"] = "wilson",
) -> Score:
    """Binomial interval of one score.

    Wilson's covers about ``level`` on average and is the shorter; Clopper-Pearson's covers at
    least ``level`` for every true score.

    Raises:
        ValueError: ``items`` is below 1, ``correct`` not between 0 and ``items``, or ``level`` not
            between 0 and 1.
    """
    _check_counts(correct, items)
    _check_fraction("level", level)
    interval = stats.binomtest(correct, items).proportion_ci(
        level, method="wilson" if method == "wilson" else "exact"
    )
    return Score(correct, items, correct / items, float(interval.low), float(interval.high), level)


@dataclass(frozen=True)
class WidenedFloor:
    """A score floor set for a full test set, as it applies to fewer of its items.

    Attributes:
        floor: the floor on the full set.
        full_items: size of the full set.
        items: items that were run.
        needed: right answers needed to pass.
        value: the floor that holds for ``items``; ``floor`` itself on the full set.
        alpha: chance that a model exactly at the floor fails on the subset, at most.
    """

    floor: float
    full_items: int
    items: int
    needed: int
    value: float
    alpha: float

    def passes(self, correct: int) -> bool:
        """Whether ``correct`` right answers of ``items`` hold the floor."""
        return correct >= self.needed


def widened_floor(
    floor: float, items: int, *, full_items: int = GSM8K_ITEMS, alpha: float = 0.05
) -> WidenedFloor:
    """The floor for ``items`` of ``full_items``: failed only where the full set would fail.

    Taken is a model that just holds the floor on the full set, ceil(floor · full_items) right.
    ``needed`` is the largest count that such a model misses with probability alpha at most on
    ``items`` drawn without replacement, i.e. the binomial error with the finite-population
    correction (hypergeometric). It joins the plain floor at ``items`` = ``full_items`` without a
    step and is the binomial one for few items.

    Raises:
        ValueError: ``items`` is not between 1 and ``full_items``, or ``floor`` or ``alpha`` not
            between 0 and 1.
    """
    if not 1 <= items <= full_items:
        raise ValueError(f"items must lie between 1 and {full_items}, got {items}")
    _check_fraction("floor", floor)
    _check_fraction("alpha", alpha)
    at_floor = math.ceil(round(floor * full_items, 9))
    needed = int(stats.hypergeom.ppf(alpha, full_items, at_floor, items))
    return WidenedFloor(floor, full_items, items, needed, min(floor, needed / items), alpha)


@dataclass(frozen=True)
class PairedAccuracy:
    """An arm's answers against the baseline's on the same items.

    Attributes:
        items: items both arms answered (all of them: the sets must agree).
        both_right: items right in both arms.
        both_wrong: items wrong in both.
        lost: items right in the baseline and wrong in the arm, sorted.
        gained: items wrong in the baseline and right in the arm, sorted.
        baseline_score: share right in the baseline.
        arm_score: share right in the arm.
        difference: arm_score - baseline_score.
        low: lower end of Tango's score interval of the difference.
        high: upper end.
        level: its confidence level.
        mcnemar_p: two-sided exact McNemar p that both arms err equally often.
        margin: the largest loss that is accepted, as a share.
        margin_p: one-sided p against a loss of ``margin`` or more; below (1 - level) / 2 exactly
            where ``low`` lies above -margin.
        word: ``not_worse(margin)``, ``WORSE`` or ``NOT_SETTLED``.
        why: one short clause, to be printed behind the word.
    """

    items: int
    both_right: int
    both_wrong: int
    lost: tuple[int, ...]
    gained: tuple[int, ...]
    baseline_score: float
    arm_score: float
    difference: float
    low: float
    high: float
    level: float
    mcnemar_p: float
    margin: float
    margin_p: float
    word: str
    why: str


def paired_accuracy(
    baseline: Mapping[int, bool],
    arm: Mapping[int, bool],
    *,
    margin: float,
    level: float = 0.95,
) -> PairedAccuracy:
    """McNemar's test and non-inferiority to ``margin`` on the same items.

    The word, in this order: not worse by more than the margin, if Tango's interval lies above
    -margin; worse, if the arm lost more items than it gained and McNemar's p is below 1 - level;
    not settled, otherwise.

    Args:
        baseline: item id (lm-eval's ``doc_id``) -> answered right, for one filter.
        arm: the same for the arm.
        margin: the largest loss that is accepted, as a share between 0 and 1 (0.01: one point).
        level: confidence level of the interval.

    Raises:
        UserError: the arms did not answer the same items, or none.
        ValueError: ``margin`` or ``level`` is not between 0 and 1.
    """
    _check_fraction("margin", margin)
    _check_fraction("level", level)
    if baseline.keys() != arm.keys():
        raise UserError(
            "The arms answered different items "
            f"({_some(baseline.keys() - arm.keys())} only in the baseline, "
            f"{_some(arm.keys() - baseline.keys())} only in the arm); "
            "run both with the same limit."
        )
    if not baseline:
        raise UserError("No item was answered, so the arms' scores cannot be compared.")
    n = len(baseline)
    lost = tuple(sorted(item for item, right in baseline.items() if right and not arm[item]))
    gained = tuple(sorted(item for item, right in arm.items() if right and not baseline[item]))
    both_right = sum(right and arm[item] for item, right in baseline.items())
    low, high = tango_interval(len(gained), len(lost), n, level=level)
    p = mcnemar_p(len(gained), len(lost))
    flips = f"{len(lost)} lost, {len(gained)} gained of {n}"
    interval = f"{level:.0%} interval of the difference {low:+.4f} to {high:+.4f}"
    why = f"{interval}; {flips}, McNemar p {p:.3g}"
    if low > -margin:
        word = not_worse(margin)
        if len(lost) > len(gained) and p < 1 - level:
            why += "; a loss within the margin is seen"
    elif len(lost) > len(gained) and p < 1 - level:
        word = WORSE
    else:
        word = NOT_SETTLED
        best = -tango_interval(0, 0, n, level=level)[0]
        if best >= margin:
            why += f"; even without a flip {n} items rule out no loss below {best:.4f}"
    return PairedAccuracy(
        items=n,
        both_right=both_right,
        both_wrong=n - both_right - len(lost) - len(gained),
        lost=lost,
        gained=gained,
        baseline_score=(both_right + len(lost)) / n,
        arm_score=(both_right + len(gained)) / n,
        difference=(len(gained) - len(lost)) / n,
        low=low,
        high=high,
        level=level,
        mcnemar_p=p,
        margin=margin,
        margin_p=float(stats.norm.sf(_tango_z(len(gained), len(lost), n, -margin))),
        word=word,
        why=why,
    )


def mcnemar_p(gained: int, lost: int) -> float:
    """Two-sided exact McNemar p: ``gained`` of the flipped items against a fair coin.

    1 where nothing flipped.

    Raises:
        ValueError: a count is negative.
    """
    if gained < 0 or lost < 0:
        raise ValueError(f"counts must be >= 0, got {gained} and {lost}")
    flipped = gained + lost
    return float(stats.binomtest(gained, flipped).pvalue) if flipped else 1.0


def tango_interval(
    gained: int, lost: int, items: int, *, level: float = 0.95
) -> tuple[float, float]:
    """Tango's score interval of the paired difference (gained - lost) / items.

    All differences that the score test does not reject. Tango (1998), Statistics in Medicine
    17:891, "Equivalence test and confidence interval for the difference in proportions for the
    paired-sample design".

    Raises:
        ValueError: ``items`` is below 1, a count negative, or their sum above ``items``.
    """
    if min(gained, lost) < 0:
        raise ValueError(f"counts must be >= 0, got {gained} and {lost}")
    _check_counts(gained + lost, items)
    _check_fraction("level", level)
    z = float(stats.norm.ppf((1 + level) / 2))
    estimate, edge = (gained - lost) / items, 1 - 1e-9

    def bound(end: float, wanted: float) -> float:
        if abs(estimate) > edge and end * estimate > 0:
            return end
        root = optimize.brentq(
            lambda delta: _tango_z(gained, lost, items, delta) - wanted,
            *sorted((min(max(estimate, -edge), edge), end * edge)),
            xtol=1e-12,
        )
        return float(root)

    return bound(-1.0, z), bound(1.0, -z)


def _tango_z(gained: int, lost: int, items: int, delta: float) -> float:
    """Score statistic of H0: P(gained) - P(lost) = delta, about standard normal under H0.

    ``q`` is the maximum likelihood estimate of P(lost) under H0, the larger root of
    2n q² + ((2n - g + l) delta - g - l) q - l delta (1 - delta) = 0.
    """
    a = 2 * items
    b = (2 * items - gained + lost) * delta - gained - lost
    c = -lost * delta * (1 - delta)
    q = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
    distance = gained - lost - items * delta
    variance = items * (2 * q + delta * (1 - delta))
    if distance == 0:
        return 0.0
    return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance)


def _check_counts(correct: int, items: int) -> None:
    if items < 1 or not 0 <= correct <= items:
        raise ValueError(f"counts must satisfy 0 <= {correct} <= {items} and items >= 1")


def _check_fraction(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name} must lie between 0 and 1, got {value}")


def _some(items: set[int]) -> str:
    shown = ", ".join(map(str, sorted(items)[:3]))
    return f"{len(items)} ({shown}{', …' if len(items) > 3 else ''})" if items else "0"
