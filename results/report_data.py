"""What a report shows, read from a campaign's folder. What is gone is said, not fatal."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from results.accuracy_tests import PairedAccuracy
from results.columns import BY_NAME, Row
from results.compare import Cell, cells, pair_up
from results.gsm8k import FILTERS
from results.history import Floors, aa_history
from results.load import items_reader, run_rows
from results.provenance import read_json
from results.tables import read_csv
from results.validity import check_arms
from samenode.errors import UserError

ACRONYMS = {"ttft": "TTFT", "itl": "ITL", "gsm8k": "GSM8K", "gpu": "GPU", "kv": "KV"}
UNIT_ENDINGS = ("_ms", "_s")


@dataclass(frozen=True)
class Side:
    """One slot of the campaign: slot 0 is what the others are compared with."""

    slot: int
    arm: str
    label: str
    """The arm's name, with the slot where a name stands in two of them (A/A)."""


@dataclass(frozen=True)
class Flip:
    """A GSM8K item that one arm got right and the other wrong."""

    item: int
    lost: bool
    """Right in the baseline and wrong in the arm; else the other way round."""
    question: str
    target: str
    answers: tuple[str, str]
    """What was taken as the answer of the baseline and of the arm."""


@dataclass(frozen=True)
class Accuracy:
    """One GSM8K comparison: its row of ``comparison.csv`` and, with the samples, its items."""

    row: Row
    test: PairedAccuracy | None
    flips: tuple[Flip, ...]


@dataclass
class CampaignData:
    """A campaign as its report needs it."""

    folder: Path
    name: str
    plan: dict[str, Any]
    node: dict[str, Any]
    rows: list[Row]
    sides: list[Side]
    comparison: list[Row]
    """Rows of ``comparison.csv``, computed anew; see ``recorded``."""
    accuracy: list[Accuracy]
    missing: list[str] = field(default_factory=list)
    """Sentences: what is not there, and what the report lacks for it."""

    @property
    def is_aa(self) -> bool:
        """Whether two slots carry the same arm."""
        return len({side.arm for side in self.sides}) < len(self.sides)

    @property
    def invalid(self) -> list[Row]:
        """Rows that broke a rule."""
        return [row for row in self.rows if not row.get("valid")]

    @property
    def serving(self) -> list[Row]:
        """Rows of the AgentX points."""
        return [row for row in self.rows if row.get("kind") == "agentx"]

    @property
    def configs(self) -> list[str]:
        """Parallel configs, in the order of execution."""
        return list(dict.fromkeys(str(row.get("config") or "") for row in self.rows))

    def side(self, row: Row) -> Side:
        """The side that a row, or a row of ``comparison.csv``, is of."""
        return next(side for side in self.sides if side.slot == slot_of(row))

    def point_folder(self, row: Row) -> Path:
        """Where a row's artefacts lie, or lay."""
        return self.folder / "points" / str(row.get("point"))


def slot_of(row: Row) -> int:
    """A row's slot; one without is of the baseline's."""
    slot = row.get("slot")
    return slot if isinstance(slot, int) else 0


def metric_label(metric: str) -> str:
    """A column's name for people: ``ttft_p50_ms`` is "TTFT p50"; its unit stands elsewhere."""
    if BY_NAME[metric].unit:
        for ending in UNIT_ENDINGS:
            metric = metric.removesuffix(ending)
    return " ".join(ACRONYMS.get(word, word) for word in metric.split("_"))


def point_label(row: Row) -> str:
    """Parallel config and concurrency, as in "tp2 c8"."""
    conc = row.get("conc")
    return " ".join([str(row.get("config") or "?"), *([] if conc is None else [f"c{conc}"])])


def number_of(row: Row, name: str) -> float | None:
    """A cell that is a finite number; else None."""
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def load(folder: Path) -> CampaignData:
    """Read a campaign.

    Raises:
        UserError: the folder holds neither scored points nor ``points.csv``, or a garbled one.
    """
    missing: list[str] = []
    rows = _rows(folder, missing)
    plan, node = read_json(folder / "plan.json"), read_json(folder / "node.json")
    for name, content, lacks in (
        ("plan.json", plan, "the recipe's text and the arms that were planned are not shown"),
        ("node.json", node, "the node and the packages are not shown"),
    ):
        if not content:
            missing.append(f"{name} is missing or garbled: {lacks}.")
    planned = _planned(plan)
    if planned > len(rows):
        missing.append(f"{planned - len(rows)} of {planned} planned points have no row yet.")
    name = str(rows[0].get("campaign") or folder.name)
    found = _cells(rows, name, folder, missing)
    comparison = [_recorded(cell.row(), _earlier(folder)) for cell in found]
    data = CampaignData(
        folder=folder,
        name=name,
        plan=plan,
        node=node,
        rows=rows,
        sides=_sides(rows),
        comparison=comparison,
        accuracy=[],
        missing=missing,
    )
    pairs = _accuracy_pairs(rows)
    for cell, row in zip(found, comparison, strict=True):
        if cell.kind == "gsm8k":
            pair = pairs.get((cell.config, cell.conc, cell.slot))
            flips = _flips(data, cell, pair) if pair else ()
            data.accuracy.append(Accuracy(row, cell.accuracy, flips))
            if cell.accuracy is None and cell.metric in {f"gsm8k_{name}" for name in FILTERS}:
                missing.append(
                    f"The GSM8K samples of {point_label(row)} are not there: the items of "
                    f"{metric_label(cell.metric)} that flipped are not shown."
                )
    return data


