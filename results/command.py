"""What ``samenode compare`` does, without the argument parser."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from results.columns import BY_NAME, COMPARISON_COLUMNS, SCHEMA, Row
from results.comparable import require
from results.compare import Cell, Group, cells, line_up, pair_up, render
from results.gate import check, parse_gate
from results.history import NO_FLOORS, aa_history
from results.load import items_reader, load_rows
from results.tables import to_csv
from samenode.errors import UserError
from samenode.files import write_json, write_text

EXIT_GATE = 3
"""A ``--fail-if`` was broken."""


def compare_command(
    sources: Sequence[Path],
    *,
    across: Collection[str] = (),
    metrics: Sequence[str] | None = None,
    csv_file: Path | None = None,
    json_file: Path | None = None,
    fail_if: Sequence[str] = (),
    history: Path | None = None,
) -> int:
    """Compare the arms of one run, or several runs with the first; print it.

    Args:
        sources: run folders or CSVs of rows. One: its arms, slot 0 the baseline, pair by pair.
            Several: each against the first, arm for arm, without a verdict.
        across: fields in which the rows may differ, see ``results.comparable.ACROSS``.
        metrics: columns to compare; None for the usual ones.
        csv_file: write the comparison there too, as ``comparison.csv``.
        json_file: write it there too, as JSON: ``{"schema", "across", "cells": [rows]}``.
        fail_if: gates such as ``interactivity_p90:-3%``, see ``results.gate``.
        history: the folder of runs, whose A/A campaigns give the noise floor.

    Returns:
        0, or ``EXIT_GATE`` when a gate is broken.

    Raises:
        UserError: a source cannot be read, or the rows must not be compared (exit code 2).
    """
    for metric in metrics or ():
        if metric not in BY_NAME or BY_NAME[metric].direction == "none":
            raise UserError(f"'{metric}' is no metric that can be compared; see docs/columns.md.")
    gates = [parse_gate(text) for text in fail_if]
    found, notes = compared(sources, across=across, metrics=metrics, history=history)
    if gates and metrics is None:
        extra = [g.metric for g in gates if g.metric not in {c.metric for c in found}]
        if extra:
            found += compared(sources, across=across, metrics=extra, history=history)[0]
    for line in notes:
        print(line)
    if notes:
        print()
    print(render(found), end="")
    rows = [cell.row() for cell in found]
    if csv_file is not None:
        write_text(csv_file, to_csv(rows, COMPARISON_COLUMNS))
    if json_file is not None:
        write_json(json_file, {"schema": SCHEMA, "across": notes, "cells": rows})
    broken = check(gates, found)
    if broken:
        print("\n" + "\n".join(broken))
    return EXIT_GATE if broken else 0


def compared(
    sources: Sequence[Path],
    *,
    across: Collection[str] = (),
    metrics: Sequence[str] | None = None,
    history: Path | None = None,
) -> tuple[list[Cell], list[str]]:
    """The cells of a comparison and the lines to print on top; as ``compare_command``."""
    runs = [load_rows(path) for path in sources]
    ignore = frozenset({"config"} & set(across))
    if len(runs) == 1:
        groups = pair_up(runs[0], ignore)
    else:
        groups = [
            group
            for slot, rows in enumerate(runs[1:], 1)
            for group in line_up(runs[0], rows, slot, ignore)
        ]
    if not groups:
        raise UserError(f"{sources[0]} holds no two arms to compare; name a second run.")
    notes = require(_row_pairs(groups), across)
    if ignore and any(a["config"] != b["config"] for a, b in _row_pairs(groups)):
        notes.append("ACROSS config: the parallel configs differ")
    folders = {
        str(rows[0]["campaign"]): path
        for path, rows in zip(sources, runs, strict=True)
        if path.is_dir()
    }
    floors = NO_FLOORS if history is None else aa_history(history)
    return cells(groups, metrics, floors=floors, items=items_reader(folders)), notes


def _row_pairs(groups: Sequence[Group]) -> list[tuple[Row, Row]]:
    """Every valid row of a point beside the first of them."""
    pairs = []
    for group in groups:
        valid = [row for row in (*group.baseline, *group.arm) if row.get("valid")]
        pairs += [(valid[0], row) for row in valid[1:]]
    return pairs
