"""Two arms to ratios and verdicts.

Inside a campaign adjacent launches on one node are pairs, and a verdict rests on the pairs. Whole
runs can be lined up too, but they were not interleaved, so they get a ratio and no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean, geometric_mean

from results.accuracy_tests import PairedAccuracy, paired_accuracy
from results.columns import BY_NAME, SCHEMA, Row, Value
from results.gsm8k import FILTERS, Items
from results.history import NO_FLOORS, Floors
from results.stats import NoiseFloor, PairedRatio, Verdict, holm, noise_floor, paired_ratio, verdict
from samenode.errors import UserError

METRICS: dict[str, tuple[str, ...]] = {
    "agentx": (
        "interactivity_p50",
        "interactivity_p90",
        "total_throughput",
        "output_throughput",
        "ttft_p50_ms",
        "ttft_p90_ms",
        "goodput",
        "acceptance_length",
        "prefix_cache_hit_rate",
        "joules_per_output_token",
    ),
    "gsm8k": ("gsm8k_strict", "gsm8k_flexible", "acceptance_length"),
    "single-stream": ("output_throughput",),
}
"""Metrics compared by default, for each kind of point."""

SPEED = ("interactivity", "latency", "throughput")
"""Groups of columns of which "faster" and "slower" can be said."""

ReadItems = Callable[[Row], Items | None]
"""Gives the outcome of every GSM8K item of a row; None where the files are not at hand."""


@dataclass(frozen=True)
class Group:
    """Rows of one point: ``baseline[i]`` and ``arm[i]`` are a pair if ``paired``."""

    baseline: tuple[Row, ...]
    arm: tuple[Row, ...]
    slot: int
    paired: bool = True


@dataclass(frozen=True)
class Cell:
    """One metric at one point. A value is None where the row is invalid or lacks the metric."""

    kind: str
    recipe: str
    config: str
    conc: int | None
    metric: str
    baseline: str
    arm: str
    slot: int
    baseline_values: tuple[float | None, ...]
    arm_values: tuple[float | None, ...]
    paired: bool = True
    aa_log_ratios: tuple[float, ...] = ()
    p_holm: float | None = None
    accuracy: PairedAccuracy | None = field(default=None, repr=False)

    @cached_property
    def result(self) -> PairedRatio:
        """Ratio, interval and p over the pairs; between runs the ratio of the geometric means."""
        if self.paired:
            return paired_ratio(self.baseline_values, self.arm_values)
        return paired_ratio([self.means[0]], [self.means[1]])

    @property
    def ratio(self) -> float | None:
        """arm / baseline; None without a pair."""
        return self.result.ratio

    @property
    def n(self) -> int:
        """Valid pairs; between runs the valid rows of the arm."""
        if self.paired:
            return self.result.n
        return sum(v is not None for v in self.arm_values)

    @property
    def floor(self) -> NoiseFloor | None:
        """The A/A floor of this node, workload and metric for this many pairs."""
        return noise_floor(self.aa_log_ratios, self.result.n) if self.result.n else None

    @cached_property
    def verdict(self) -> Verdict:
        """What may be said of this cell. GSM8K's words are those of ``accuracy_tests``."""
        if self.accuracy is not None:
            return Verdict(self.accuracy.word, self.accuracy.why)  # type: ignore[arg-type]
        column = BY_NAME[self.metric]
        if column.group == "accuracy":
            return Verdict(None, "the items are not at hand, so nothing is tested")
        if not self.paired:
            return Verdict(None, "the runs were not interleaved")
        if column.group not in SPEED:
            return Verdict(None, "")
        return verdict(self.result, column.direction, self.floor)

    @property
    def means(self) -> tuple[float | None, float | None]:
        """Geometric mean of each side, over complete pairs or over all rows of a run.

        GSM8K scores may be 0, so theirs is the arithmetic mean.
        """
        if self.kind == "gsm8k":
            return _mean(self.baseline_values, fmean), _mean(self.arm_values, fmean)
        if not self.paired:
            return _mean(self.baseline_values), _mean(self.arm_values)
        pairs = zip(self.baseline_values, self.arm_values, strict=True)
        whole = [pair for pair in pairs if None not in pair]
        return _mean([base for base, _ in whole]), _mean([arm for _, arm in whole])

    def row(self) -> Row:
        """This cell as a row of ``comparison.csv``."""
        column = BY_NAME[self.metric]
        result, accuracy = self.result, self.accuracy
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "recipe": self.recipe,
            "config": self.config,
            "conc": self.conc,
            "metric": self.metric,
            "unit": column.unit,
            "direction": column.direction,
            "baseline": self.baseline,
            "arm": self.arm,
            "slot": self.slot,
            "pairing": "pairs" if self.paired else "runs",
            "baseline_value": self.means[0],
            "arm_value": self.means[1],
            "n": self.n,
            "dropped": result.dropped,
            "ratio": result.ratio,
            "low": result.low,
            "high": result.high,
            "p": result.p if accuracy is None else accuracy.mcnemar_p,
            "p_holm": self.p_holm,
            "floor": None if self.floor is None else self.floor.percent / 100,
            "verdict": self.verdict.word,
            "why": self.verdict.why or None,
        }


