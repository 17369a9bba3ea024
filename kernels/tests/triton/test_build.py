"""The builds that the policy chooses, compiled for sm_90 without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BUILDS = ["1,post,bf16", "64,post,mxfp8", "384,post,mxfp8", "4096,post,bf16"]
BUILDS += ["4096,no_post,fp8_grid", "4096,identity_pre,bf16", "4096,post,mxfp8"]
REGISTERS, SHARED = 65536, 228 * 1024  # of a multiprocessor; a program takes 1 KiB more


@pytest.fixture(scope="module")
def built() -> dict[str, dict[str, int]]:
    script = Path(__file__).with_name("build_sm90.py")
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    said = subprocess.run(
        [sys.executable, script, *BUILDS], env=env, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr[-2000:]
    found = [json.loads(line) for line in said.stdout.splitlines()]
    return {f"{r['tokens']},{r['form']},{r['out']}": r for r in found}


@pytest.mark.parametrize("name", BUILDS)
def test_programs_fit_on_a_multiprocessor(built: dict[str, dict[str, int]], name: str) -> None:
    """Two one-tile programs, or one that stays."""
    build = built[name]
    programs = 1 if build["persistent"] else 2
    assert programs * build["threads"] * build["registers"] <= REGISTERS
    assert programs * (build["shared"] + 1024) <= SHARED


@pytest.mark.parametrize("name", BUILDS)
def test_no_spills(built: dict[str, dict[str, int]], name: str) -> None:
    assert built[name]["stack"] == 0
