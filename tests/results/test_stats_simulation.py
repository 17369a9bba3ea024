"""Simulated campaigns with a known truth: what the interval, the floor and the verdict do.

``python -m tests.results.test_stats_simulation`` prints the tables of ``docs/statistics.md``; a
test below holds the document to them. The noise unit throughout is the SD of one pair's log-ratio.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from results.accuracy_tests import tango_interval, widened_floor
from results.order import abba
from results.stats import (
    noise_floor,
    paired_ratio,
    pairs_needed,
    ratio_from_logs,
    verdict,
    verdict_power,
)

Floats = NDArray[np.float64]
Order = Sequence[Sequence[int]]
Noise = Literal["normal", "heavy", "skewed"]

DOCUMENT = Path(__file__).parents[2] / "docs" / "statistics.md"
SEED = 20261129
CAMPAIGNS = 20_000
SIZES = (2, 3, 4, 5, 6, 8, 10)


# ---- the simulator -------------------------------------------------------------------------


def simulate(
    rng: np.random.Generator,
    campaigns: int,
    order: Order,
    *,
    effect: float = 0.0,
    sd: float = 0.01,
    rho: float = 0.0,
    drift: float = 0.0,
    noise: Noise = "normal",
) -> tuple[Floats, Floats]:
    """Values of the baseline (slot 0) and the arm (slot 1), each of shape [campaigns, pairs].

    ``order`` is the sequence of launches, grouped in any way; the k-th launch of a slot belongs to
    pair k. ``effect`` is the true ln(ratio). Launch noise is AR(1) with lag-one correlation
    ``rho``, scaled so that the difference of two neighbouring launches has SD ``sd``. ``drift`` is
    the trend a launch in units of ``sd``.
    """
    launches = [slot for group in order for slot in group]
    shape = (campaigns, len(launches))
    if noise == "normal":
        shocks = rng.standard_normal(shape)
    elif noise == "heavy":
        shocks = rng.standard_t(5, shape) / math.sqrt(5 / 3)
    else:
        raw = stats.lognorm(0.5)
        shocks = -(rng.lognormal(0, 0.5, shape) - raw.mean()) / raw.std()
    level = np.empty(shape)
    level[:, 0] = shocks[:, 0]
    for i in range(1, shape[1]):
        level[:, i] = rho * level[:, i - 1] + math.sqrt(1 - rho**2) * shocks[:, i]
    level *= sd / math.sqrt(2 * (1 - rho))
    level += drift * sd * np.arange(shape[1])
    slots = np.array(launches)
    return 100 * np.exp(level[:, slots == 0]), 100 * np.exp(level[:, slots == 1] + effect)


def logs_of(values: tuple[Floats, Floats]) -> Floats:
    return np.asarray(np.log(values[1]) - np.log(values[0]))


def t_limits(logs: Floats) -> tuple[Floats, Floats]:
    """The interval of ``results.stats`` for many campaigns at once (a test compares them)."""
    n = logs.shape[1]
    half = stats.t.ppf(0.975, n - 1) * logs.std(axis=1, ddof=1) / math.sqrt(n)
    mean = logs.mean(axis=1)
    return mean - half, mean + half


def floors(aa: Floats, pairs: int) -> Floats:
    """The floor of ``results.stats`` for many A/A campaigns at once (a test compares them)."""
    m = aa.shape[1]
    reach = stats.t.ppf(0.95, m - 1) * aa.std(axis=1, ddof=1) * math.sqrt(1 / pairs + 1 / m)
    return np.asarray(np.abs(aa.mean(axis=1)) + reach)


def called(logs: Floats, floor: Floats | float) -> Floats:
    """Sign of the verdict of each campaign: +1, -1, or 0 for "no difference seen"."""
    low, high = t_limits(logs)
    mean = logs.mean(axis=1)
    leaves = (low > 0) | (high < 0)
    return np.asarray(np.where(leaves & (np.abs(mean) > floor), np.sign(mean), 0.0))


def covered(logs: Floats, truth: float) -> float:
    low, high = t_limits(logs)
    return float(np.mean((low <= truth) & (truth <= high)))


# ---- the tables of docs/statistics.md ------------------------------------------------------


def method_table() -> list[list[str]]:
    """Coverage of the candidate intervals under independent normal noise."""
    rows = [["interval", *(f"n={n}" for n in SIZES)]]
    rng = np.random.default_rng(SEED)
    data = [logs_of(simulate(rng, CAMPAIGNS, abba(n))) for n in SIZES]
    rows.append(["t on log-ratios", *(f"{covered(logs, 0.0):.3f}" for logs in data)])
    for method in ("BCa", "percentile"):
        row = [f"bootstrap, {method}"]
        for logs in data:
            with np.errstate(all="ignore"):
                ci = stats.bootstrap(
                    (logs[:2000],), np.mean, axis=1, n_resamples=999, method=method, rng=rng
                ).confidence_interval
            row.append(f"{np.mean((ci.low <= 0) & (ci.high >= 0)):.3f}")
        rows.append(row)
    return rows


CONDITIONS: tuple[tuple[str, float, float, Noise], ...] = (
    ("autocorrelation 0.3", 0.3, 0.0, "normal"),
    ("autocorrelation 0.5", 0.5, 0.0, "normal"),
    ("drift 0.25 SD a launch", 0.0, 0.25, "normal"),
    ("drift 0.5 SD a launch", 0.0, 0.5, "normal"),
    ("drift 1 SD a launch", 0.0, 1.0, "normal"),
    ("both: 0.3 and 0.25", 0.3, 0.25, "normal"),
    ("heavy tails (t, 5 df)", 0.0, 0.0, "heavy"),
    ("skewed (log-normal)", 0.0, 0.0, "skewed"),
)


def coverage_table() -> list[list[str]]:
    """Coverage of the t interval where its assumptions fail; true effect +5 %."""
    rows = [["condition", *(f"n={n}" for n in SIZES)]]
    rng = np.random.default_rng(SEED + 1)
    effect = math.log(1.05)
    for name, rho, drift, noise in CONDITIONS:
        row = [name]
        for n in SIZES:
            values = simulate(
                rng, CAMPAIGNS, abba(n), effect=effect, rho=rho, drift=drift, noise=noise
            )
            row.append(f"{covered(logs_of(values), effect):.3f}")
        rows.append(row)
    return rows


FALSE_ALARMS: tuple[tuple[str, float, float, float], ...] = (
    ("independent", 0.0, 0.0, 0.0),
    ("autocorrelation 0.5", 0.5, 0.0, 0.0),
    ("drift 0.25 SD a launch", 0.0, 0.25, 0.0),
    ("one side better by 0.5 SD", 0.0, 0.0, 0.5),
    ("one side better by 1 SD", 0.0, 0.0, 1.0),
    ("both: 0.5 and by 0.5 SD", 0.5, 0.0, 0.5),
)
FLOOR_SIZES = ((3, 3), (6, 3), (6, 6), (10, 6), (10, 10), (20, 10))


def false_alarm_table() -> list[list[str]]:
    """Share of no-effect campaigns that the verdict calls, and that the interval alone would."""
    rows = [["condition", *(f"A/A {m}, n={n}" for m, n in FLOOR_SIZES)]]
    rng = np.random.default_rng(SEED + 2)
    for name, rho, drift, bias in FALSE_ALARMS:
        row = [name]
        for m, n in FLOOR_SIZES:
            aa, logs = (
                logs_of(
                    simulate(rng, CAMPAIGNS, abba(size), rho=rho, drift=drift, effect=0.01 * bias)
                )
                for size in (m, n)
            )
            judged = np.mean(called(logs, floors(aa, n)) != 0)
            row.append(f"{judged:.3f} ({np.mean(called(logs, 0.0) != 0):.3f})")
        rows.append(row)
    return rows


def orders(n: int) -> dict[str, Order]:
    return {
        "AABB": [(0,) * n, (1,) * n],
        "ABAB": [(0, 1)] * n,
        "ABBA": abba(n),
    }


def order_table() -> list[list[str]]:
    """Bias of the ratio under a linear drift of 0.5 pair-SD a launch, in pair-SDs."""
    rows = [["order", *(f"n={n}" for n in SIZES)]]
    rng = np.random.default_rng(SEED + 3)
    for name in ("AABB", "ABAB", "ABBA"):
        row = [name]
        for n in SIZES:
            logs = logs_of(simulate(rng, CAMPAIGNS, orders(n)[name], drift=0.5))
            row.append(f"{logs.mean() / 0.01:+.2f}")
        rows.append(row)
    return rows


EFFECTS = (0.01, 0.02, 0.05)
AA_SIZES = (3, 6, 10, 20)


def power_table() -> list[list[str]]:
    """Pairs for 80 % power at an A/A noise of 1 % a pair: interval, verdict, cautious."""
    rows = [["A/A pairs", *(f"{effect:.0%} effect" for effect in EFFECTS)]]
    for m in AA_SIZES:
        row = [str(m)]
        for effect in EFFECTS:
            plan = pairs_needed(history(m), effect, duration_s=60)
            counts = (plan.pairs_interval, plan.pairs, plan.pairs_cautious)
            row.append(" / ".join("never" if n is None else str(n) for n in counts))
        rows.append(row)
    return rows


def history(m: int) -> list[float]:
    """``m`` A/A log-ratios of mean 0 and SD 0.01."""
    steps = np.arange(m) - (m - 1) / 2
    return [float(x) for x in 0.01 * steps / steps.std(ddof=1)]


ITEMS = (50, 100, 200, 500, 1319)
CHURN = (0.0, 0.005, 0.01, 0.02)
Z = float(stats.norm.ppf(0.975))


def wald_low(gained: int, lost: int, items: int) -> float:
    """Lower end of the plain normal interval of the paired difference, for comparison."""
    difference = (gained - lost) / items
    return difference - Z * math.sqrt(max(gained + lost - (gained - lost) ** 2 / items, 0)) / items


def tango_low(gained: int, lost: int, items: int) -> float:
    return tango_interval(gained, lost, items)[0]


def shown(
    low: Callable[[int, int, int], float], margin: float, items: int, p_gain: float, p_loss: float
) -> float:
    """Exact probability of "not worse": the trinomial summed where ``low`` exceeds -margin."""
    chance, gained = 0.0, 0
    for lost in range(int(stats.binom.ppf(1 - 1e-9, items, p_loss)) + 1):
        while gained + lost < items and low(gained, lost, items) <= -margin:
            gained += 1
        if low(gained, lost, items) <= -margin:
            break
        at_least = stats.binom.sf(gained - 1, items - lost, p_gain / (1 - p_loss))
        chance += float(stats.binom.pmf(lost, items, p_loss) * at_least)
    return chance


def margin_table() -> list[list[str]]:
    """Chance of "not worse" for an arm that truly loses the margin: Tango's (the plain normal)."""
    rows = [["items, margin", *(f"{churn:.1%} gained" for churn in CHURN)]]
    for items in (50, 200, 1319):
        for margin in (0.01, 0.02):
            row = [f"{items}, {margin}"]
            for churn in CHURN:
                tango, wald = (
                    shown(low, margin, items, churn, churn + margin)
                    for low in (tango_low, wald_low)
                )
                row.append(f"{tango:.3f} ({wald:.3f})")
            rows.append(row)
    return rows


