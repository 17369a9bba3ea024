"""The figures of a report. Each is drawn at two widths for the page and once for its PNG."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from results.columns import BY_NAME, SPEC_POSITIONS, Direction, Row
from results.pareto import front
from results.report_data import (
    CampaignData,
    Side,
    metric_label,
    number_of,
    point_label,
    slot_of,
)
from results.report_series import OF_DEVICES, PANELS, PointSeries
from results.report_svg import GRID, INK, MUTED, PAPER, SHADE, SIDES, inline
from results.report_words import LEADING, NO_VERDICT, leading

MANY = 20
"""With more points than this the Pareto plot names those of one arm."""

WIDE, NARROW = 920, 350
"""Widths in CSS pixels, for a desktop and for a phone."""

MARKERS = ("s", "o", "D", "P", "X")
DASHES: tuple[Any, ...] = ((0, (4, 2)), "-", (0, (6, 2, 1, 2)), (0, (1, 1.5)), (0, (8, 3)))

STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "samenode",
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 11,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "legend.fontsize": 11,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "figure.facecolor": PAPER,
}


_THOUSANDS = FuncFormatter(lambda value, _: f"{value:,.10g}")


@dataclass(frozen=True)
class Drawing:
    """A figure: how it is drawn on an empty one, and its height in pixels for a width class."""

    name: str
    alt: str
    draw: Callable[[Figure, bool], None]
    height: Callable[[bool], float]

    def svg(self) -> str:
        """Both widths as inline SVG; the page's style sheet shows one of them."""
        return "\n".join(
            inline(self._figure(narrow), f"{self.name}-{css}", self.alt, css)
            for narrow, css in ((False, "wide"), (True, "narrow"))
        )

    def png(self) -> bytes:
        """The wide figure at twice its pixels, on paper."""
        buffer = io.BytesIO()
        self._figure(False).savefig(
            buffer, format="png", dpi=144, metadata={"Description": self.alt}
        )
        return buffer.getvalue()

    def _figure(self, narrow: bool) -> Figure:
        width = NARROW if narrow else WIDE
        figure = Figure(
            figsize=(width / 72, self.height(narrow) / 72), dpi=144, layout="constrained"
        )
        FigureCanvasAgg(figure)
        self.draw(figure, narrow)
        _settle(figure)
        return figure


def _settle(figure: Figure) -> None:
    """Lay the figure out, once: what is drawn later does not move it."""
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


class drawing_style:
    """The figures' settings; a glyph that the PNGs' font lacks is no reason for a warning."""

    def __enter__(self) -> None:
        self._caught = warnings.catch_warnings()
        self._caught.__enter__()
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        settings: Any = {**matplotlib.rcParamsDefault, **STYLE}
        self._rc = matplotlib.rc_context(settings)
        self._rc.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._rc.__exit__(*error)
        self._caught.__exit__(*error)


