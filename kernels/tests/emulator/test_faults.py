"""Planted bugs within a wave or workgroup: each is a fault that names instruction and wave.

Every program first runs as it should be, so a fault can only come from the planted change.
"""

from __future__ import annotations

import pytest
import torch

from assemble import assemble
from dsv41_kernels.emulator import (
    BudgetExceeded,
    DataRace,
    Deadlock,
    Emulator,
    KernelFault,
    MissingWait,
    OutOfBounds,
    UninitializedRead,
    UnsupportedInstruction,
    gfx950,
)

COPY = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_lshlrev_b32_e32 v1, 2, v0
s_waitcnt lgkmcnt(0)
global_load_dword v2, v1, s[4:5]
global_load_dword v3, v1, s[4:5] offset:4
s_waitcnt vmcnt(0)
v_add_u32_e32 v4, v2, v3
global_store_dword v1, v4, s[6:7]
s_endpgm
"""


def run(
    body: str, waves: int = 1, groups: int = 1, lds: int = 0, scratch: int = 0, **chip: int
) -> torch.Tensor:
    source = torch.arange(1024 * groups + 64, dtype=torch.int32)
    out = torch.zeros(1024 * groups, dtype=torch.int32)
    machine = Emulator(gfx950(**chip))
    module = assemble(body, lds=lds, scratch=scratch)
    machine.launch(module, "kernel", (groups, 1, 1), (64 * waves, 1, 1), source, out)
    return out


def faults(kind: type[KernelFault], pattern: str, body: str, **where: int) -> None:
    with pytest.raises(kind, match=pattern):
        run(body, **where)


def test_sound_program_runs() -> None:
    assert torch.equal(run(COPY)[:64], 2 * torch.arange(64, dtype=torch.int32) + 1)


@pytest.mark.parametrize(
    ("wait", "planted", "register"),
    [
        ("s_waitcnt vmcnt(0)", "", "v2"),
        ("s_waitcnt vmcnt(0)", "s_waitcnt vmcnt(2)", "v2"),
        ("s_waitcnt vmcnt(0)", "s_waitcnt vmcnt(1)", "v3"),
        ("s_waitcnt vmcnt(0)", "s_waitcnt lgkmcnt(0)", "v2"),
        ("s_waitcnt lgkmcnt(0)", "", "s4"),
        ("s_waitcnt lgkmcnt(0)", "s_waitcnt vmcnt(0)", "s4"),
    ],
)
def test_missing_or_short_wait(wait: str, planted: str, register: str) -> None:
    faults(MissingWait, rf"reads {register} before the load", COPY.replace(wait, planted, 1))


def test_result_overwritten_while_its_load_is_out() -> None:
    body = COPY.replace("s_waitcnt vmcnt(0)\n", "v_mov_b32_e32 v2, 0\ns_waitcnt vmcnt(0)\n")
    faults(MissingWait, "overwrites v2 before the load", body)


LDS = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_lshlrev_b32_e32 v1, 2, v0
v_xor_b32_e32 v3, 0x3fc, v1
ds_write_b32 v1, v0
s_waitcnt lgkmcnt(0)
s_barrier
ds_read_b32 v2, v3
s_waitcnt lgkmcnt(0)
global_store_dword v1, v2, s[6:7]
s_endpgm
"""


def test_lds_exchange() -> None:
    got = run(LDS, waves=4, lds=1024)
    assert torch.equal(got[:256], torch.arange(255, -1, -1, dtype=torch.int32))


def test_lds_read_without_wait() -> None:
    cut = LDS.rindex("s_waitcnt lgkmcnt(0)")
    faults(
        MissingWait,
        "reads v2 before the load `ds_read_b32",
        LDS[:cut] + LDS[cut + 20 :],
        waves=4,
        lds=1024,
    )


@pytest.mark.parametrize("seed", range(8))
def test_missing_barrier(seed: int) -> None:
    """Whatever the schedule: a race, or a read of bytes nobody has written yet."""
    body = LDS.replace("s_barrier\n", "")
    with pytest.raises((DataRace, UninitializedRead)):
        run(body, waves=4, lds=1024, seed=seed)


@pytest.mark.parametrize("seed", range(8))
def test_write_not_waited_for_before_the_barrier(seed: int) -> None:
    body = LDS.replace("s_waitcnt lgkmcnt(0)\ns_barrier", "s_barrier").replace(
        "s_load_dwordx4 s[4:7], s[0:1], 0x0\n",
        "s_load_dwordx4 s[4:7], s[0:1], 0x0\ns_waitcnt lgkmcnt(0)\n",
    )
    with pytest.raises((DataRace, UninitializedRead)):
        run(body, waves=4, lds=1024, seed=seed)