def items_table() -> list[list[str]]:
    """What fewer items can say; settling: no true loss, 1 % of the items lost and 1 % gained."""
    margins = (0.01, 0.02, 0.05)
    rows = [
        ["items", "floor 0.90 becomes", "least margin without a flip"]
        + [f"settles {margin}" for margin in margins]
    ]
    for items in ITEMS:
        row = [str(items), f"{widened_floor(0.9, items).value:.3f}"]
        row.append(f"{-tango_low(0, 0, items):.4f}")
        row += [f"{shown(tango_low, margin, items, 0.01, 0.01):.2f}" for margin in margins]
        rows.append(row)
    return rows


TABLES = {
    "method": method_table,
    "coverage": coverage_table,
    "false-alarms": false_alarm_table,
    "order": order_table,
    "power": power_table,
    "margin": margin_table,
    "items": items_table,
}


def markdown(rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


# ---- tests: the shipped functions on simulated campaigns -----------------------------------


@pytest.mark.parametrize("n", [2, 3, 5, 8])
@pytest.mark.parametrize(("rho", "drift"), [(0.0, 0.0), (0.3, 0.25)])
def test_interval_covers_a_known_effect_in_93_to_97_percent_of_campaigns(
    n: int, rho: float, drift: float
) -> None:
    rng = np.random.default_rng(SEED + n)
    truth = 1.05
    baseline, arm = simulate(
        rng, 1000, abba(n), effect=math.log(truth), rho=rho, drift=drift, sd=0.015
    )
    results = [paired_ratio(b, a) for b, a in zip(baseline.tolist(), arm.tolist(), strict=True)]
    hits = [r.low <= truth <= r.high for r in results if r.low is not None and r.high is not None]
    assert len(hits) == 1000
    assert 0.93 <= np.mean(hits) <= 0.97


def test_a_strong_drift_widens_the_interval_and_never_breaks_it() -> None:
    rng = np.random.default_rng(SEED)
    for n in SIZES:
        assert covered(logs_of(simulate(rng, CAMPAIGNS, abba(n), drift=1.0)), 0.0) > 0.97


@pytest.mark.parametrize(("aa_pairs", "n"), [(3, 3), (6, 3), (6, 6)])
def test_identical_arms_are_called_in_at_most_5_percent_of_campaigns(aa_pairs: int, n: int) -> None:
    rng = np.random.default_rng(SEED + aa_pairs)
    history_logs = logs_of(simulate(rng, 1000, abba(aa_pairs), rho=0.3, drift=0.25))
    baseline, arm = simulate(rng, 1000, abba(n), rho=0.3, drift=0.25)
    alarms = 0
    for aa, b, a in zip(history_logs.tolist(), baseline.tolist(), arm.tolist(), strict=True):
        word = verdict(paired_ratio(b, a), "higher", noise_floor(aa, n)).word
        alarms += word in ("faster", "slower")
    assert 0 < alarms <= 50


@pytest.mark.parametrize("n", [5, 6, 8])
def test_permutation_p_is_below_5_percent_in_at_most_5_percent_of_no_effect_campaigns(
    n: int,
) -> None:
    rng = np.random.default_rng(SEED + 10 * n)
    logs = logs_of(simulate(rng, 1000, abba(n)))
    p_values = [p for row in logs.tolist() if (p := ratio_from_logs(row).p) is not None]
    assert len(p_values) == 1000
    assert np.mean(np.array(p_values) <= 0.05) <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 1000)
    assert np.mean(np.array(p_values) <= 0.5) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("bias", [0.0, 0.25, 0.5, 1.0, 3.0])
