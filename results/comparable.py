"""What two rows must share before a ratio of them means anything."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from results.columns import Row
from samenode.errors import UserError

WORKLOAD = (
    "model",
    "corpus",
    "seed",
    "duration_s",
    "spec_method",
    "spec_tokens",
    "rejection",
    "target_acceptance_length",
)

FIELDS: dict[str, dict[str, tuple[str, ...]]] = {
    "agentx": {
        "node": ("node",),
        "image": ("image",),
        "workload": WORKLOAD,
        "client": ("client",),
        "basis": ("token_count_source",),
    },
    "gsm8k": {
        "node": ("node",),
        "image": ("image",),
        "workload": ("model", "spec_method", "spec_tokens", "rejection", "gsm8k_protocol"),
        "client": ("client",),
    },
}
"""Kind of point -> field -> columns that must be equal. ``basis``: whose token counts."""

MAY_BE_EMPTY = ("target_acceptance_length", "spec_method", "spec_tokens", "rejection")
"""Columns whose emptiness is an answer; any other empty cell is unknown and equals nothing."""

ACROSS = ("node", "image", "workload", "client", "basis", "config")
"""What ``--across`` accepts; ``config`` lines up points of different parallel configs."""


def differences(pairs: Iterable[tuple[Row, Row]]) -> dict[str, str]:
    """Field -> how it differs, in words; of the first pair of rows in which it does."""
    found: dict[str, str] = {}
    for a, b in pairs:
        for name, columns in FIELDS.get(str(a["kind"]), FIELDS["agentx"]).items():
            for column in columns:
                x, y = a.get(column), b.get(column)
                unknown = None in (x, y) and column not in MAY_BE_EMPTY
                if (x != y or unknown) and name not in found:
                    found[name] = f"{column} {_show(x)} against {_show(y)}"
    return found


def require(pairs: Iterable[tuple[Row, Row]], across: Collection[str]) -> list[str]:
    """Refuse rows that differ in a field not named in ``across``; give the lines to print on top.

    Raises:
        UserError: a field differs or is not known, or ``across`` names no field.
    """
    for name in across:
        if name not in ACROSS:
            raise UserError(f"--across {name}: there is no such field; known: {', '.join(ACROSS)}.")
    found = differences(pairs)
    refused = {name: how for name, how in found.items() if name not in across}
    if refused:
        told = "; ".join(f"{name} ({how})" for name, how in refused.items())
        raise UserError(
            f"these rows differ in {told}; to compare all the same, add "
            f"{' '.join(f'--across {name}' for name in refused)}."
        )
    return [f"ACROSS {name}: {how}" for name, how in found.items()]


def _show(value: object) -> str:
    return "unknown" if value is None else f"'{value}'"