def compare(
    rows: Iterable[Row],
    metrics: Sequence[str] | None = None,
    *,
    ignore: frozenset[str] = frozenset(),
    floors: Floors = NO_FLOORS,
    items: ReadItems | None = None,
) -> list[Cell]:
    """Pair the rows of campaigns and judge every metric; slot 0 is the baseline.

    Args:
        rows: rows as ``results.score`` gives them; invalid ones are left out and counted.
        metrics: columns to compare; None for those of ``METRICS``.
        ignore: parts of a pair's key that may differ: ``config``, ``conc``.
        floors: A/A history, see ``results.history``.
        items: reads the GSM8K items, for McNemar's test and non-inferiority.
    """
    return cells(pair_up(rows, ignore), metrics, floors=floors, items=items)


def pair_up(rows: Iterable[Row], ignore: frozenset[str] = frozenset()) -> list[Group]:
    """Rows of one campaign, kind, recipe, config, concurrency and repeat, slot 0 with slot n."""
    points: dict[tuple[Value, ...], dict[Value, dict[int, Row]]] = {}
    for row in rows:
        slot = row.get("slot")
        if isinstance(slot, int):
            key = _key(row, ("campaign", "kind", "recipe", "config", "conc"), ignore)
            points.setdefault(key, {}).setdefault(row.get("repeat"), {})[slot] = row
    groups = []
    for repeats in points.values():
        ordered = [sides for _, sides in sorted(repeats.items(), key=lambda item: str(item[0]))]
        for slot in sorted({slot for sides in ordered for slot in sides} - {0}):
            both = [(sides[0], sides[slot]) for sides in ordered if sides.keys() >= {0, slot}]
            if both:
                baseline, arm = zip(*both, strict=True)
                groups.append(Group(baseline, arm, slot))
    return groups


def line_up(
    baseline: Iterable[Row],
    other: Iterable[Row],
    slot: int = 1,
    ignore: frozenset[str] = frozenset(),
) -> list[Group]:
    """Rows of two runs at the same points, arm for arm; not pairs.

    Where the runs share no arm and each has a single one, those two are lined up.

    Raises:
        UserError: the runs share no arm, or no point.
    """
    sides = [list(baseline), list(other)]
    arms = [list(dict.fromkeys(str(row["arm"]) for row in side)) for side in sides]
    shared = [arm for arm in arms[0] if arm in arms[1]]
    if not shared and len(arms[0]) == len(arms[1]) == 1:
        matches = [(arms[0][0], arms[1][0])]
    elif shared:
        matches = [(arm, arm) for arm in shared]
    else:
        raise UserError(
            f"the runs share no arm ({', '.join(arms[0])}; {', '.join(arms[1])}); "
            "name runs of one arm each, or of the same arms."
        )
    groups = []
    for names in matches:
        points: list[dict[tuple[Value, ...], list[Row]]] = [{}, {}]
        for side, name, found in zip(sides, names, points, strict=True):
            for row in side:
                if row["arm"] == name:
                    found.setdefault(_key(row, ("kind", "config", "conc"), ignore), []).append(row)
        groups += [
            Group(tuple(rows), tuple(points[1][key]), slot, paired=False)
            for key, rows in points[0].items()
            if key in points[1]
        ]
    if not groups:
        raise UserError("the runs share no point (parallel config and concurrency).")
    return groups


def cells(
    groups: Sequence[Group],
    metrics: Sequence[str] | None = None,
    *,
    floors: Floors = NO_FLOORS,
    items: ReadItems | None = None,
) -> list[Cell]:
    """Every metric of every group that both sides have in at least one row."""
    found: list[Cell] = []
    for group in groups:
        base, arm = group.baseline[0], group.arm[0]
        kind = str(base["kind"])
        for metric in metrics or METRICS.get(kind, ()):
            if _present(group.baseline, metric) and _present(group.arm, metric):
                found.append(
                    Cell(
                        kind=kind,
                        recipe=str(base["recipe"] or ""),
                        config=_either(base["config"], arm["config"]),
                        conc=arm["conc"] if isinstance(arm["conc"], int) else None,
                        metric=metric,
                        baseline=str(base["arm"]),
                        arm=str(arm["arm"]),
                        slot=group.slot,
                        baseline_values=_values(group.baseline, metric),
                        arm_values=_values(group.arm, metric),
                        paired=group.paired,
                        aa_log_ratios=floors.log_ratios(base, metric),
                        accuracy=_accuracy(group, metric, items),
                    )
                )
    return _with_holm(found)


