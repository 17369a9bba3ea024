"""The A/A history of a node: campaigns whose slots carry the same arm, and so show only noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from results.columns import BY_NAME, Row, Value
from results.comparable import WORKLOAD
from results.tables import read_csv
from samenode.errors import UserError

Key = tuple[Value, ...]

KEY = ("node", "kind", "config", "conc", *WORKLOAD)
"""Columns that an A/A pair must share with the row whose noise it stands for."""


@dataclass(frozen=True)
class Floors:
    """Log-ratios of A/A pairs by node, workload, point and metric."""

    logs: Mapping[tuple[Key, str], tuple[tuple[str, float], ...]]

    def log_ratios(self, row: Row, metric: str) -> tuple[float, ...]:
        """ln(slot 1 / slot 0) of the A/A pairs that fit ``row``, its own campaign's left out."""
        found = self.logs.get((_key(row), metric), ())
        return tuple(log for campaign, log in found if campaign != row.get("campaign"))


NO_FLOORS = Floors({})


def aa_history(runs: Path) -> Floors:
    """Read the A/A pairs of every campaign under ``runs``; unreadable campaigns are passed over."""
    rows: list[Row] = []
    for path in sorted(runs.glob("*/points.csv")):
        try:
            rows += read_csv(path)
        except UserError:
            continue
    return floors_of(rows)


def floors_of(rows: Iterable[Row]) -> Floors:
    """The A/A pairs among ``rows``: valid rows of slots 0 and 1 that carry the same arm."""
    pairs: dict[tuple[Value, ...], dict[int, Row]] = {}
    for row in rows:
        slot = row.get("slot")
        if row.get("valid") and row.get("kind") == "agentx" and slot in (0, 1):
            name = (row.get("campaign"), row.get("repeat"), *_key(row))
            pairs.setdefault(name, {})[int(str(slot))] = row
    logs: dict[tuple[Key, str], list[tuple[str, float]]] = {}
    for sides in pairs.values():
        if len(sides) == 2 and sides[0]["arm"] == sides[1]["arm"]:
            for metric in BY_NAME:
                a, b = sides[0].get(metric), sides[1].get(metric)
                if _measured(metric) and _positive(a) and _positive(b):
                    log = math.log(float(str(b))) - math.log(float(str(a)))
                    key = (_key(sides[0]), metric)
                    logs.setdefault(key, []).append((str(sides[0]["campaign"]), log))
    return Floors({key: tuple(found) for key, found in logs.items()})


def _key(row: Row) -> Key:
    return tuple(row.get(name) for name in KEY)


def _measured(metric: str) -> bool:
    return BY_NAME[metric].direction != "none"


def _positive(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
