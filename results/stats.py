"""Is the difference between two arms real? Pure functions on numbers; nothing touches files.

The unit of evidence is the **pair**: one launch of the baseline and one of the arm, side by side
on one node. Within a point everything is done on the log-ratios of its pairs. What each figure
means, why this method and what it cannot say: ``docs/statistics.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import integrate, stats

from results.columns import Direction

Word = Literal["faster", "slower", "no difference seen"]

_SIGN_FLIPS = 2**16
"""Up to 16 pairs every sign flip is enumerated; beyond, this many are drawn (fixed seed)."""

_NO_FLOOR = "no A/A floor for this node and workload"

_MOST_PAIRS = 10_000
"""A plan that needs more pairs than this is called out of reach."""


@dataclass(frozen=True)
class PairedRatio:
    """Arm over baseline across the pairs of one point and one metric.

    Attributes:
        n: pairs used.
        dropped: pairs left out because a side is missing, not finite, or not above 0.
        ratio: geometric mean of arm / baseline; None without a pair.
        low: lower end of the interval of ``ratio``; None below two pairs.
        high: upper end.
        level: confidence level of the interval.
        sd: standard deviation of the log-ratios (n - 1 in the denominator).
        p: two-sided p value of the sign-flip permutation test on the mean log-ratio.
        p_min: the smallest ``p`` that n pairs can give, 2**(1 - n).
        log_ratios: ln(arm / baseline) of each pair used, in order.
        note: what a reader must be told, e.g. "one pair, no interval"; empty if nothing.
    """

    n: int
    dropped: int
    ratio: float | None
    low: float | None
    high: float | None
    level: float
    sd: float | None
    p: float | None
    p_min: float | None
    log_ratios: tuple[float, ...]
    note: str


def paired_ratio(
    baseline: Sequence[float | None], arm: Sequence[float | None], *, level: float = 0.95
) -> PairedRatio:
    """Ratio of ``arm`` to ``baseline`` over pairs, with interval and permutation p.

    Args:
        baseline: value of the metric in the baseline's launch of each pair, any one unit. None or
            NaN where the row is missing or invalid.
        arm: the same for the arm, in the same order and unit.
        level: confidence level of the interval, between 0 and 1.

    Raises:
        ValueError: the sequences differ in length, or ``level`` is not between 0 and 1.
    """
    if len(baseline) != len(arm):
        raise ValueError(f"{len(baseline)} baseline values against {len(arm)} arm values")
    logs = [
        math.log(a) - math.log(b)
        for b, a in zip(baseline, arm, strict=True)
        if b is not None and a is not None and 0 < b < math.inf and 0 < a < math.inf
    ]
    return ratio_from_logs(logs, dropped=len(arm) - len(logs), level=level)


def ratio_from_logs(
    log_ratios: Sequence[float], *, dropped: int = 0, level: float = 0.95
) -> PairedRatio:
    """The same as :func:`paired_ratio` from log-ratios already taken (all finite).

    Interval: Student's t on the mean log-ratio, mean ± t(n - 1) · sd / sqrt(n), exponentiated.
    p: Fisher's randomisation test for pairs, :func:`sign_flip_p`.

    Raises:
        ValueError: a log-ratio is not finite, or ``level`` is not between 0 and 1.
    """
    logs = _checked(log_ratios, level)
    n = len(logs)
    notes = [] if not dropped else [f"{dropped} {_pairs(dropped)} left out"]
    if n < 2:
        notes.insert(0, "one pair, no interval" if n else "no valid pair")
        return PairedRatio(
            n=n,
            dropped=dropped,
            ratio=math.exp(logs[0]) if n else None,
            low=None,
            high=None,
            level=level,
            sd=None,
            p=None,
            p_min=None,
            log_ratios=tuple(logs.tolist()),
            note="; ".join(notes),
        )
    if 2**n > _SIGN_FLIPS:
        notes.append(f"p from {_SIGN_FLIPS:,} random sign flips")
    low, high = _t_interval(logs, level)
    return PairedRatio(
        n=n,
        dropped=dropped,
        ratio=math.exp(logs.mean()),
        low=math.exp(low),
        high=math.exp(high),
        level=level,
        sd=float(logs.std(ddof=1)),
        p=sign_flip_p(logs.tolist()),
        p_min=2.0 ** (1 - n),
        log_ratios=tuple(logs.tolist()),
        note="; ".join(notes),
    )


def sign_flip_p(log_ratios: Sequence[float]) -> float:
    """Two-sided p of the sign-flip permutation test that the mean log-ratio is 0.

    The share of sign flips whose sum lies at least as far from 0 as the one seen. Exact for up to
    16 pairs; beyond, (1 + hits) / (1 + 65,536) from flips drawn with a fixed seed.

    Raises:
        ValueError: there is no log-ratio.
    """
    n = len(log_ratios)
    if n == 0:
        raise ValueError("a permutation test needs at least one log-ratio")
    logs = np.asarray(log_ratios, dtype=float)
    # scipy.stats.permutation_test takes equal sums for different ones where the terms cancel and
    # only rounding separates them; hence the tolerance, relative to the terms.
    least = abs(logs.sum()) - 1e-12 * np.abs(logs).sum()
    if 2**n <= _SIGN_FLIPS:
        signs = 1 - 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
        return float(np.mean(np.abs(signs @ logs) >= least))
    signs = np.random.default_rng(0).choice((-1, 1), (_SIGN_FLIPS, n))
    return float((1 + np.sum(np.abs(signs @ logs) >= least)) / (1 + _SIGN_FLIPS))


def holm(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Holm's step-down adjustment over the points shown together.

    The i-th smallest of m p values (i from 0) is multiplied by m - i, raised to the largest
    product before it, and capped at 1 (Holm 1979, Scandinavian Journal of Statistics 6:65). None
    (a point without a p value) stays None and does not count in m.
    """
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        adjusted[i] = largest
    return tuple(adjusted)


