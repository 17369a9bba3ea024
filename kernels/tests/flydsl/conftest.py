"""The emulated machine for the FlyDSL tests; `mhc_cases` lies one folder up."""

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dsv41_kernels.emulator import Emulator, emulated, gfx950

LAST_SLOW_RUN = "2026-11-29: 108 passed"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"slow: minutes of emulation; last run {LAST_SLOW_RUN}")


sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def machine() -> Iterator[Emulator]:
    """An emulated MI355X; every launch in the test runs on it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with emulated(gfx950(seed=1)) as running:
            yield running