def _style(data: CampaignData, side: Side) -> dict[str, Any]:
    place = data.sides.index(side)
    return {
        "color": SIDES[place % len(SIDES)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": DASHES[place % len(DASHES)],
    }


def _legend(figure: Figure, handles: Sequence[Any], narrow: bool) -> None:
    widest = max(len(handle.get_label()) for handle in handles)
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=1 if narrow else max(1, min(len(handles), WIDE // (7 * widest + 60))),
        handlelength=2.6,
        columnspacing=1.6,
        borderpad=0,
        borderaxespad=0.2,
    )


def _line(label: str, **style: Any) -> Line2D:
    return Line2D([], [], label=_short(label, 38), **style)


def _short(text: str, length: int) -> str:
    """``text`` cut to a length that a figure has room for; the page's tables have all of it."""
    return text if len(text) <= length else text[: length - 1] + "…"


# ---- Pareto


@dataclass(frozen=True)
class ParetoPoint:
    """One arm at one point: geometric means over its valid rows, and those rows' own values."""

    side: Side
    label: str
    x: float
    y: float
    each: tuple[tuple[float, float], ...]
    on_front: bool


def pareto_metrics(data: CampaignData) -> tuple[str, str] | None:
    """The axes: interactivity (p90, or p50 where p90 is suppressed) and throughput per GPU."""
    for x in ("interactivity_p90", "interactivity_p50"):
        y = "total_throughput_per_gpu"
        if any(_both(row, x, y) for row in data.serving if row.get("valid")):
            return x, y
    return None


def pareto_points(data: CampaignData) -> list[ParetoPoint]:
    """Every arm at every point that has a valid row; the front is each arm's own."""
    metrics = pareto_metrics(data)
    if metrics is None:
        return []
    found: list[ParetoPoint] = []
    for side in data.sides:
        groups: dict[str, list[tuple[float, float]]] = {}
        for row in data.serving:
            if slot_of(row) == side.slot and row.get("valid") and (xy := _both(row, *metrics)):
                groups.setdefault(point_label(row), []).append(xy)
        means = [
            (label, geometric_mean([x for x, _ in each]), geometric_mean([y for _, y in each]))
            for label, each in groups.items()
        ]
        best = set(front([(_up(metrics[0], x), _up(metrics[1], y)) for _, x, y in means]))
        found += [
            ParetoPoint(side, label, x, y, tuple(groups[label]), i in best)
            for i, (label, x, y) in enumerate(means)
        ]
    return found


def _up(metric: str, value: float) -> float:
    return -value if BY_NAME[metric].direction == "lower" else value


def _both(row: Row, x: str, y: str) -> tuple[float, float] | None:
    a, b = number_of(row, x), number_of(row, y)
    return None if a is None or b is None or a <= 0 or b <= 0 else (a, b)


def pareto(data: CampaignData) -> Drawing | None:
    """Interactivity against throughput; dominated points are hollow."""
    points, metrics = pareto_points(data), pareto_metrics(data)
    if not points or metrics is None:
        return None

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.add_subplot()
        handles = []
        for side in data.sides:
            style = _style(data, side)
            mine = [point for point in points if point.side == side]
            kept = sorted((point for point in mine if point.on_front), key=lambda p: p.x)
            axes.plot(
                [p.x for p in kept], [p.y for p in kept], color=style["color"],
                linestyle=style["linestyle"], linewidth=1.6,
            )  # fmt: skip
            for point in mine:
                if len(point.each) > 1:
                    axes.scatter(
                        [x for x, _ in point.each], [y for _, y in point.each], s=9,
                        color=style["color"], alpha=0.45, linewidths=0, marker=style["marker"],
                    )  # fmt: skip
                axes.plot(
                    point.x, point.y, color=style["color"], marker=style["marker"],
                    markersize=7.5, markeredgewidth=1.5, linestyle="",
                    markerfacecolor=style["color"] if point.on_front else PAPER,
                )  # fmt: skip
            handles.append(_line(side.label, markersize=7, linewidth=1.6, **style))
        if not all(point.on_front for point in points):
            handles.append(
                _line("dominated", color=MUTED, marker="o", markersize=7, markeredgewidth=1.5,
                      linestyle="", markerfacecolor=PAPER)
            )  # fmt: skip
        for axis, metric in zip("xy", metrics, strict=True):
            getattr(axes, f"set_{axis}label")(_axis_label(metric, axis, narrow))
        axes.set_xlim(0, max(x for p in points for x, _ in (*p.each, (p.x, p.y))) * 1.12)
        axes.set_ylim(0, max(y for p in points for _, y in (*p.each, (p.x, p.y))) * 1.12)
        axes.xaxis.set_major_locator(MaxNLocator(4 if narrow else 8))
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.yaxis.set_major_formatter(_THOUSANDS)
        _legend(figure, handles, narrow)
        _name_points(figure, axes, points)

    x, y = (metric_label(metric) for metric in metrics)
    alt = f"{y} against {x}, one line an arm through its Pareto front; the figures are tabled below"
    return Drawing("pareto", alt, draw, lambda narrow: 360 if narrow else 440)


def _axis_label(metric: str, axis: str, narrow: bool) -> str:
    column = BY_NAME[metric]
    ends: dict[Direction, tuple[str, str]] = {
        "higher": ("→", "→"), "lower": ("←", "←"), "none": ("", ""),
    }  # fmt: skip
    arrow = ends[column.direction][axis == "y"]
    better = f"   better {arrow}" if arrow else ""
    unit = f"\n({column.unit})" if narrow and axis == "x" else f" ({column.unit})"
    return f"{metric_label(metric)}{unit}{better}"


def _name_points(figure: Figure, axes: Axes, points: Sequence[ParetoPoint]) -> None:
    """Write a point's label where it covers no other label and no point.

    A label that finds no room is left out, and of many points only the last arm's have one; the
    table below the figure names every point.
    """
    _settle(figure)
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    scale = figure.dpi / 72
    frame = axes.get_window_extent(renderer)
    centres = [axes.transData.transform((p.x, p.y)) for p in points]
    taken = [(x - 5 * scale, y - 5 * scale, x + 5 * scale, y + 5 * scale) for x, y in centres]
    one_config = len({p.label.rpartition(" ")[0] for p in points}) == 1
    named = points
    if len(points) > MANY:
        named = [p for p in points if p.side == points[-1].side]
    for point in sorted(named, key=lambda p: not p.on_front):
        text = point.label.rpartition(" ")[2] if one_config else _short(point.label, 24)
        for dx, dy, ha, va in (
            (8, 0, "left", "center"), (0, 8, "center", "bottom"), (0, -8, "center", "top"),
            (-8, 0, "right", "center"), (6, 6, "left", "bottom"), (6, -6, "left", "top"),
            (-6, 6, "right", "bottom"), (-6, -6, "right", "top"),
        ):  # fmt: skip
            label = axes.annotate(
                text, (point.x, point.y), (dx, dy), textcoords="offset points", ha=ha, va=va,
                fontsize=10, color=INK if point.on_front else MUTED,
            )  # fmt: skip
            box = label.get_window_extent(renderer)
            edges = (box.x0, box.y0, box.x1, box.y1)
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0
            if inside and box.y1 <= frame.y1 and not any(_overlap(edges, t) for t in taken):
                taken.append(edges)
                break
            label.remove()


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


# ---- forest


def forest(data: CampaignData) -> Drawing | None:
    """The ratio of every point and arm with its interval, one panel a leading metric."""
    speed = [row for row in data.comparison if row["kind"] == "agentx" and row["ratio"]]
    chosen = [rows for names in LEADING if (rows := leading(speed, names))]
    if not chosen:
        return None
    lines = list(dict.fromkeys((point_label(row), slot_of(row)) for row in speed))
    lines.sort(key=lambda line: [point_label(row) for row in speed].index(line[0]))
    several = len(data.sides) > 2

    def draw(figure: Figure, narrow: bool) -> None:
        shape = (len(chosen), 1) if narrow else (1, len(chosen))
        panels = figure.subplots(*shape, squeeze=False).flat
        for place, (axes, rows) in enumerate(zip(panels, chosen, strict=True)):
            names = narrow or place == 0
            _forest_panel(data, axes, rows, lines, names, narrow)
        words = dict.fromkeys(row["verdict"] for rows in chosen for row in rows)
        handles: list[Any] = []
        if several:
            handles += [
                _line(
                    f"{side.label} / {data.sides[0].label}",
                    **{**_style(data, side), "linestyle": "-"},
                )
                for side in data.sides[1:]
            ]
        handles += [
            _line(str(word or NO_VERDICT), linestyle="", **_word_marker(word, "o", INK))
            for word in words
        ]
        if any(number_of(row, "floor") is not None for rows in chosen for row in rows):
            handles.append(Patch(facecolor=GRID, label="within the A/A floor"))
        _legend(figure, handles, narrow)

    metrics = ", ".join(metric_label(str(rows[0]["metric"])) for rows in chosen)
    alt = (
        f"Ratio of each arm to {data.sides[0].label} with its 95 % interval, by point, for "
        f"{metrics}; the figures are tabled below"
    )

    def height(narrow: bool) -> float:
        body = len(lines) * (36 if narrow else 26) + 74
        return 40 + (20 * (3 + several) if narrow else 20) + body * (len(chosen) if narrow else 1)

    return Drawing("ratios", alt, draw, height)


def _word_marker(word: object, marker: str, colour: str) -> dict[str, Any]:
    """The arm's marker: full where a difference is seen, else hollow, small without a verdict."""
    full = word in ("faster", "slower")
    return {
        "marker": marker,
        "color": colour,
        "markerfacecolor": colour if full else PAPER,
        "markersize": 5 if word is None else 7.5,
        "markeredgewidth": 1.5,
    }


def _forest_panel(
    data: CampaignData,
    axes: Axes,
    rows: Sequence[Row],
    lines: Sequence[tuple[str, int]],
    names: bool,
    narrow: bool,
) -> None:
    metric = str(rows[0]["metric"])
    start, stop = _limits(rows)
    labels, figures = [""] * len(lines), [""] * len(lines)
    axes.axvline(1, color=INK, linewidth=1)
    for place, line in enumerate(lines):
        labels[place] = _short(line[0], 24)
        row = next((r for r in rows if (point_label(r), slot_of(r)) == line), None)
        if row is None:
            continue
        ratio, low, high = (number_of(row, name) for name in ("ratio", "low", "high"))
        assert ratio is not None
        side = data.side(row)
        colour = _style(data, side)["color"]
        if (floor := number_of(row, "floor")) is not None:
            axes.barh(
                place, 1 + floor - 1 / (1 + floor), left=1 / (1 + floor), height=1, color=GRID,
                zorder=0.5,
            )  # fmt: skip
        if low is not None and high is not None:
            ends = max(low, start), min(high, stop)
            axes.plot(ends, (place, place), color=colour, linewidth=2, solid_capstyle="butt")
            for end, cut, marker in ((ends[0], low, "<"), (ends[1], high, ">")):
                axes.plot(
                    end, place, color=colour, markersize=5 if end != cut else 7,
                    marker=marker if end != cut else "|", markeredgewidth=1.5,
                )  # fmt: skip
        axes.plot(
            ratio, place, **_word_marker(row["verdict"], _style(data, side)["marker"], colour)
        )
        figures[place] = f"{ratio:.3f}" + ("" if low is None else f" [{low:.3f}, {high:.3f}]")
    axes.set_ylim(len(lines) - 0.5, -0.5)
    _ratio_axis(axes, start, stop)
    if narrow:
        labels = [f"{a}\n{b}" if b else a for a, b in zip(labels, figures, strict=True)]
    axes.set_yticks(range(len(lines)), labels if names else [""] * len(lines))
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    if not narrow:
        right = axes.secondary_yaxis("right")
        right.set_yticks(range(len(lines)), figures)
        right.tick_params(axis="y", length=0, labelsize=10)
        right.spines["right"].set_visible(False)
    axes.spines["left"].set_visible(False)
    axes.set_title(metric_label(metric))
    better = {"higher": "better →", "lower": "← better", "none": ""}[BY_NAME[metric].direction]
    axes.set_xlabel(better, color=MUTED)


def _limits(rows: Sequence[Row]) -> tuple[float, float]:
    """Ends of a panel's axis; an interval that goes further is cut, with an arrow."""
    logs = [math.log(r) for row in rows if (r := number_of(row, "ratio"))]
    ends = [math.log(e) for row in rows for k in ("low", "high") if (e := number_of(row, k))]
    floors = [math.log1p(f) for row in rows if (f := number_of(row, "floor")) is not None]
    most = max(3 * max(map(abs, logs)), 0.1)
    shown = [max(-most, min(most, log)) for log in [*logs, *ends]]
    floor = max(floors, default=0.02)
    start, stop = min(*shown, -floor), max(*shown, floor)
    margin = 0.1 * (stop - start)
    return math.exp(start - margin), math.exp(stop + margin)


def _ratio_axis(axes: Axes, start: float, stop: float) -> None:
    axes.set_xscale("log")
    axes.set_xlim(start, stop)
    if stop / start > 3:
        ladder = [m * 10.0**e for e in range(-4, 5) for m in (1, 2, 5)]
        ticks = [t for t in ladder if start <= t <= stop]
        while len(ticks) > 5:
            ticks = ticks[::2] if 1.0 in ticks[::2] else ticks[1::2]
    else:
        steps = MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(start, stop)
        ticks = [t for t in steps if start <= t <= stop]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda t, _: f"{t:.4g}×"))