def _with_holm(found: list[Cell]) -> list[Cell]:
    families: dict[tuple[str, str, int], list[int]] = {}
    for place, cell in enumerate(found):
        if cell.paired and cell.accuracy is None:
            families.setdefault((cell.kind, cell.metric, cell.slot), []).append(place)
    for places in families.values():
        adjusted = holm([found[place].result.p for place in places])
        for place, p in zip(places, adjusted, strict=True):
            found[place] = replace(found[place], p_holm=p)
    return found


def _accuracy(group: Group, metric: str, items: ReadItems | None) -> PairedAccuracy | None:
    """The test on the items of the first valid pair."""
    filters = {f"gsm8k_{name}": name for name in FILTERS}
    if items is None or metric not in filters:
        return None
    for base, arm in zip(group.baseline, group.arm, strict=False):
        margin = arm.get("gsm8k_margin")
        if base.get("valid") and arm.get("valid") and isinstance(margin, float):
            read = items(base), items(arm)
            if read[0] is not None and read[1] is not None:
                name = filters[metric]
                return paired_accuracy(read[0][name], read[1][name], margin=margin)
    return None


def _key(row: Row, names: Sequence[str], ignore: frozenset[str]) -> tuple[Value, ...]:
    return tuple(None if name in ignore else row.get(name) for name in names)


def _either(base: Value, arm: Value) -> str:
    a, b = str(base or ""), str(arm or "")
    return a if a == b else f"{a} → {b}"


def _present(rows: Sequence[Row], metric: str) -> bool:
    """Whether any row, valid or not, has the metric."""
    return any(_usable(row, metric) is not None for row in rows)


def _values(rows: Sequence[Row], metric: str) -> tuple[float | None, ...]:
    return tuple(_usable(row, metric) if row.get("valid") else None for row in rows)


def _usable(row: Row, metric: str) -> float | None:
    """A value that a ratio can be made of: finite and above 0; of GSM8K also 0."""
    value = row.get(metric)
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if value > 0 or row.get("kind") == "gsm8k" else None


def _mean(
    values: Sequence[float | None], mean: Callable[[list[float]], float] = geometric_mean
) -> float | None:
    present = [value for value in values if value is not None]
    return mean(present) if present else None


# ---- text

LEGEND = "↑ more is better, ↓ less is better; [95 % interval]; n: pairs; p: adjusted (Holm)"


def render(found: Sequence[Cell]) -> str:
    """A text table: one line a metric and point."""
    lines: list[str] = []
    heading = None
    for cell in found:
        title = (cell.kind, cell.recipe, cell.config, cell.baseline, cell.arm, cell.slot)
        if title != heading:
            heading = title
            arms = f"{cell.baseline} → {cell.arm}"
            lines += ["", f"{cell.recipe}  {cell.config}  {cell.kind}: {arms}"]
        lines.append(_line(cell))
    if not lines:
        return "no pair of rows to compare\n"
    return "\n".join([*lines, "", LEGEND]).strip("\n") + "\n"


def _line(cell: Cell) -> str:
    column, result = BY_NAME[cell.metric], cell.result
    base, arm = cell.means
    conc = "" if cell.conc is None else f"c{cell.conc}"
    ratio = "" if result.ratio is None else f"{result.ratio:.3f}×"
    if result.low is not None:
        ratio += f" [{result.low:.3f}, {result.high:.3f}]"
    if (test := cell.accuracy) is not None:
        ratio = f"{test.difference:+.4f} [{test.low:+.4f}, {test.high:+.4f}]"
    arrow = {"higher": "↑", "lower": "↓", "none": " "}[column.direction]
    return (
        f"  {conc:>4}  {cell.metric:<23} {arrow} {number(base):>9} → {number(arm):<9} "
        f"{column.unit:<11} {ratio:<22} {_count(cell)}  {_words(cell)}"
    ).rstrip()


def _count(cell: Cell) -> str:
    if cell.accuracy is not None:
        return f"{cell.accuracy.items} items"
    if cell.paired:
        return f"n={cell.n}"
    return f"n={sum(v is not None for v in cell.baseline_values)} vs {cell.n}"


def _words(cell: Cell) -> str:
    """The verdict's word, or in a few words why there is none."""
    result, said = cell.result, cell.verdict
    dropped = f" ({result.dropped} left out)" if cell.paired and result.dropped else ""
    if said.word is not None:
        p = "" if cell.p_holm is None else f", p {cell.p_holm:.3g}"
        return f"{said.word}{p}{dropped}"
    if cell.paired and BY_NAME[cell.metric].group != "accuracy" and result.low is None:
        return result.note
    return f"{said.why.split(',')[0].split(';')[0]}{dropped}"


def number(value: float | None) -> str:
    """A figure of four significant digits or, from 1,000 on, whole with separators."""
    if value is None:
        return "none"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
