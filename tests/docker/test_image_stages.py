"""The ROCm and CUDA images onto a stand-in for their bases: the CPU image, LLVM 22, pip.

What is made is real: the wheels, the gfx950 code objects and their report, which need no GPU, and
the image's last stage. Only vLLM is the CPU's. This takes minutes, and its parts change seldom.
"""

from __future__ import annotations

import csv
import io
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from docker_engine import build, has_image, run

from samenode.errors import UserError
from serve import container

LAST_RUN = "29 November 2026"

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not os.environ.get("SAMENODE_TEST_STAGES"),
        reason=f"last run on {LAST_RUN}; set SAMENODE_TEST_STAGES=1 to run it again",
    ),
]

STAND_IN = "samenode-test:stand-in"
PYTHON = "/opt/samenode/server/bin/python"


@pytest.fixture(scope="session")
def stand_in(image: str) -> str:
    if not has_image(STAND_IN):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "Dockerfile").write_text(
                f"FROM {image}\n"
                "USER 0\n"
                "RUN sed 's|/debian bookworm |/debian-security bookworm-security |'"
                " /etc/apt/sources.list > /etc/apt/sources.list.d/security.list"
                " && apt-get update && apt-get install -y --no-install-recommends lld-22 llvm-22"
                " && python3 -m ensurepip\n"
            )
            env = {**os.environ, "DOCKER_BUILDKIT": "0"}
            run("docker", "build", "--network", "host", "-t", STAND_IN, folder, env=env)
    return STAND_IN


def inside(image: str, *argv: str) -> str:
    return subprocess.check_output(
        ["docker", "run", "--rm", "--network", "none", image, *argv], text=True
    )


def test_the_rocm_image_has_its_code_objects_and_their_report(stand_in: str) -> None:
    tag = "samenode-test:rocm"
    build(stand_in, "rocm", tag)
    labels = container.add_labels(tag)
    rows = list(csv.DictReader(io.StringIO(labels["samenode.kernels.report"])))
    assert rows and all(int(row["vgpr"]) > 0 for row in rows)
    assert all(int(row["vgpr_spills"]) == 0 for row in rows)
    script = "find cache -name '*.pkl' | wc -l; ls wheels"
    count, *wheels = inside(tag, "sh", "-c", f"cd /opt/samenode/kernels; {script}").split()
    assert int(count) > 0, "FlyDSL kept what it compiled"
    assert {wheel.partition("-")[0] for wheel in wheels} == {"dsv41_kernels", "flydsl"}
    assert labels["samenode.version.dsv41-kernels"] and labels["samenode.version.flydsl"]
    assert inside(tag, PYTHON, "-c", "import dsv41_kernels, flydsl; print('both')") == "both\n"


def test_the_cuda_image_has_the_kernels_and_the_client(stand_in: str) -> None:
    tag = "samenode-test:cuda"
    build(stand_in, "cuda", tag)
    labels = container.add_labels(tag)
    assert labels["samenode.version.dsv41-kernels"] and labels["samenode.version.aiperf"]
    assert inside(tag, PYTHON, "-c", "import dsv41_kernels; print('there')") == "there\n"
    with pytest.raises(UserError, match="is for cuda and the recipe for cpu"):
        container.preflight(tag, "cpu")