# ---- time series


def series(data: CampaignData, label: str, points: Sequence[PointSeries]) -> Drawing | None:
    """What happened during the points of one config and concurrency; None if nothing is known."""
    panels = [key for key in PANELS if any(key in point.series for point in points)]
    if not panels:
        return None
    windows = [point.window_s for point in points if point.window_s is not None]

    def draw(figure: Figure, narrow: bool) -> None:
        grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
        for axes, key in zip(grid.flat, panels, strict=True):
            _window_shade(axes, windows)
            for point in points:
                if key in point.series:
                    style = _style(data, data.side(point.row))
                    bad = not point.row.get("valid")
                    axes.plot(
                        *point.series[key], color=style["color"],
                        linestyle=":" if bad else style["linestyle"],
                        linewidth=1.0 if bad else 1.4,
                        alpha=1.0 if len(points) <= 4 else 0.75,
                    )  # fmt: skip
            axes.set_title(_panel_title(key, points), fontsize=11, fontweight="normal")
            _value_axis(axes, key, points)
            axes.xaxis.set_major_locator(MaxNLocator(4 if narrow else 8))
            axes.margins(x=0)
        start = "the profiling window began" if windows else "the first scrape"
        grid.flat[-1].set_xlabel(f"seconds since{chr(10) if narrow else ' '}{start}")
        shown = dict.fromkeys(data.side(point.row) for point in points)
        handles: list[Any] = [
            _line(side.label, linewidth=1.6, **{**_style(data, side), "marker": ""})
            for side in shown
        ]
        if any(not point.row.get("valid") for point in points):
            handles.append(_line("invalid row", linewidth=1.0, linestyle=":", color=INK))
        if windows:
            handles.append(Patch(facecolor=SHADE, edgecolor=GRID, label="profiling window"))
        _legend(figure, handles, narrow)

    names = ", ".join(_panel_title(key, points) for key in panels)
    alt = f"{names} over time at {label}, one line a point"
    slug = "".join(c if c.isalnum() and c.isascii() else "-" for c in label)
    return Drawing(
        f"during-{slug}", alt, draw,
        lambda narrow: (100 if narrow else 50) + (96 if narrow else 100) * len(panels),
    )  # fmt: skip


