"""The verdict of a campaign in words: those of ``results.stats`` and ``results.accuracy_tests``."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from results.accuracy_tests import WORSE
from results.columns import BY_NAME, Row
from results.compare import SPEED, number
from results.report_data import (
    CampaignData,
    Side,
    metric_label,
    number_of,
    point_label,
    slot_of,
)
from results.stats import pairs_for_p

NO_VERDICT = "no verdict"
LEADING = (
    ("interactivity_p90", "interactivity_p50"),
    ("total_throughput",),
    ("ttft_p50_ms",),
    ("gsm8k_strict",),
    ("gsm8k_flexible",),
)
"""Metrics that a verdict opens with; of each group the first that the campaign has."""


@dataclass(frozen=True)
class Count:
    """A verdict word, at how many points it was given, and how it looks."""

    word: str
    points: int
    tone: str
    """``good``, ``bad``, ``even`` or ``none``: never the only sign, the word stands beside it."""
    sign: str


@dataclass(frozen=True)
class Headline:
    """One metric of one arm over all its points."""

    label: str
    formula: str
    counts: tuple[Count, ...]
    figure: str
    """The ratio with its interval; over several points the range of the ratios."""
    detail: str
    """The words behind the verdict."""


@dataclass(frozen=True)
class ArmVerdict:
    """An arm against the baseline."""

    side: Side
    baseline: Side
    headlines: tuple[Headline, ...]
    excluded: str
    """Pairs that were left out of the ratios; empty if none."""


def verdicts(data: CampaignData) -> list[ArmVerdict]:
    """One for every slot but the baseline's."""
    found = []
    for side in data.sides[1:]:
        rows = [row for row in data.comparison if slot_of(row) == side.slot]
        groups = (leading(rows, names) for names in LEADING)
        headlines = tuple(headline(group) for group in groups if group)
        found.append(ArmVerdict(side, data.sides[0], headlines, _excluded(rows)))
    return found


def leading(rows: list[Row], names: tuple[str, ...]) -> list[Row]:
    """The comparisons of the first metric in ``names`` that there are any of."""
    for name in names:
        if chosen := [row for row in rows if row["metric"] == name]:
            return chosen
    return []


def headline(rows: list[Row]) -> Headline:
    """One metric over the points of one arm."""
    column = BY_NAME[str(rows[0]["metric"])]
    words = Counter(str(row["verdict"] or NO_VERDICT) for row in rows)
    return Headline(
        label=metric_label(column.name),
        formula=column.formula,
        counts=tuple(
            Count(word, points, tone(word), sign(word)) for word, points in words.most_common()
        ),
        figure=change(rows[0]) if len(rows) == 1 else _range(rows),
        detail=_detail(rows[0]) if len(rows) == 1 else _details(rows),
    )


def tone(word: object) -> str:
    """How a verdict word is coloured."""
    if word == "faster":
        return "good"
    if word in ("slower", WORSE):
        return "bad"
    if word in (None, NO_VERDICT, ""):
        return "none"
    return "good" if str(word).startswith("not worse") else "even"


def sign(word: object) -> str:
    """The sign before a verdict word, so that colour is not all that tells them apart."""
    return {"good": "▲", "bad": "▼", "even": "●", "none": "○"}[tone(word)]


def change(row: Row) -> str:
    """The ratio and its interval; for accuracy the two scores."""
    if row["kind"] == "gsm8k":
        return f"{score(row, 'baseline_value')} → {score(row, 'arm_value')}"
    ratio, low, high = (number_of(row, name) for name in ("ratio", "low", "high"))
    if ratio is None:
        return "no ratio"
    return f"{ratio:.3f}×" + ("" if low is None else f" [{low:.3f}, {high:.3f}]")


def score(row: Row, name: str) -> str:
    """A share of right answers in percent."""
    value = number_of(row, name)
    return "none" if value is None else f"{100 * value:.1f} %"


def count(row: Row) -> str:
    """What a comparison rests on: pairs, and those left out."""
    n, dropped = int(number_of(row, "n") or 0), int(number_of(row, "dropped") or 0)
    return f"{n}" + (f" ({dropped} left out)" if dropped else "")


def p_value(row: Row) -> str:
    """The Holm-adjusted p; for accuracy McNemar's."""
    value = number_of(row, "p" if row["kind"] == "gsm8k" else "p_holm")
    return "none" if value is None else f"{value:.3g}"


def floor(row: Row) -> str:
    """The A/A noise floor in percent."""
    value = number_of(row, "floor")
    return "none" if value is None else f"{100 * value:.2f} %"


def why(row: Row) -> str:
    """What a verdict, or its absence, rests on."""
    if row["why"]:
        return str(row["why"])
    if BY_NAME[str(row["metric"])].group not in SPEED and row["kind"] != "gsm8k":
        return "of this metric neither faster nor slower is said"
    return ""


def first_clause(row: Row) -> str:
    """The start of ``why``; interval and n, which follow it, have columns of their own."""
    return why(row).partition(";")[0]


def _detail(row: Row) -> str:
    if row["kind"] == "gsm8k":
        return f"{why(row)}."
    parts = [f"{why(row)}."]
    if number_of(row, "low") is not None:
        parts.append(f"Holm p {p_value(row)}; A/A floor: {floor(row)}.")
    return " ".join(parts)