def _planned(plan: dict[str, Any]) -> int:
    """Points of plan.json; 0 where it does not say."""
    try:
        return sum(len(launch["points"]) for launch in plan["launches"])
    except (KeyError, TypeError):
        return 0


def _rows(folder: Path, missing: list[str]) -> list[Row]:
    if any((folder / "points").glob("*/row.json")):
        return run_rows(folder)
    if not (folder / "points.csv").exists():
        raise UserError(f"{folder} holds no scored point; name a campaign that has run one.")
    rows = check_arms(read_csv(folder / "points.csv"))
    if not rows:
        raise UserError(f"{folder / 'points.csv'} has no row; run a point of the campaign first.")
    missing.append("The point folders are gone: the rows are those of points.csv.")
    return rows


def _sides(rows: list[Row]) -> list[Side]:
    arms: dict[int, str] = {}
    for row in sorted(rows, key=slot_of):
        arms.setdefault(slot_of(row), str(row.get("arm") or "?"))
    names = list(arms.values())
    return [
        Side(slot, arm, arm if names.count(arm) == 1 else f"{arm} (slot {slot})")
        for slot, arm in arms.items()
    ]


def _cells(rows: list[Row], name: str, folder: Path, missing: list[str]) -> list[Cell]:
    groups, floors = pair_up(rows), _floors(folder)
    try:
        return cells(groups, floors=floors, items=items_reader({name: folder}))
    except UserError as error:
        missing.append(f"GSM8K is not tested: {error}")
        return cells(groups, floors=floors)


def _floors(folder: Path) -> Floors:
    """The A/A campaigns that lie beside this one."""
    return aa_history(folder.resolve().parent)


def _earlier(folder: Path) -> list[Row]:
    try:
        return read_csv(folder / "comparison.csv")
    except UserError:
        return []


def _recorded(row: Row, earlier: list[Row]) -> Row:
    """``row``, or what the campaign recorded where that had evidence which is gone by now.

    A verdict may rest on GSM8K items or on an A/A campaign that were deleted since. The same
    figures from the same number of pairs then keep the verdict that they had.
    """
    if row["verdict"] is not None:
        return row
    same = ("kind", "recipe", "config", "conc", "metric", "slot", "n", "dropped")
    for old in earlier:
        if (
            old.get("verdict") is not None
            and all(old.get(name) == row[name] for name in same)
            and _equal(old.get("ratio"), row["ratio"])
        ):
            why = f"{old.get('why') or ''} (as recorded in comparison.csv)".strip()
            return {**row, **{k: old.get(k) for k in ("p", "floor", "verdict")}, "why": why}
    return row


def _equal(a: object, b: object) -> bool:
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-9)
    return a is b is None


def _accuracy_pairs(rows: list[Row]) -> dict[tuple[str, Any, int], tuple[Row, Row]]:
    """The first valid GSM8K pair of every point and slot: the one that is tested."""
    pairs: dict[tuple[str, Any, int], tuple[Row, Row]] = {}
    for group in pair_up(row for row in rows if row.get("kind") == "gsm8k"):
        for base, arm in zip(group.baseline, group.arm, strict=True):
            if base.get("valid") and arm.get("valid"):
                key = (str(base.get("config") or ""), arm.get("conc"), group.slot)
                pairs.setdefault(key, (base, arm))
    return pairs


def _flips(data: CampaignData, cell: Cell, pair: tuple[Row, Row]) -> tuple[Flip, ...]:
    test = cell.accuracy
    if test is None:
        return ()
    regex = FILTERS[cell.metric.removeprefix("gsm8k_")]
    wanted = {*test.lost, *test.gained}
    base, arm = (_samples(data.point_folder(row), regex, wanted) for row in pair)
    return tuple(
        Flip(
            item,
            item in test.lost,
            _text((base[item].get("doc") or {}).get("question")),
            _text(base[item].get("target")).rpartition("####")[2].strip(),
            (_answer(base[item]), _answer(arm[item])),
        )
        for item in sorted(wanted)
    )


def _samples(folder: Path, regex: str, wanted: set[int]) -> dict[int, dict[str, Any]]:
    """The wanted samples by item. ``read_items`` has read the same file before without a fault."""
    found = {}
    (path,) = (folder / "lm_eval").glob("**/samples_*.jsonl")
    with path.open(encoding="utf-8") as handle:
        for line in handle:
            sample = json.loads(line)
            if sample["filter"] == regex and int(sample["doc_id"]) in wanted:
                found[int(sample["doc_id"])] = sample
    return found


def _answer(sample: dict[str, Any]) -> str:
    taken = sample.get("filtered_resps")
    return _text(taken[0] if isinstance(taken, list) and taken else taken)


def _text(value: object) -> str:
    return "" if value is None else str(value)