def pairs_for_p(points: int = 1, alpha: float = 0.05) -> int:
    """Fewest pairs with which the permutation p, Holm-adjusted over ``points``, can reach alpha.

    Solves points · 2**(1 - n) <= alpha for n.

    Raises:
        ValueError: ``points`` is below 1 or ``alpha`` not between 0 and 1.
    """
    if points < 1 or not 0 < alpha < 1:
        raise ValueError(f"points must be >= 1 and 0 < alpha < 1, got {points} and {alpha}")
    return 1 + math.ceil(math.log2(points / alpha))


@dataclass(frozen=True)
class NoiseFloor:
    """How far the ratio of a campaign without any effect strays from 1.

    Attributes:
        log: the floor as an absolute ln(ratio). A campaign of ``pairs`` pairs of identical arms
            goes beyond it with probability 1 - level at most.
        pairs: number of pairs of the campaign that the floor is for.
        aa_pairs: number of A/A pairs it was measured with.
        sd: standard deviation of the A/A log-ratios, the noise of one pair.
        biased: the A/A ratio's own interval leaves 1: its two sides are not alike.
        level: see ``log``.
    """

    log: float
    pairs: int
    aa_pairs: int
    sd: float
    biased: bool
    level: float

    @property
    def percent(self) -> float:
        """The floor as a change in percent, 100 · (exp(log) - 1)."""
        return 100 * math.expm1(self.log)


def noise_floor(
    aa_log_ratios: Sequence[float], pairs: int, *, level: float = 0.95
) -> NoiseFloor | None:
    """The A/A noise floor for a campaign of ``pairs`` pairs; None with fewer than two A/A pairs.

    floor = abs(mean) + t · sd · sqrt(1 / pairs + 1 / m) over the m A/A log-ratios, where t is the
    one-sided ``level`` quantile of Student's t with m - 1 degrees of freedom. It is the end of
    the prediction interval for the mean of ``pairs`` further no-effect pairs, so it holds noise
    that averages out, a constant bias between the two sides that does not, and the uncertainty
    of an A/A campaign that is short itself.

    Args:
        aa_log_ratios: ln(slot 1 / slot 0) of each A/A pair: same node, workload, duration and
            metric as the campaign.
        pairs: number of valid pairs of the campaign to be judged, 1 or more.
        level: share of no-effect campaigns that stay within the floor, at least.

    Raises:
        ValueError: ``pairs`` is below 1, or as :func:`ratio_from_logs`.
    """
    if pairs < 1:
        raise ValueError(f"pairs must be >= 1, got {pairs}")
    aa = _checked(aa_log_ratios, level)
    m = len(aa)
    if m < 2:
        return None
    sd = float(aa.std(ddof=1))
    reach = float(stats.t.ppf(level, m - 1)) * sd * math.sqrt(1 / pairs + 1 / m)
    low, high = _t_interval(aa, level)
    return NoiseFloor(abs(float(aa.mean())) + reach, pairs, m, sd, not low <= 0 <= high, level)


