"""A recipe expanded to launches and points, in the order in which they run.

Node drift must not look like an effect, so the arms are interleaved: the pairs run A B, B A, A B …,
and inside a server's life the concurrencies run upward, in the next server's downward.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from recipes.schema import Recipe, SearchSpace
from results.order import abba
from samenode.errors import UserError
from serve.command import Phase, speculative_config

Kind = Literal["agentx", "gsm8k"]

READY_GUESS_S = {"cpu": 40, "cuda": 150, "rocm": 600}
CLIENT_GUESS_S = 25
"""What aiperf adds to the duration: its start, drain and export (measured on two CPU cores)."""
GSM8K_GUESS_S = {"cpu": 4.0, "cuda": 0.5, "rocm": 0.5}
"""Seconds an item, for the expected time alone."""
GSM8K_ITEMS = 1319


@dataclass(frozen=True)
class Selection:
    """What of a recipe is wanted; None means all of it. ``arms`` may name one arm twice (A/A)."""

    kinds: tuple[Kind, ...]
    arms: tuple[str, ...]
    repeats: int
    tp: int | None = None
    dp: int | None = None
    ep: int | None = None
    spec: str | None = None
    conc: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Point:
    """One measurement. ``number`` is its place in the order of execution, from 1; ``slot`` the
    place of its arm in the campaign's list of arms; ``repeat`` the number of its pair, from 1."""

    number: int
    kind: Kind
    arm: str
    slot: int
    config: str
    conc: int
    repeat: int
    launch: int
    name: str


@dataclass(frozen=True)
class Launch:
    """One server's life and the points measured in it. ``conc`` sizes the server."""

    number: int
    arm: str
    slot: int
    config: str
    phase: Phase
    repeat: int
    conc: int
    points: tuple[Point, ...]


