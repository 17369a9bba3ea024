"""``--fail-if 'interactivity_p90:-3%'``: a regression gate for CI."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from results.columns import BY_NAME
from results.compare import Cell
from samenode.errors import UserError

_FORM = re.compile(r"(\w+):([+-]\d+(?:\.\d+)?)%")


@dataclass(frozen=True)
class Gate:
    """A metric and the change, as a fraction, beyond which it fails; the sign is the bad way."""

    metric: str
    limit: float

    def broken(self, cell: Cell) -> bool:
        """Whether the cell's ratio is beyond the limit."""
        if cell.ratio is None:
            return False
        change = cell.ratio - 1
        return change < self.limit if self.limit < 0 else change > self.limit


def parse_gate(text: str) -> Gate:
    """Read ``metric:-3%`` (fails when the metric falls by more) or ``metric:+5%`` (rises by more).

    Raises:
        UserError: another form, an unknown metric, or a sign that is the metric's good way.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise UserError(f"--fail-if '{text}' is not of the form metric:-3% or metric:+5%.")
    metric, percent = match[1], float(match[2])
    column = BY_NAME.get(metric)
    if column is None or column.direction == "none":
        near = difflib.get_close_matches(metric, BY_NAME, n=1)
        hint = f"did you mean '{near[0]}'?" if near else "docs/columns.md lists them."
        raise UserError(f"--fail-if '{text}': no metric '{metric}' has a better way; {hint}")
    if percent == 0 or (percent < 0) != (column.direction == "higher"):
        worse = "-" if column.direction == "higher" else "+"
        raise UserError(
            f"--fail-if '{text}': {metric} is better when {column.direction}, so write "
            f"{metric}:{worse}{abs(percent):g}%."
        )
    return Gate(metric, percent / 100)


def check(gates: Sequence[Gate], cells: Sequence[Cell]) -> list[str]:
    """What is broken, a line each. A gate with nothing to hold it against is broken too."""
    lines = []
    for gate in gates:
        held = [cell for cell in cells if cell.metric == gate.metric and cell.ratio is not None]
        if not held:
            lines.append(f"FAIL {gate.metric}: no valid rows on both sides")
        for cell in held:
            if gate.broken(cell):
                assert cell.ratio is not None
                where = " ".join(filter(None, (cell.config, f"c{cell.conc}", cell.arm)))
                lines.append(
                    f"FAIL {gate.metric} {where}: {100 * (cell.ratio - 1):+.2f} %, "
                    f"beyond {100 * gate.limit:+g} %"
                )
    return lines