@dataclass(frozen=True)
class Verdict:
    """What may be said of one metric at one point.

    Attributes:
        word: one of the three words, or None where none may be said (``why`` tells why).
        why: one short clause, to be printed behind the word.
    """

    word: Word | None
    why: str


def verdict(result: PairedRatio, direction: Direction, floor: NoiseFloor | None) -> Verdict:
    """Faster or slower only if the interval leaves 1 and the change exceeds the A/A floor.

    For a metric whose direction is "lower" a ratio below 1 is "faster". Without an interval, and
    where the interval leaves 1 but there is no floor to hold it against, no word is given.

    Raises:
        ValueError: ``floor`` was computed for another number of pairs than ``result`` has.
    """
    if result.ratio is None or result.low is None or result.high is None:
        return Verdict(None, result.note)
    if direction == "none":
        return Verdict(None, "neither direction of this metric is better")
    if floor is not None and floor.pairs != result.n:
        raise ValueError(f"the floor is for {floor.pairs} pairs, the result has {result.n}")
    seen = f"{result.level:.0%} interval {result.low:.4f} to {result.high:.4f}, n={result.n}"
    if result.note:
        seen += f"; {result.note}"
    if result.low <= 1 <= result.high:
        missing = f"; {_NO_FLOOR}" if floor is None else ""
        return Verdict("no difference seen", f"1 lies in the {seen}{missing}")
    if floor is None:
        return Verdict(None, f"{_NO_FLOOR}, measure it to have a verdict; {seen}")
    change = f"{100 * (result.ratio - 1):+.2f} %"
    limit = f"the A/A floor of {floor.percent:.2f} %"
    if floor.biased:
        limit += " (the A/A ratio itself leaves 1)"
    if abs(math.log(result.ratio)) <= floor.log:
        return Verdict("no difference seen", f"{change} does not exceed {limit}; {seen}")
    word: Word = "faster" if (result.ratio > 1) == (direction == "higher") else "slower"
    return Verdict(word, f"{change} exceeds {limit}; {seen}")


@dataclass(frozen=True)
class PowerPlan:
    """How many pairs a wanted effect needs on this node.

    Attributes:
        effect: relative change to be found, e.g. 0.02.
        power: probability of finding it.
        alpha: two-sided error rate of the interval and of the floor.
        aa_pairs: A/A pairs the noise was measured with.
        sd: noise of one pair of ``duration_s``, the standard deviation of its log-ratio.
        duration_s: seconds a point.
        pairs_interval: pairs until the interval leaves 1 with this power (noncentral t).
        pairs: pairs until the verdict has this power: the interval leaves 1 and the change
            exceeds the floor that these A/A pairs give.
        pairs_cautious: ``pairs`` if the true noise is at its upper 80 % confidence bound.
        seconds: measured time of ``pairs`` pairs, 2 · pairs · duration_s, without set-up.
        note: assumptions that were not measured, and a floor that asks for more pairs than the
            interval does; empty if neither.

    A number of pairs is None where more than 10,000 would be needed.
    """

    effect: float
    power: float
    alpha: float
    aa_pairs: int
    sd: float
    duration_s: float
    pairs_interval: int | None
    pairs: int | None
    pairs_cautious: int | None
    seconds: float | None
    note: str