def test_a_no_effect_ratio_strays_beyond_the_floor_in_at_most_5_percent_whatever_the_bias(
    bias: float,
) -> None:
    rng = np.random.default_rng(SEED)
    for m, n in ((2, 4), (5, 3), (6, 6), (20, 10)):
        floor = floors(rng.normal(bias, 1, (CAMPAIGNS, m)), n)
        strays = np.mean(np.abs(rng.normal(bias, 1, (CAMPAIGNS, n)).mean(axis=1)) > floor)
        assert strays <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / CAMPAIGNS)
        if bias == 3:
            assert strays == pytest.approx(0.05, abs=0.006)


@pytest.mark.parametrize("n", [2, 4, 6])
def test_abba_cancels_a_linear_drift_that_aabb_takes_for_an_effect(n: int) -> None:
    rng = np.random.default_rng(SEED)
    logs = {
        name: logs_of(simulate(rng, CAMPAIGNS, order, drift=0.5))
        for name, order in orders(n).items()
    }
    bias = {name: float(values.mean()) / 0.01 for name, values in logs.items()}
    error = 4 * math.sqrt(2 / n / CAMPAIGNS)
    assert bias["ABBA"] == pytest.approx(0, abs=error)
    assert bias["ABAB"] == pytest.approx(0.5, abs=error)
    assert bias["AABB"] == pytest.approx(0.5 * n, abs=error)
    alarms = {name: np.mean(called(values, 0.0) != 0) for name, values in logs.items()}
    assert alarms["ABBA"] <= 0.05 < alarms["ABAB"] < alarms["AABB"]