DMA = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_lshlrev_b32_e32 v1, 2, v0
v_readfirstlane_b32 s8, v1
s_mov_b32 m0, s8
v_xor_b32_e32 v3, 0x3fc, v1
s_waitcnt lgkmcnt(0)
global_load_lds_dword v1, s[4:5]
s_waitcnt vmcnt(0)
s_barrier
ds_read_b32 v2, v3
s_waitcnt lgkmcnt(0)
global_store_dword v1, v2, s[6:7]
s_endpgm
"""


def test_load_to_lds() -> None:
    got = run(DMA, waves=4, lds=1024)
    assert torch.equal(got[:256], torch.arange(255, -1, -1, dtype=torch.int32))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("planted", ["s_barrier", "s_waitcnt lgkmcnt(0)\ns_barrier"])
def test_load_to_lds_not_waited_for(planted: str, seed: int) -> None:
    body = DMA.replace("s_waitcnt vmcnt(0)\ns_barrier", planted)
    faults(MissingWait, "load to LDS is in flight", body, waves=4, lds=1024, seed=seed)


def test_load_to_lds_overtaken_by_own_read() -> None:
    body = DMA.replace("s_waitcnt vmcnt(0)\ns_barrier\n", "").replace("0x3fc", "0")
    faults(MissingWait, "load to LDS is in flight", body, lds=1024)


def test_never_written_register_as_address() -> None:
    body = COPY.replace("v_lshlrev_b32_e32 v1, 2, v0\n", "")
    faults(UninitializedRead, r"an address depends on v1 lane 0", body)


def test_never_written_value_through_arithmetic_to_a_store() -> None:
    body = COPY.replace(
        "v_add_u32_e32 v4, v2, v3", "v_add_u32_e32 v9, v2, v8\nv_mov_b32_e32 v4, v9"
    )
    faults(UninitializedRead, r"stored to memory depends on v4 lane 0", body)


def test_never_written_value_that_does_not_matter() -> None:
    """Selected away, multiplied into a dead register, moved about: no fault."""
    body = COPY.replace(
        "v_add_u32_e32 v4, v2, v3",
        "v_mul_u32_u24_e32 v9, v8, v2\ns_mov_b64 vcc, 0\nv_add_u32_e32 v4, v2, v3\n"
        "v_cndmask_b32_e32 v4, v4, v8, vcc\ns_and_b32 s20, s21, 0\ns_cmp_eq_u32 s20, 0\n"
        "s_cbranch_scc0 .Lend\n.Lend:",
    )
    assert torch.equal(run(body)[:64], 2 * torch.arange(64, dtype=torch.int32) + 1)


def test_never_written_value_in_some_lanes_only() -> None:
    body = COPY.replace(
        "v_add_u32_e32 v4, v2, v3",
        "v_cmp_gt_u32_e32 vcc, 40, v0\ns_and_saveexec_b64 s[10:11], vcc\n"
        "v_add_u32_e32 v4, v2, v3\ns_mov_b64 exec, s[10:11]",
    )
    faults(UninitializedRead, "v4 lane 40, which was never written", body)


@pytest.mark.parametrize(
    ("planted", "pattern"),
    [
        ("s_cmp_eq_u32 s30, 0\ns_cbranch_scc1 .Lx\n.Lx:", "decides a branch"),
        ("v_cmp_eq_u32_e32 vcc, 0, v9\ns_cbranch_vccnz .Lx\n.Lx:", "decides a branch"),
        (
            "v_cmp_eq_u32_e32 vcc, 0, v9\ns_and_saveexec_b64 s[10:11], vcc",
            "decides which lanes run",
        ),
        ("v_readfirstlane_b32 s8, v9\ns_add_u32 s6, s6, s8", "an address depends on s6"),
    ],
)
def test_never_written_value_decides_control(planted: str, pattern: str) -> None:
    body = COPY.replace("v_add_u32_e32 v4, v2, v3", f"v_add_u32_e32 v4, v2, v3\n{planted}")
    faults(UninitializedRead, pattern, body)


def test_never_written_lds() -> None:
    body = LDS.replace(
        "ds_write_b32 v1, v0\n",
        "v_cmp_ne_u32_e32 vcc, 77, v0\ns_and_saveexec_b64 s[10:11], vcc\n"
        "ds_write_b32 v1, v0\ns_mov_b64 exec, s[10:11]\n",
    )
    faults(
        UninitializedRead, r"never-written value came in with `ds_read_b32", body, waves=4, lds=1024
    )


def test_never_written_scratch() -> None:
    body = COPY.replace(
        "v_add_u32_e32 v4, v2, v3", "scratch_load_dword v4, off, off offset:8\ns_waitcnt vmcnt(0)"
    )
    faults(UninitializedRead, "came in with `scratch_load_dword", body, scratch=32)


def test_never_written_tensor() -> None:
    source = torch.arange(128, dtype=torch.int32)
    out = torch.zeros(64, dtype=torch.int32)
    machine = Emulator(gfx950())
    machine.uninitialized(source)
    with pytest.raises(UninitializedRead, match="came in with `global_load_dword"):
        machine.launch(assemble(COPY), "kernel", (1, 1, 1), (64, 1, 1), source, out)
    machine.uninitialized(out)
    machine.launch(assemble(COPY), "kernel", (1, 1, 1), (64, 1, 1), torch.ones_like(source), out)
    machine.launch(
        assemble(COPY.replace("global_load_dword v3, v1, s[4:5] offset:4", "v_mov_b32_e32 v3, 0")),
        "kernel",
        (1, 1, 1),
        (64, 1, 1),
        out,
        source,
    )


@pytest.mark.parametrize(
    ("sound", "planted", "pattern"),
    [
        ("offset:4", "offset:2048", "load of 4 bytes"),
        (
            "global_store_dword v1",
            "v_add_u32_e32 v1, 0x1000, v1\nglobal_store_dword v1",
            "store of 4 bytes",
        ),
        (
            "global_store_dword v1, v4, s[6:7]",
            "global_store_dword v1, v4, s[0:1]",
            "store of 4 bytes",
        ),
        (
            "global_store_dword v1, v4, s[6:7]",
            "global_atomic_add v1, v4, s[6:7] offset:-4096",
            "atomic of 4 bytes",
        ),
    ],
)
def test_out_of_bounds(sound: str, planted: str, pattern: str) -> None:
    # s[0:1] points at the kernel's arguments, which are read-only.
    body = COPY.replace(sound, planted)
    source, out = torch.zeros(65, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    with pytest.raises(OutOfBounds, match=rf"{pattern}.*0x[0-9a-f]+ \(lane \d+\)"):
        Emulator(gfx950()).launch(assemble(body), "kernel", (1, 1, 1), (64, 1, 1), source, out)


def test_scalar_load_out_of_bounds() -> None:
    faults(OutOfBounds, "scalar load of 16 bytes", COPY.replace("s[0:1], 0x0", "s[0:1], 0x10000"))


def test_lds_out_of_bounds() -> None:
    faults(OutOfBounds, "the workgroup has 512 bytes", LDS, waves=4, lds=512)


def test_scratch_out_of_bounds() -> None:
    body = COPY.replace("v_add_u32_e32 v4, v2, v3", "scratch_load_dword v4, off, off offset:32")
    faults(OutOfBounds, "a lane has 32 bytes", body, scratch=32)


def test_unsupported_instruction_is_a_fault_only_when_reached() -> None:
    """v_smfmac is real but not modelled."""
    hidden = "s_branch .Lover\nv_smfmac_f32_16x16x32_f16 v[8:11], v[12:13], v[16:19], v20\n.Lover:"
    assert run(COPY.replace("v_add_u32_e32", f"{hidden}\nv_add_u32_e32", 1))[0] == 1
    body = COPY.replace(
        "v_add_u32_e32",
        "v_smfmac_f32_16x16x32_f16 v[8:11], v[12:13], v[16:19], v20\nv_add_u32_e32",
        1,
    )
    faults(UnsupportedInstruction, "not modelled.*v_smfmac", body)


DIVERGENT_BARRIER = """
v_readfirstlane_b32 s8, v0
s_cmp_lg_u32 s8, 64
s_cbranch_scc1 .Lwait
.Lspin:
s_sleep 1
s_branch .Lspin
.Lwait:
s_barrier
s_endpgm
"""


def test_deadlock_says_where_each_wave_waits() -> None:
    with pytest.raises(Deadlock) as caught:
        run(DIVERGENT_BARRIER, waves=3)
    text = str(caught.value)
    assert text.count("waits at barrier `s_barrier`") == 2
    assert "wave 1 of workgroup (0,0,0) on device 0 spins at" in text


def test_unbounded_counting_runs_out_of_budget() -> None:
    faults(
        BudgetExceeded,
        "50000 wave-instructions",
        ".L:\ns_add_u32 s2, s2, 1\ns_branch .L\n",
        budget=50_000,
    )


def test_fault_names_wave_and_workgroup() -> None:
    body = COPY.replace("s_waitcnt vmcnt(0)", "")
    with pytest.raises(
        MissingWait,
        match=r"\[at `v_add_u32_e32 v4, v2, v3`, pc 0x[0-9a-f]+, wave 0 of workgroup \(\d+,0,0\), "
        r"device 0\]",
    ):
        run(body, groups=4)
