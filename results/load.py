"""Rows of a run folder or of a CSV file, and the GSM8K items behind them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from results.columns import BY_NAME, SCHEMA, Row
from results.gsm8k import Items, read_items
from results.records import RecordsError
from results.tables import read_csv
from results.validity import check_arms
from samenode.errors import UserError


def load_rows(path: Path) -> list[Row]:
    """Rows of a campaign's folder or of a CSV of rows.

    Raises:
        UserError: there is neither, or it cannot be read.
    """
    if path.is_dir():
        return run_rows(path)
    rows = read_csv(path)
    if rows and "metric" in rows[0]:
        raise UserError(f"{path} holds comparisons; name the run or its points.csv.")
    return rows


def run_rows(folder: Path) -> list[Row]:
    """Every scored row of a campaign, in the order of execution, its arms checked.

    Raises:
        UserError: there is none, or one is garbled or of a newer schema.
    """
    paths = sorted((folder / "points").glob("*/row.json"))
    if not paths:
        raise UserError(f"{folder} holds no scored point; name a run or a CSV of rows.")
    return check_arms(_read_row(path) for path in paths)


def _read_row(path: Path) -> Row:
    try:
        row = json.loads(path.read_bytes())
        schema = int(row["schema"])
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{path} is no scored row; score the point again.") from None
    if schema > SCHEMA:
        raise UserError(
            f"{path} has schema {schema} and this samenode reads up to {SCHEMA}; update samenode."
        )
    return {name: row.get(name) for name in BY_NAME}


def items_reader(folders: Mapping[str, Path]) -> Callable[[Row], Items | None]:
    """A reader of GSM8K items: campaign id -> its folder. None where the files are not there."""

    def read(row: Row) -> Items | None:
        folder = folders.get(str(row.get("campaign")))
        if folder is None:
            return None
        try:
            return read_items(folder / "points" / str(row.get("point")))
        except RecordsError:
            return None

    return read