def test_odd_pair_counts_leave_one_nth_of_the_drift() -> None:
    rng = np.random.default_rng(SEED)
    logs = logs_of(simulate(rng, CAMPAIGNS, abba(3), drift=0.5))
    assert logs.mean() / 0.01 == pytest.approx(0.5 / 3, abs=0.02)


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("aa_pairs", AA_SIZES)
def test_planned_pairs_reach_the_power_in_simulation(aa_pairs: int, effect: float) -> None:
    plan = pairs_needed(history(aa_pairs), effect, duration_s=60)

    def measured(pairs: int) -> float:
        rng = np.random.default_rng(SEED + pairs)
        logs = logs_of(simulate(rng, CAMPAIGNS, abba(pairs), effect=math.log1p(effect)))
        floor = noise_floor(history(aa_pairs), pairs)
        assert floor is not None
        power = float(np.mean(called(logs, floor.log) > 0))
        assert power == pytest.approx(
            verdict_power(math.log1p(effect), 0.01, pairs, floor.log), abs=0.012
        )
        return power

    if plan.pairs is None:
        floor = noise_floor(history(aa_pairs), 10_000)
        assert floor is not None and floor.log > math.log1p(effect)
        return
    assert measured(plan.pairs) >= 0.79
    if plan.pairs > 2:
        assert measured(plan.pairs - 1) < 0.81