def _details(rows: list[Row]) -> str:
    n = sorted({int(number_of(row, "n") or 0) for row in rows})
    pairs = f"{n[0]}" if len(n) == 1 else f"{n[0]} to {n[-1]}"
    parts = [f"{len(rows)} points, n={pairs} pair{'s' * (n[-1] != 1)} each"]
    ps = [p for row in rows if (p := number_of(row, "p_holm")) is not None]
    floors = [f for row in rows if (f := number_of(row, "floor")) is not None]
    if rows[0]["kind"] == "gsm8k":
        parts = [f"{len(rows)} points"]
    if ps:
        parts.append(f"least Holm p {min(ps):.3g}")
    if floors:
        parts.append(f"A/A floor {100 * min(floors):.2f} % to {100 * max(floors):.2f} %")
    unsaid = [row for row in rows if row["verdict"] is None]
    reasons = dict.fromkeys(first_clause(row) for row in unsaid)
    if len(unsaid) == len(rows) and len(reasons) == 1:
        parts.append(f"at every point: {first_clause(rows[0])}")
    elif not floors and rows[0]["kind"] != "gsm8k":
        parts.append("no A/A floor")
    return "; ".join(parts) + "."


def _range(rows: list[Row]) -> str:
    ratios = [ratio for row in rows if (ratio := number_of(row, "ratio")) is not None]
    if rows[0]["kind"] == "gsm8k":
        return "; ".join(f"{point_label(row)}: {change(row)}" for row in rows)
    if not ratios:
        return "no ratio"
    return f"{min(ratios):.3f}× to {max(ratios):.3f}×"


def _excluded(rows: list[Row]) -> str:
    dropped = [number_of(row, "dropped") or 0 for row in rows if row["kind"] == "agentx"]
    worst = int(max(dropped, default=0))
    if not worst:
        return ""
    pairs = "pair" if worst == 1 else "pairs"
    return f"Up to {worst} {pairs} a point left out: invalid, or without the metric."


def limits(data: CampaignData) -> list[str]:
    """What the verdict cannot say; the statements of docs/statistics.md that apply."""
    found = [
        "Anything about another node, image, workload or client: the pairs know only the "
        "conditions of this campaign."
    ]
    speed = [
        row
        for row in data.comparison
        if row["kind"] == "agentx" and BY_NAME[str(row["metric"])].group in SPEED
    ]
    accuracy = [row for row in data.comparison if row["kind"] == "gsm8k"]
    if not data.comparison:
        found.insert(0, "Anything: no two arms have a pair of rows with a common metric.")
    if any(number_of(row, "n") == 1 for row in speed):
        found.append("Whether a ratio from one pair is more than noise: it has no interval.")
    if any(row["low"] is not None and row["floor"] is None for row in speed):
        found.append(
            "Whether a change exceeds this node's noise where no A/A floor was measured; an A/A "
            "campaign of the same node, workload and duration (ARMS=off,off) gives one."
        )
    found += _too_few_pairs(speed)
    if any(row["verdict"] == "no difference seen" for row in speed):
        found.append(
            "That the arms are equal: “no difference seen” leaves possible what the interval holds."
        )
    points = len({(row["config"], row["conc"]) for row in speed})
    if points > 1:
        found.append(
            f"All {points} points at once: interval and word are per point; Holm's p is the figure "
            "that accounts for their number."
        )
    if accuracy:
        found.append(
            "Which flipped items are chance: greedy decoding on a batching server is not "
            "bit-stable, so two runs of one arm flip items too."
        )
    elif data.rows:
        found.append("Anything about accuracy: GSM8K was not compared in this campaign.")
    reasons = dict.fromkeys(
        str(row["non_canonical_why"]) for row in data.serving if row.get("non_canonical_why")
    )
    if reasons:
        found.append(f"A leaderboard figure: {'; '.join(reasons)}.")
    if data.node.get("gpus") == []:
        found.append("Anything about a GPU: this node was measured on its CPU.")
    return found


def _too_few_pairs(speed: list[Row]) -> list[str]:
    families: dict[tuple[object, object], list[Row]] = {}
    for row in speed:
        if row["p"] is not None:
            families.setdefault((row["metric"], row["slot"]), []).append(row)
    short = [
        (int(number_of(row, "n") or 0), len(rows))
        for rows in families.values()
        for row in rows
        if (number_of(row, "n") or 0) < pairs_for_p(len(rows))
    ]
    if not short:
        return []
    n, points = min(short)
    return [
        f"More than p allows: with {n} pairs the permutation p is at least {2.0 ** (1 - n):.3g}; "
        f"to reach 0.05 over {points} point{'s' * (points > 1)} takes {pairs_for_p(points)} pairs. "
        "A larger p reads “cannot decide”, not “no effect”."
    ]


def aa_ratios(data: CampaignData) -> list[Row]:
    """Of an A/A campaign: the comparisons of an arm with itself, which show only noise."""
    return [
        row for row in data.comparison if row["baseline"] == row["arm"] and row["kind"] == "agentx"
    ]


def value(row: Row, name: str) -> str:
    """A side's value of a comparison, in the metric's unit."""
    return score(row, name) if row["kind"] == "gsm8k" else number(number_of(row, name))
