"""matplotlib figures as inline SVG that takes its colours and its font from the page."""

from __future__ import annotations

import io
import re
from html import escape

from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER, SHADE = "#1b1f25", "#5a6370", "#dde1e7", "#fefefe", "#eef1f5"
"""Text and axes, second text, grid lines, background, shaded areas."""

SIDES = ("#5c6470", "#0a6ab6", "#c8500a", "#0a8567", "#a3478a")
"""The baseline, then the arms. The hues are those of Okabe and Ito, darkened until each has a
contrast of 4.5 with paper; readers who cannot tell them apart have markers and dashes."""

VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--line",
    PAPER: "--paper",
    SHADE: "--shade",
    **{colour: f"--side-{i}" for i, colour in enumerate(SIDES)},
}
"""Colour of a figure -> variable of the page's style sheet. A figure uses no other colour."""

_COLOURS = re.compile("|".join(VARIABLES), re.IGNORECASE)


def inline(figure: Figure, name: str, title: str, css_class: str) -> str:
    """An ``<svg>`` element for the body of a page.

    ``name`` must be unique in the page: it opens every id. ``title`` is what a screen reader says.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    body = text[text.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.S)
    body = re.sub(r'\b(id=")|(href="#)|(url\(#)', lambda m: f"{m[0]}{name}-", body)
    body = _COLOURS.sub(lambda m: f"var({VARIABLES[m[0].lower()]})", body)
    view = re.search(r'viewBox="[^"]*"', body)
    opening = (
        f'<svg class="{css_class}" role="img" aria-labelledby="{name}-title" '
        f'{view[0] if view else ""} xmlns:xlink="http://www.w3.org/1999/xlink">'
        f'<title id="{name}-title">{escape(title)}</title>'
    )
    return opening + body[body.index(">") + 1 :]
