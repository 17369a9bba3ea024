"""Rows to CSV files and back: atomic, UTF-8 in any locale, with a schema version."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from results.columns import (
    BY_NAME,
    COMPARISON_COLUMNS,
    FILES,
    SCHEMA,
    Column,
    Row,
    Value,
    file_columns,
)
from samenode.errors import UserError
from samenode.files import write_text

KINDS = {"accuracy.csv": ("gsm8k",), "acceptance.csv": ("agentx", "gsm8k")}
"""Kinds of point in a CSV of one group; the others hold agentx points."""


def write_tables(folder: Path, rows: Sequence[Row], comparison: Sequence[Row] = ()) -> None:
    """Rewrite every CSV of a campaign, each atomically.

    ``rows`` are scored rows in the order of execution; ``comparison`` rows of ``results.compare``.

    Raises:
        UserError: a CSV there has a newer schema; nothing is then overwritten.
        OSError: the folder cannot be written; the old files are then as before.
    """
    for name in ("points.csv", *FILES, "comparison.csv"):
        if (folder / name).exists():
            read_csv(folder / name)
    write_text(folder / "points.csv", to_csv(rows, file_columns("points.csv")))
    for name in FILES:
        kinds = KINDS.get(name, ("agentx",))
        chosen = [row for row in rows if row.get("kind") in kinds]
        write_text(folder / name, to_csv(chosen, file_columns(name)))
    write_text(folder / "comparison.csv", to_csv(comparison, COMPARISON_COLUMNS))


def to_csv(rows: Iterable[Row], columns: Sequence[Column]) -> str:
    """CSV text: a header line, then one line a row (cells with newlines are quoted)."""
    lines = [_line([c.name for c in columns])]
    lines += [_line([format_cell(row.get(c.name)) for c in columns]) for row in rows]
    return "".join(lines)


def _line(cells: list[str]) -> str:
    """One CSV line. The writer quotes carriage returns only where lines end with one: cut it."""
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue().removesuffix("\r\n") + "\n"


def format_cell(value: Value) -> str:
    """A cell's text: empty for None, NaN and infinity; floats keep every digit."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def read_csv(path: Path) -> list[Row]:
    """Read rows written by ``to_csv``; cells come back in their column's type, empty as None.

    A row has every column of its schema; those that the file lacks are None.

    Raises:
        UserError: the file is missing, is no CSV of ours, has a newer schema or a bad cell.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text; it is no CSV of samenode.") from None
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    names = reader.fieldnames or []
    if "schema" not in names:
        raise UserError(f"{path} has no column 'schema'; it is no CSV of samenode.")
    known = {c.name: c for c in COMPARISON_COLUMNS} if "metric" in names else BY_NAME
    empty: Row = dict.fromkeys(known)
    rows: list[Row] = []
    try:
        for line in reader:
            if None in line or None in line.values():
                raise UserError(f"{path}, line {reader.line_num}: cells are missing or too many.")
            _check_schema(path, line["schema"])
            if unknown := [n for n in names if n not in known]:
                raise UserError(f"{path}: unknown column '{unknown[0]}'; see docs/columns.md.")
            cells = {n: _parse(known[n], line[n], path, reader.line_num) for n in names}
            rows.append(empty | cells)
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: no valid CSV ({error}).") from None
    return rows


def _check_schema(path: Path, cell: str) -> None:
    if not cell.isdecimal():
        raise UserError(f"{path} has no schema version in its column 'schema'; write it again.")
    if int(cell) > SCHEMA:
        raise UserError(
            f"{path} has schema {cell} and this samenode reads up to {SCHEMA}; update samenode."
        )


def _parse(column: Column, cell: str, path: Path, line: int) -> Value:
    if cell == "":
        return None
    try:
        if column.kind == "int":
            return int(cell)
        if column.kind == "float":
            return _finite(float(cell))
        if column.kind == "bool":
            return {"true": True, "false": False}[cell]
    except (ValueError, KeyError):
        raise UserError(
            f"{path}, line {line}: '{cell}' in column {column.name} is no {column.kind}."
        ) from None
    return cell


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(value)
    return value