def _panel_title(key: str, points: Sequence[PointSeries]) -> str:
    name, unit = PANELS[key]
    devices = "/".join(sorted({p.devices for p in points if key in p.series}))
    return f"{devices if key in OF_DEVICES else ''} {name} ({unit})".strip()


def _value_axis(axes: Axes, key: str, points: Sequence[PointSeries]) -> None:
    """From 0; a clock, which never comes near it, over its own range and at least 10 % of it."""
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(_THOUSANDS)
    if PANELS[key][1] == "%":
        axes.set_ylim(0, 105)
    elif key == "clock":
        values = [v for p in points if key in p.series for v in p.series[key][1]]
        margin = max(0.1 * (max(values) - min(values)), 0.05 * max(values))
        axes.set_ylim(min(values) - margin, max(values) + margin)
    else:
        axes.set_ylim(bottom=0)


def _window_shade(axes: Axes, windows: Sequence[float]) -> None:
    """Shade the time in which every point was profiled, and mark where the others ended."""
    if windows:
        axes.axvspan(0, min(windows), color=SHADE, zorder=0)
        for end in (0.0, *windows):
            axes.axvline(end, color=GRID, linewidth=1, zorder=0.6)


# ---- acceptance


def acceptance(data: CampaignData) -> Drawing | None:
    """Acceptance rate by draft position: one panel a config, one line an arm, one dot a row."""
    panels: dict[str, list[Row]] = {}
    for row in data.serving:
        if any(number_of(row, name) is not None for name in _POSITIONS):
            panels.setdefault(str(row.get("config") or "?"), []).append(row)
    if not panels:
        return None
    columns = 2 if len(panels) < 3 else 3
    lines = -(-len(panels) // columns)

    def draw(figure: Figure, narrow: bool) -> None:
        shape = (len(panels), 1) if narrow else (lines, columns)
        grid = figure.subplots(*shape, squeeze=False, sharey=True)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        for axes, (config, rows) in zip(grid.flat, panels.items(), strict=False):
            used = [
                i for i, name in enumerate(_POSITIONS) if any(r.get(name) is not None for r in rows)
            ]
            for side in data.sides:
                style = _style(data, side)
                mine = [r for r in rows if slot_of(r) == side.slot and r.get("valid")]
                shift = 0.08 * (data.sides.index(side) - (len(data.sides) - 1) / 2)
                means = [_mean_at(mine, i) for i in used]
                axes.plot(
                    [i + shift for i in used], means, markersize=6, linewidth=1.6,
                    markerfacecolor=PAPER, markeredgewidth=1.5, **style,
                )  # fmt: skip
                for row in mine:
                    each = [number_of(row, _POSITIONS[i]) for i in used]
                    axes.scatter(
                        [i + shift for i, v in zip(used, each, strict=True) if v is not None],
                        [v for v in each if v is not None],
                        s=9, color=style["color"], alpha=0.5, linewidths=0,
                    )  # fmt: skip
            axes.set_title(config)
            axes.set_xticks(used)
            axes.set_xlim(min(used) - 0.5, max(used) + 0.5)
            axes.set_ylim(0, 1.02)
            axes.set_xlabel("draft position")
        grid.flat[0].set_ylabel("accepted (fraction)")
        handles = [
            _line(side.label, linewidth=1.6, markersize=6, markerfacecolor=PAPER,
                  **_style(data, side))
            for side in data.sides
        ]  # fmt: skip
        _legend(figure, handles, narrow)

    alt = (
        "Share of verification steps that accept the draft token at each position, by arm, for "
        + ", ".join(panels)
    )
    return Drawing(
        "acceptance", alt, draw,
        lambda narrow: 50 + (190 * len(panels) if narrow else 230 * lines),
    )  # fmt: skip


_POSITIONS = [f"acceptance_rate_pos{i}" for i in range(SPEC_POSITIONS)]


def _mean_at(rows: Sequence[Row], position: int) -> float:
    values = [v for row in rows if (v := number_of(row, _POSITIONS[position])) is not None]
    return fmean(values) if values else math.nan
