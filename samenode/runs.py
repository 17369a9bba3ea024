"""The folder of runs: ids, one campaign at a time, and what a run's files are called."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from samenode.errors import UserError
from samenode.journal import now

ROOT = Path(__file__).resolve().parent.parent
"""The checkout."""
RESERVE_BYTES = 200 * 1024**2
"""Free disk under which a campaign stops: enough to write its results down."""
BYTES_PER_SECOND = 150 * 1024
"""What a second of a point leaves on disk, with a margin (60 s leave about 4 MB on a CPU)."""


def runs_folder() -> Path:
    """``results/runs`` in the checkout, or ``SAMENODE_RUNS``."""
    return Path(os.environ.get("SAMENODE_RUNS") or ROOT / "results" / "runs")


def new_id(recipe: str) -> str:
    """A run's id: its start (UTC) and the recipe, so that runs sort by time."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{recipe}"


def find(run: str) -> Path:
    """The folder of a run given by its id, a unique part of it, ``last``, or a path.

    Raises:
        UserError: no run, or more than one, answers to it.
    """
    if (Path(run) / "plan.json").exists():
        return Path(run).resolve()
    folders = sorted(path.parent for path in runs_folder().glob("*/plan.json"))
    if run == "last" and folders:
        return folders[-1]
    match = [path for path in folders if path.name == run] or [p for p in folders if run in p.name]
    if len(match) != 1:
        what = "no run" if not match else f"{len(match)} runs"
        newest = ", ".join(path.name for path in folders[-3:]) or "none"
        raise UserError(f"{what} called '{run}' in {runs_folder()}; the newest: {newest}")
    return match[0]


def read_plan(folder: Path) -> dict[str, Any]:
    """A run's plan.json.

    Raises:
        UserError: it is missing, broken, or of a newer version of samenode.
    """
    path = folder / "plan.json"
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); start a new campaign") from error
    if plan.get("schema") != 1:
        raise UserError(f"{path} has schema {plan.get('schema')}; this samenode reads schema 1")
    return dict(plan)


@contextmanager
def alone() -> Iterator[None]:
    """Hold the folder of runs: two campaigns on one node would measure each other.

    The kernel drops the lock when the holder dies, however it dies.

    Raises:
        UserError: another campaign holds it.
    """
    folder = runs_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.seek(0)
            holder = re.sub(r"\s+", " ", handle.read()).strip() or "another process"
            raise UserError(
                f"a campaign is already running in {folder} ({holder}); wait for its end or stop it"
            ) from error
        handle.truncate(0)
        handle.write(f"pid {os.getpid()}, since {now()}\n")
        handle.flush()
        yield


def check_disk(folder: Path, seconds: float) -> None:
    """Refuse to begin what the disk has no room for.

    Raises:
        UserError: less is free than ``seconds`` of points and the reserve need.
    """
    need = RESERVE_BYTES + int(seconds * BYTES_PER_SECOND)
    free = shutil.disk_usage(folder).free
    if free < need:
        raise UserError(
            f"{folder} has {free / 1024**2:.0f} MiB free and the campaign may need "
            f"{need / 1024**2:.0f} MiB; free some space or point SAMENODE_RUNS elsewhere",
            exit_code=1,
        )


def disk_short(folder: Path) -> str | None:
    """A reason to stop now, while the results can still be written; None while there is room."""
    free = shutil.disk_usage(folder).free
    if free >= RESERVE_BYTES:
        return None
    return f"only {free / 1024**2:.0f} MiB left on {folder}"
