"""The ROCm image's own stage, onto a stand-in for its base: Debian, a CPU torch, LLVM 22.

What the stage makes is real: the gfx950 code objects and their report need no GPU.
"""

from __future__ import annotations

import csv
import io
import subprocess
import tempfile
from pathlib import Path

import pytest
from docker_engine import ROOT, build, has_image, run

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

STAND_IN, STAGE = "samenode-test:rocm-base", "samenode-test:rocm-server"


@pytest.fixture(scope="session")
def stage(image: str) -> str:
    if not (ROOT / "kernels" / "pyproject.toml").exists():
        pytest.skip("no kernels to compile")
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
            run("docker", "build", "--network", "host", "-t", STAND_IN, folder)
    build(STAND_IN, "rocm", STAGE, "--target", "server")
    return STAGE


def test_the_code_objects_and_their_report_are_made_without_a_gpu(stage: str) -> None:
    script = "cat report.csv; echo; find cache -name '*.pkl' | wc -l; ls wheels"
    argv = ["docker", "run", "--rm", "--network", "none", stage, "sh", "-c", script]
    said = subprocess.check_output(argv, text=True)
    report, _, rest = said.partition("\n\n")
    rows = list(csv.DictReader(io.StringIO(report)))
    assert rows and all(int(row["vgpr"]) > 0 for row in rows)
    assert all(int(row["vgpr_spills"]) == 0 for row in rows)
    count, *wheels = rest.split()
    assert int(count) > 0, "FlyDSL kept what it compiled"
    assert {wheel.partition("-")[0] for wheel in wheels} == {"dsv41_kernels", "flydsl"}
