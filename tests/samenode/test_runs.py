"""The folder of runs, the journal, progress and atomic files."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from samenode import runs
from samenode.errors import UserError
from samenode.files import write_json
from samenode.journal import Journal
from samenode.progress import Progress, span


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAMENODE_RUNS", str(tmp_path))
    return tmp_path


def test_a_half_written_journal_line_is_passed_over_and_not_glued_to(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.write("point-done", point="001-ü")
    with journal.path.open("ab") as handle:
        handle.write(b'{"t": "2026", "event": "point-do')
    assert journal.done() == {"001-ü"}
    journal.write("point-done", point="002")
    assert journal.done() == {"001-ü", "002"}
    assert [event["event"] for event in journal.events()] == ["point-done", "point-done"]


def test_a_second_campaign_is_refused_and_a_dead_ones_lock_is_not(folder: Path) -> None:
    hold = (
        "import time; from samenode.runs import alone\n"
        "with alone(): print('held', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE)
    assert other.stdout and other.stdout.readline() == b"held\n"
    with pytest.raises(UserError, match=f"already running in .*pid {other.pid}"), runs.alone():
        pass
    other.kill()
    other.wait()
    with runs.alone():
        pass


def test_a_run_is_found_by_id_part_last_and_path(folder: Path) -> None:
    for name in ("20260101-000000-a", "20260102-000000-b"):
        (folder / name).mkdir()
        write_json(folder / name / "plan.json", {"schema": 1})
    assert runs.find("last").name == "20260102-000000-b"
    assert runs.find("0101").name == "20260101-000000-a"
    assert runs.find(str(folder / "20260101-000000-a")).name == "20260101-000000-a"
    with pytest.raises(UserError, match="2 runs called '2026'"):
        runs.find("2026")
    with pytest.raises(UserError, match="no run called 'x'.*20260102-000000-b"):
        runs.find("x")


def test_a_plan_of_a_newer_schema_is_refused(folder: Path) -> None:
    write_json(folder / "plan.json", {"schema": 2})
    with pytest.raises(UserError, match="schema 2; this samenode reads schema 1"):
        runs.read_plan(folder)


def test_a_full_disk_is_noticed_before_and_during(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.check_disk(folder, 1)
    assert runs.disk_short(folder) is None
    with pytest.raises(UserError, match="MiB free and the campaign may need"):
        runs.check_disk(folder, 1e12)
    monkeypatch.setattr(runs, "RESERVE_BYTES", 1 << 60)
    assert "left on" in str(runs.disk_short(folder))


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": True})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"new": float("nan")})
    monkeypatch.setattr(os, "fsync", lambda fd: os.close(-1))  # as a full disk would fail
    with pytest.raises(OSError):
        write_json(path, {"new": True})
    assert json.loads(path.read_text()) == {"old": True}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (99.2, "99 s"),
        (100, "1 min 40 s"),
        (3599, "59 min 59 s"),
        (7500, "2 h 05 min"),
    ],
)
def test_spans_read_well(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_progress_without_a_terminal_is_not_a_flood() -> None:
    out = io.StringIO()
    progress = Progress(12, out)
    progress.step(3, "warm")
    for second in range(20):
        progress.tick(f"{second} s")
    progress.finish("done")
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("[ 3/12] ") and lines[1].endswith("warm: done")