def pairs_needed(
    aa_log_ratios: Sequence[float],
    effect: float,
    *,
    duration_s: float,
    wanted_duration_s: float | None = None,
    power: float = 0.8,
    alpha: float = 0.05,
) -> PowerPlan:
    """Pairs needed to find a relative change of ``effect``, from the node's A/A history.

    The interval's power is the noncentral t distribution's; the verdict's also counts the floor
    (:func:`verdict_power` for both). The cautious figure follows Browne (1995), Statistics in
    Medicine 14:1933: plan with the 80 % upper confidence bound of the SD.

    Args:
        aa_log_ratios: as in :func:`noise_floor`, two pairs or more.
        effect: relative change, not 0 and above -1; 0.02 for 2 %.
        duration_s: seconds a point of the A/A history.
        wanted_duration_s: plan for points of another length; the noise is then assumed, not
            known, to fall with the square root of the duration, and ``note`` says so.
        power: wanted probability of the verdict, between 0 and 1.
        alpha: two-sided error rate, between 0 and 1.

    Raises:
        ValueError: fewer than two A/A pairs, or an argument out of its range.
    """
    durations = (duration_s, duration_s if wanted_duration_s is None else wanted_duration_s)
    if len(aa_log_ratios) < 2:
        raise ValueError("power needs at least two A/A pairs")
    if effect <= -1 or effect == 0 or min(durations) <= 0:
        raise ValueError("effect must be above -1 and not 0, durations above 0")
    if not (0 < power < 1 and 0 < alpha < 1):
        raise ValueError("power and alpha must lie between 0 and 1")
    scale = math.sqrt(durations[0] / durations[1])
    aa = [scale * a for a in aa_log_ratios]
    m, sd, delta = len(aa), float(np.std(aa, ddof=1)), abs(math.log1p(effect))
    cautious_sd = sd * math.sqrt((m - 1) / stats.chi2.ppf(0.2, m - 1))

    def full_power(n: int, true_sd: float) -> float:
        floor = noise_floor(aa, n, level=1 - alpha)
        assert floor is not None  # two A/A pairs or more
        return verdict_power(delta, true_sd, n, floor.log, alpha=alpha)

    pairs_interval = _fewest(lambda n: verdict_power(delta, sd, n, 0.0, alpha=alpha) >= power)
    pairs = _fewest(lambda n: full_power(n, sd) >= power)
    notes = []
    if scale != 1:
        notes.append(
            f"noise assumed, not measured, to fall as 1/sqrt(duration) from {duration_s:g} s"
        )
    if pairs_interval is not None and (pairs is None or pairs > pairs_interval):
        notes.append(
            f"the floor of {m} A/A {_pairs(m)} is what limits it: with a longer A/A campaign down "
            f"to {pairs_interval} {_pairs(pairs_interval)} would do"
        )
    return PowerPlan(
        effect=effect,
        power=power,
        alpha=alpha,
        aa_pairs=m,
        sd=sd,
        duration_s=durations[1],
        pairs_interval=pairs_interval,
        pairs=pairs,
        pairs_cautious=_fewest(lambda n: full_power(n, cautious_sd) >= power),
        seconds=None if pairs is None else 2 * pairs * durations[1],
        note="; ".join(notes),
    )


def verdict_power(
    delta: float, sd: float, pairs: int, floor: float, *, alpha: float = 0.05
) -> float:
    """Probability of the right verdict for a true log-ratio ``delta`` > 0.

    The verdict needs mean > max(floor, t(n - 1) · s / sqrt(n)). Mean and s are independent for
    normal log-ratios, and s · sqrt(n - 1) / sd follows the chi distribution with n - 1 degrees of
    freedom, so this is P(mean > max(...)) averaged over s: a one-dimensional integral. With
    floor 0 it is the upper tail of the noncentral t distribution.

    Args:
        delta: true ln(ratio), above 0.
        sd: true standard deviation of one pair's log-ratio, 0 or more.
        pairs: number of pairs, 2 or more.
        floor: the A/A floor, as an absolute ln(ratio).
        alpha: two-sided error rate of the interval.
    """
    if sd == 0:
        return 1.0 if delta > floor else 0.0
    spread = stats.chi(pairs - 1)
    error = sd / math.sqrt(pairs)
    critical = _t(1 - alpha, pairs - 1) / math.sqrt(pairs - 1)
    kink = floor / error / critical
    below = float(spread.cdf(kink) * stats.norm.sf((floor - delta) / error))
    start, end = max(kink, float(spread.ppf(1e-10))), float(spread.ppf(1 - 1e-10))
    if start >= end:
        return below
    above, _ = integrate.fixed_quad(
        lambda x: spread.pdf(x) * stats.norm.sf(critical * x - delta / error), start, end, n=100
    )
    return below + float(above)


def _fewest(enough: Callable[[int], bool]) -> int | None:
    """Smallest n from 2 to the limit for which ``enough`` holds; it must be monotone."""
    high = 2
    while not enough(high):
        if high >= _MOST_PAIRS:
            return None
        high = min(2 * high, _MOST_PAIRS)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _checked(log_ratios: Sequence[float], level: float) -> NDArray[np.float64]:
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    logs = np.asarray(log_ratios, dtype=float)
    if not np.isfinite(logs).all():
        raise ValueError("a log-ratio is not finite")
    return logs


def _t_interval(logs: NDArray[np.float64], level: float) -> tuple[float, float]:
    """Student's t interval of the mean of two or more log-ratios."""
    mean, n = float(logs.mean()), len(logs)
    half = _t(level, n - 1) * float(logs.std(ddof=1)) / math.sqrt(n)
    return mean - half, mean + half


def _t(level: float, df: int) -> float:
    """Two-sided critical value of Student's t."""
    return float(stats.t.ppf((1 + level) / 2, df))


def _pairs(n: int) -> str:
    return "pair" if n == 1 else "pairs"
