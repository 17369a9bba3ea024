"""Registers, LDS and residency, read from the code objects that the compiler made."""

from itertools import product

import pytest

from dsv41_kernels.emulator import Emulator, Kernel
from dsv41_kernels.flydsl import mega_mhc
from dsv41_kernels.flydsl.policy import WORKGROUPS_PER_CU, MhcConfig, lds_slots
from mhc_cases import seam_inputs

FORMS = ("post", "no_post", "identity_pre")
OUTS = ("bf16", "fp8_grid", "mxfp8")


def built(machine: Emulator, form: str, out: str, splits: int) -> Kernel:
    mega_mhc(**seam_inputs(1, 5120, form), form=form, out=out, config={"NUM_KSPLIT": splits})
    return machine.launches[-1].kernel


def assert_resources(kernel: Kernel) -> None:
    assert (kernel.vgpr_spills, kernel.sgpr_spills, kernel.scratch) == (0, 0, 0), kernel
    residency = kernel.residency(MhcConfig().threads)
    assert residency.workgroups_per_cu >= WORKGROUPS_PER_CU, residency


@pytest.mark.parametrize("splits", [1, 20])
def test_no_spill_and_two_workgroups_a_cu(machine: Emulator, splits: int) -> None:
    assert_resources(built(machine, "post", "mxfp8", splits))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "out", "splits"), list(product(FORMS, OUTS, (1, 2, 4, 5, 10, 20)))
)
def test_every_build(machine: Emulator, form: str, out: str, splits: int) -> None:
    assert_resources(built(machine, form, out, splits))


def test_lds_is_what_the_policy_counts_with(machine: Emulator) -> None:
    kernel = built(machine, "post", "mxfp8", 1)
    fixed = kernel.lds - 8 * (1664 + lds_slots(8) * 1024)
    assert 0 < fixed <= 2048
