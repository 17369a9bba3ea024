"""A campaign as one HTML page that needs nothing beside it, and its figures as PNGs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from results import report_figures as figures
from results import report_words as words
from results.accuracy_tests import score_interval, widened_floor
from results.columns import BY_NAME, SPEC_POSITIONS, Row
from results.compare import number
from results.report_data import (
    CampaignData,
    load,
    metric_label,
    number_of,
    point_label,
    slot_of,
)
from results.report_figures import Drawing
from results.report_provenance import facts, server_diffs
from results.report_series import PANELS, PointSeries, read_point
from results.validity import RULES
from samenode.files import write_bytes, write_text

TEMPLATES = Path(__file__).parent / "templates"

ROW_METRICS = (
    "interactivity_p50",
    "interactivity_p90",
    "ttft_p50_ms",
    "ttft_p90_ms",
    "total_throughput",
    "output_throughput",
    "prefix_cache_hit_rate",
    "acceptance_length",
    "joules_per_output_token",
    "completed",
    "errors",
)
"""Columns of the table of all rows; those that no row has are left out."""

SHOWN_FLIPS = 40
"""Flipped items listed of one comparison."""


def write_report(campaign: Path) -> list[Path]:
    """Write ``report.html`` and ``figures/*.png`` into a campaign's folder, each atomically.

    The page holds its figures as SVG and loads nothing. Raw artefacts that are gone are named on
    the page. The A/A campaigns beside the folder give the noise floors. PNGs of an earlier report
    that this one does not have are removed.

    Returns:
        The files written, the page first.

    Raises:
        UserError: the folder has no scored point, or a garbled one.
        OSError: the folder cannot be written.
    """
    data = load(campaign)
    with figures.drawing_style():
        page, drawings = render(data)
        pngs = {drawing.name: drawing.png() for drawing in drawings}
    folder = campaign / "figures"
    folder.mkdir(exist_ok=True)
    written = [folder / f"{name}.png" for name in pngs]
    for path, content in zip(written, pngs.values(), strict=True):
        write_bytes(path, content)
    for old in set(folder.glob("*.png")) - set(written):
        old.unlink()
    write_text(campaign / "report.html", page)
    return [campaign / "report.html", *written]


def render(data: CampaignData) -> tuple[str, list[Drawing]]:
    """The page's text and the figures on it, in order."""
    pareto, forest = figures.pareto(data), figures.forest(data)
    during = list(_during(data))
    accepted = figures.acceptance(data)
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"figure": _figure, "number": number, "percent": _percent}
    environment.globals |= {
        "words": words,
        "label": metric_label,
        "point_label": point_label,
        "column": BY_NAME,
    }
    page = environment.get_template("report.html").render(
        data=data,
        verdicts=words.verdicts(data),
        limits=words.limits(data),
        aa=words.aa_ratios(data),
        pareto=pareto,
        pareto_points=figures.pareto_points(data),
        many=figures.MANY,
        pareto_metrics=figures.pareto_metrics(data),
        forest=forest,
        comparison=_by_point(data),
        during=during,
        acceptance=accepted,
        acceptance_rows=_acceptance_rows(data),
        scores=[_score(row) for row in data.rows if row.get("kind") == "gsm8k"],
        shown_flips=SHOWN_FLIPS,
        invalid=[(row, _reasons(row)) for row in data.invalid],
        rules=RULES,
        row_metrics=[name for name in ROW_METRICS if any(_has(row, name) for row in data.rows)],
        facts=facts(data),
        diffs=server_diffs(data),
        missing=data.missing,
        version=data.plan.get("samenode"),
    )
    drawings = [pareto, forest, *(group.drawing for group in during), accepted]
    return page, [drawing for drawing in drawings if drawing is not None]


def _by_point(data: CampaignData) -> list[list[Row]]:
    """The serving comparisons, those of one point and arm together."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in data.comparison:
        if row["kind"] == "agentx":
            groups.setdefault((point_label(row), slot_of(row)), []).append(row)
    return list(groups.values())


def _figure(drawing: Drawing) -> Markup:
    """The figure's SVG, which escapes its own texts."""
    return Markup(drawing.svg())


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


@dataclass(frozen=True)
class During:
    """The points of one config and concurrency over time."""

    label: str
    drawing: Drawing | None
    missing: str
    """Which files are not there, and of which points."""
    unknown: str
    """The series of ``PANELS`` that no point has."""
    steps: str
    """How wide the steps are that the values are means over."""


def _during(data: CampaignData) -> Iterator[During]:
    groups: dict[str, list[PointSeries]] = {}
    for row in data.serving:
        point = read_point(data.point_folder(row), row)
        groups.setdefault(point_label(row), []).append(point)
    for label, points in groups.items():
        steps = sorted({point.step_s for point in points if point.series})
        yield During(
            label,
            figures.series(data, label, points),
            _missing(points),
            ", ".join(
                name
                for key, (name, _) in PANELS.items()
                if not any(key in point.series for point in points)
            ),
            " to ".join(f"{step:g}" for step in dict.fromkeys((*steps[:1], *steps[-1:]))),
        )


def _missing(points: list[PointSeries]) -> str:
    files: dict[str, list[str]] = {}
    for point in points:
        for name in point.missing:
            files.setdefault(name, []).append(str(point.row.get("point")))
    return "; ".join(
        f"{name} of {'every point' if len(of) == len(points) else ', '.join(of)}"
        for name, of in files.items()
    )


@dataclass(frozen=True)
class Score:
    """GSM8K's scores of one row."""

    row: Row
    strict: str
    flexible: str
    floor: str


def _score(row: Row) -> Score:
    n, floor = row.get("gsm8k_n"), number_of(row, "gsm8k_floor")
    text = "none set"
    if floor is not None:
        text = f"{100 * floor:.1f} %"
        if isinstance(n, int) and n > 0 and 0 < floor < 1:
            text += f" ({widened_floor(floor, n).needed} right of {n})"
    return Score(row, _interval(row, "strict"), _interval(row, "flexible"), text)


def _interval(row: Row, name: str) -> str:
    n, correct = row.get("gsm8k_n"), row.get(f"gsm8k_{name}_correct")
    if isinstance(n, int) and n > 0 and isinstance(correct, int):
        s = score_interval(correct, n)
        return f"{100 * s.score:.1f} % [{100 * s.low:.1f}, {100 * s.high:.1f}], {correct} of {n}"
    value = number_of(row, f"gsm8k_{name}")
    return "none" if value is None else f"{100 * value:.1f} %"


@dataclass(frozen=True)
class AcceptanceRow:
    """Speculative decoding in one row."""

    row: Row
    length: str
    target: str
    rates: tuple[str, ...]
    """Accepted share by position; positions that no row has are left out."""


def _acceptance_rows(data: CampaignData) -> list[AcceptanceRow]:
    rows = [row for row in data.serving if _has(row, "acceptance_length")]
    names = [f"acceptance_rate_pos{i}" for i in range(SPEC_POSITIONS)]
    used = [name for name in names if any(_has(row, name) for row in rows)]
    return [
        AcceptanceRow(
            row,
            f"{row['acceptance_length']:.3f}",
            "" if row.get("target_acceptance_length") is None
            else f"{row['target_acceptance_length']:g}",
            tuple("" if (v := number_of(row, name)) is None else f"{v:.3f}" for name in used),
        )
        for row in rows
    ]  # fmt: skip


def _has(row: Row, name: str) -> bool:
    return number_of(row, name) is not None


_RULE = re.compile(r"(?:^|; )(" + "|".join(map(re.escape, RULES)) + "): ")


def _reasons(row: Row) -> list[tuple[str, str]]:
    """Rule and detail of each reason; a rule of a newer version stays in the text before it."""
    parts = _RULE.split(str(row.get("invalid_reasons") or "no reason was recorded"))
    found = [("", parts[0])] if parts[0] else []
    return found + list(zip(parts[1::2], parts[2::2], strict=True))