def test_the_vectorised_forms_used_here_are_those_of_results_stats() -> None:
    rng = np.random.default_rng(SEED)
    for m, n in ((2, 2), (3, 5), (6, 4)):
        aa = rng.normal(0.004, 0.01, (200, m))
        logs = rng.normal(0.01, 0.01, (200, n))
        low, high = t_limits(logs)
        limit = floors(aa, n)
        words = called(logs, limit)
        for i in range(200):
            result, floor = ratio_from_logs(logs[i].tolist()), noise_floor(aa[i].tolist(), n)
            assert floor is not None
            assert (result.low, result.high) == pytest.approx((np.exp(low[i]), np.exp(high[i])))
            assert floor.log == pytest.approx(limit[i])
            expected = {1: "faster", -1: "slower", 0: "no difference seen"}[int(words[i])]
            assert verdict(result, "higher", floor).word == expected


@pytest.mark.parametrize("name", TABLES)
def test_the_document_prints_the_figures_of_these_simulations(name: str) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    found = re.search(rf"<!-- {name} -->\n(.*?)\n\n", text, re.DOTALL)
    assert found, f"docs/statistics.md has no table marked {name}"
    number = re.compile(r"[-+]?\d+\.\d+|\d+")
    expected = markdown(TABLES[name]())
    assert number.sub("#", found[1]) == number.sub("#", expected)
    printed, computed = number.findall(found[1]), number.findall(expected)
    assert [float(x) for x in printed] == pytest.approx([float(x) for x in computed], abs=0.011)


if __name__ == "__main__":
    for table_name, table in TABLES.items():
        print(f"<!-- {table_name} -->\n{markdown(table())}\n")
