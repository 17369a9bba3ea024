"""Node, image and server of a row, and the energy it took."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from point_folder import FIRST_NS, LAST_NS, MakePoint, write_samples

from results.score import score
from serve.samples import Sample

NODE: dict[str, Any] = {
    "schema": 1,
    "collected": "2026-11-29T19:30:00+00:00",
    "host": {"name": "gpu-17"},
    "cpu": {"model": "EPYC", "threads": 128},
    "gpus": [{"uuid": "GPU-1"}],
    "drivers": {"nvidia": "580"},
    "packages": {"client": {}, "server": {"vllm": "0.32.0", "torch": "2.13.0"}},
    "image": {"digest": None},
}


@pytest.fixture
def point(make_point: MakePoint, tmp_path: Path) -> Path:
    folder = tmp_path / "campaign" / "points" / "001"
    folder.parent.mkdir(parents=True)
    shutil.move(make_point(), folder)
    (tmp_path / "campaign" / "node.json").write_text(json.dumps(NODE), encoding="utf-8")
    return folder


def test_a_row_names_its_node_server_and_packages(point: Path) -> None:
    row = score(point)
    assert str(row["node"]).startswith("gpu-17 ")
    assert row["server"] == "vllm 0.32.0"
    assert str(row["image"]).startswith("packages:")


def test_another_gpu_or_package_is_another_node_or_image(point: Path) -> None:
    before = score(point)
    campaign = point.parent.parent
    changed = NODE | {"gpus": [{"uuid": "GPU-2"}]}
    changed["packages"] = {"server": NODE["packages"]["server"] | {"torch": "2.14.0"}}
    (campaign / "node.json").write_text(json.dumps(changed), encoding="utf-8")
    after = score(point)
    assert after["node"] != before["node"]
    assert after["image"] != before["image"]


def test_a_launch_may_name_its_own_image_and_packages(point: Path) -> None:
    server = point.parent.parent / "servers" / "001"
    server.mkdir(parents=True)
    own = {"image": "sha256:abc", "packages": {"vllm": "0.33.0"}}
    (server / "server.json").write_text(json.dumps(own), encoding="utf-8")
    row = score(point)
    assert (row["image"], row["server"]) == ("sha256:abc", "vllm 0.33.0")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"host": 3}', '{"packages": 3}'])
def test_a_node_that_cannot_be_told_is_unknown(point: Path, text: str) -> None:
    (point.parent.parent / "node.json").write_text(text, encoding="utf-8")
    row = score(point)
    assert (row["node"], row["image"], row["server"]) == (None, None, None)


def test_energy_is_mean_power_over_the_completed_requests(point: Path) -> None:
    second = 1_000_000_000
    ticks = range(FIRST_NS - second, LAST_NS + 2 * second, second)
    watts = {"gpu0": 300.0, "gpu1": 200.0}
    samples = [
        Sample(t, gpu, throttle="none", power_w=w) for t in ticks for gpu, w in watts.items()
    ]
    write_samples(point, samples)
    row = score(point)
    measured_s = 20.959720032
    assert row["mean_power"] == pytest.approx(500.0)
    assert row["energy"] == pytest.approx(500.0 * measured_s)
    assert row["joules_per_output_token"] == pytest.approx(500.0 * measured_s / 681)
    assert row["joules_per_total_token"] == pytest.approx(500.0 * measured_s / (681 + 11137))


def test_without_power_there_is_no_energy(point: Path) -> None:
    row = score(point)
    assert (row["mean_power"], row["energy"], row["joules_per_output_token"]) == (None, None, None)