def pick_arms(recipe: Recipe, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The arms to run, the baseline first. A name may be shortened to its last part (``off``).

    Raises:
        UserError: an arm is unknown or its short name is not unique.
    """
    if not wanted:
        chosen = list(recipe.arms)
    else:
        chosen = []
        for name in wanted:
            ending = [arm for arm in recipe.arms if arm == name or arm.endswith(f"-{name}")]
            match = [name] if name in recipe.arms else ending
            if len(match) != 1:
                near = difflib.get_close_matches(name, recipe.arms, n=1, cutoff=0.5)
                hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(recipe.arms)}"
                raise UserError(f"recipe {recipe.name} has no single arm '{name}'; {hint}")
            chosen += match
    return tuple(sorted(chosen, key=lambda arm: arm != recipe.baseline))


def pick_configs(recipe: Recipe, wanted: Selection) -> tuple[SearchSpace, ...]:
    """The parallel configs that the selection leaves.

    Raises:
        UserError: none is left; the sentence lists those that the recipe has.
    """
    left = tuple(
        space
        for space in recipe.search_space
        if (wanted.tp is None or space.tp == wanted.tp)
        and (wanted.dp is None or space.dp == wanted.dp)
        and (wanted.ep is None or space.ep == wanted.ep)
        and (wanted.spec is None or space.spec_decoding == wanted.spec)
    )
    if not left:
        asked = " ".join(
            f"{key}={value}"
            for key, value in (
                ("TP", wanted.tp), ("DP", wanted.dp), ("EP", wanted.ep), ("SPEC", wanted.spec),
            )
            if value is not None
        )  # fmt: skip
        known = ", ".join(space.name for space in recipe.search_space)
        raise UserError(
            f"recipe {recipe.name} has no config with {asked}; it has {known} "
            "(another recipe: RECIPE=<name>, 'samenode recipes' lists them)"
        )
    return left


def expand(recipe: Recipe, wanted: Selection) -> list[Launch]:
    """Every launch and point of the campaign, in order.

    GSM8K needs the accuracy server (real rejection) once per arm. Where that is the very server
    which a throughput launch runs, it is measured there, after the traces; else it gets its own.

    Raises:
        UserError: the selection leaves nothing.
    """
    launches: list[Launch] = []
    for space in pick_configs(recipe, wanted):
        if "agentx" in wanted.kinds:
            launches += _agentx(space, wanted, len(launches))
        if "gsm8k" in wanted.kinds and (space.accuracy or "agentx" not in wanted.kinds):
            _add_gsm8k(recipe, space, wanted, launches)
    return _numbered(launches, len(set(wanted.arms)) < len(wanted.arms))


def _agentx(space: SearchSpace, wanted: Selection, before: int) -> list[Launch]:
    concs = wanted.conc or space.concurrencies
    launches: list[Launch] = []
    for repeat, slots in enumerate(abba(wanted.repeats, len(wanted.arms)), 1):
        for slot in slots:
            arm = wanted.arms[slot]
            upward = (before + len(launches)) % 2 == 0
            points = tuple(
                Point(0, "agentx", arm, slot, space.name, conc, repeat, 0, "")
                for conc in sorted(concs, reverse=not upward)
            )
            launches.append(
                Launch(0, arm, slot, space.name, "throughput", repeat, max(concs), points)
            )
    return launches


def _add_gsm8k(
    recipe: Recipe, space: SearchSpace, wanted: Selection, launches: list[Launch]
) -> None:
    same_server = speculative_config(recipe, space, "throughput") == speculative_config(
        recipe, space, "accuracy"
    )
    conc = recipe.gsm8k.ep_concurrency if space.ep > 1 else recipe.gsm8k.concurrency
    for slot, arm in enumerate(wanted.arms):
        point = Point(0, "gsm8k", arm, slot, space.name, conc, 1, 0, "")
        for index, launch in enumerate(launches):
            if same_server and (launch.config, launch.slot, launch.repeat) == (space.name, slot, 1):
                launches[index] = replace(launch, points=(*launch.points, point))
                break
        else:
            launches.append(Launch(0, arm, slot, space.name, "accuracy", 1, conc, (point,)))


def _numbered(launches: list[Launch], twice: bool) -> list[Launch]:
    result = []
    number = 0
    for place, launch in enumerate(launches, start=1):
        points = []
        for point in launch.points:
            number += 1
            arm = f"{point.arm}-s{point.slot}" if twice else point.arm
            kind = "-gsm8k" if point.kind == "gsm8k" else ""
            name = f"{number:03}-{arm}-{point.config}-c{point.conc}-r{point.repeat}{kind}"
            points.append(replace(point, number=number, launch=place, name=name))
        result.append(replace(launch, number=place, points=tuple(points)))
    return result


def to_json(launches: list[Launch]) -> list[dict[str, Any]]:
    """Launches as plain values for plan.json."""
    return [asdict(launch) for launch in launches]


def from_json(values: list[dict[str, Any]]) -> list[Launch]:
    """The inverse of :func:`to_json`."""
    return [
        Launch(**{**value, "points": tuple(Point(**point) for point in value["points"])})
        for value in values
    ]


def duration_s(recipe: Recipe, launches: list[Launch]) -> float:
    """The expected time of a campaign in seconds: a guess before anything has run."""
    total = 0.0
    for launch in launches:
        total += READY_GUESS_S[recipe.accelerator] + 5
        for point in launch.points:
            if point.kind == "agentx":
                total += CLIENT_GUESS_S + recipe.agentx.warmup_s + recipe.agentx.duration_s
            else:
                items = recipe.gsm8k.limit or GSM8K_ITEMS
                total += 15 + items * GSM8K_GUESS_S[recipe.accelerator]
    return total


def check_node(recipe: Recipe, launches: list[Launch], facts: dict[str, Any]) -> None:
    """Refuse a campaign that this node cannot run.

    Raises:
        UserError: too few GPUs (or, on a CPU, cores) for a config, or none of the recipe's kind.
    """
    if recipe.accelerator == "cpu":
        have, what = int(facts["cpu"]["cores"]), "CPU cores"
    else:
        have, what = len(facts["gpus"] or ()), "GPUs"
    for launch in launches:
        space = space_of(recipe, launch.config)
        if space.gpus > have:
            raise UserError(
                f"config {space.name} of {recipe.name} needs {space.gpus} {what} and this node has "
                f"{have}; choose a smaller TP or another RECIPE"
            )


def space_of(recipe: Recipe, config: str) -> SearchSpace:
    """The search-space entry called ``config``."""
    return next(space for space in recipe.search_space if space.name == config)
