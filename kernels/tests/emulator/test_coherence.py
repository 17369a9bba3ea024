"""Planted bugs between workgroups and devices: message passing with a fence, scope or wait gone.

The sound protocol passes under every seed; a planted bug fails under all, or at least under some
where chance decides. Workgroup 0 and workgroup 1 run on different dies, workgroup 8 beside 0 on
another compute unit of the same die.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from assemble import assemble
from dsv41_kernels.emulator import Deadlock, Emulator, KernelFault, OutOfBounds, gfx950

SEEDS = range(12)

# Workgroup {producer} writes 64 words of data, then the flag; workgroup {consumer} first reads the
# data (so that its caches hold the old values), waits for the flag, and copies the data out.
# s[4:5]: data, the flag at byte 4096; s[6:7]: out.
PROTOCOL = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_lshlrev_b32_e32 v1, 2, v0
v_mov_b32_e32 v9, 0x1000
v_mov_b32_e32 v8, 1
s_waitcnt lgkmcnt(0)
s_cmp_eq_u32 s2, {producer}
s_cbranch_scc1 .Lproduce
s_cmp_lg_u32 s2, {consumer}
s_cbranch_scc1 .Lend
global_load_dword v3, v1, s[4:5]
s_waitcnt vmcnt(0)
v_mov_b32_e32 v10, 2
global_store_dword v9, v10, s[4:5] offset:128 sc0 sc1
.Lwait:
global_load_dword v2, v9, s[4:5] {load_scope}
s_waitcnt vmcnt(0)
v_readfirstlane_b32 s8, v2
s_cmp_eq_u32 s8, 0
s_cbranch_scc1 .Lwait
{acquire}
global_load_dword v3, v1, s[4:5]
s_waitcnt vmcnt(0)
global_store_dword v1, v3, s[6:7]
s_endpgm
.Lproduce:
global_load_dword v2, v9, s[4:5] offset:128 sc0 sc1
s_waitcnt vmcnt(0)
v_readfirstlane_b32 s8, v2
s_cmp_eq_u32 s8, 0
s_cbranch_scc1 .Lproduce
v_add_u32_e32 v4, 100, v0
global_store_dword v1, v4, s[4:5]
{release}
global_store_dword v9, v8, s[4:5] {store_scope}
.Lend:
s_endpgm
"""
AGENT = {
    "release": "buffer_wbl2 sc1\ns_waitcnt vmcnt(0)",
    "store_scope": "sc1",
    "load_scope": "sc1",
    "acquire": "buffer_inv sc1",
}
SYSTEM = {
    "release": "buffer_wbl2 sc0 sc1\ns_waitcnt vmcnt(0)",
    "store_scope": "sc0 sc1",
    "load_scope": "sc0 sc1",
    "acquire": "buffer_inv sc0 sc1",
}
WANT = torch.arange(100, 164, dtype=torch.int32)


def one_device(fields: dict[str, str], consumer: int, seed: int) -> torch.Tensor:
    text = PROTOCOL.format(producer=0, consumer=consumer, **fields)
    data = torch.zeros(2048, dtype=torch.int32)
    out = torch.zeros(64, dtype=torch.int32)
    machine = Emulator(gfx950(seed=seed, quantum=16))
    machine.launch(assemble(text), "kernel", (consumer + 1, 1, 1), (64, 1, 1), data, out)
    return out


def two_devices(fields: dict[str, str], seed: int) -> torch.Tensor:
    """The producer runs on device 0, the consumer on device 1."""
    data = torch.zeros(2048, dtype=torch.int32)
    out = torch.zeros(64, dtype=torch.int32)
    machine = Emulator(gfx950(devices=2, seed=seed, quantum=16))
    with machine.together():
        for device, (producer, consumer) in enumerate([(0, 7), (7, 0)]):
            module = assemble(PROTOCOL.format(producer=producer, consumer=consumer, **fields))
            with machine.device(device):
                machine.launch(module, "kernel", (1, 1, 1), (64, 1, 1), data, out)
    return out


def failures(run: Callable[[int], torch.Tensor], seeds: range = SEEDS) -> int:
    """How many seeds end in wrong data or a fault (a stale spin is a deadlock)."""
    count = 0
    for seed in seeds:
        try:
            count += not torch.equal(run(seed), WANT)
        except KernelFault:
            count += 1
    return count


@pytest.mark.parametrize("consumer", [1, 8])
def test_agent_scope_protocol_is_sound(consumer: int) -> None:
    assert failures(lambda seed: one_device(AGENT, consumer, seed)) == 0


def test_system_scope_protocol_is_sound_between_devices() -> None:
    assert failures(lambda seed: two_devices(SYSTEM, seed)) == 0


PLANTED = {
    "no release": {"release": ""},
    "no write-back": {"release": "s_waitcnt vmcnt(0)"},
    "write-back of too small a scope": {"release": "buffer_wbl2 sc0\ns_waitcnt vmcnt(0)"},
    "no wait for the write-back": {"release": "buffer_wbl2 sc1", "store_scope": "sc1"},
    "no acquire": {"acquire": ""},
    "acquire of too small a scope": {"acquire": "buffer_inv sc0"},
    "flag stored without scope": {"store_scope": ""},
    "flag polled without scope": {"load_scope": ""},
    "flag polled at workgroup scope": {"load_scope": "sc0"},
    "nt is not a scope": {"load_scope": "nt", "store_scope": "nt"},
}


@pytest.mark.parametrize("bug", [name for name in PLANTED if "wait for" not in name])
def test_planted_bug_fails_across_dies(bug: str) -> None:
    assert failures(lambda seed: one_device(AGENT | PLANTED[bug], 1, seed)) == len(SEEDS)


@pytest.mark.parametrize(
    "bug", ["no acquire", "acquire of too small a scope", "flag polled without scope"]
)
def test_planted_bug_fails_on_one_die(bug: str) -> None:
    """Two compute units of one die share the L2 but not the L1."""
    assert failures(lambda seed: one_device(AGENT | PLANTED[bug], 8, seed)) > 0


def test_missing_wait_reorders_data_and_flag() -> None:
    """Both stores go through to the coherent level, but nothing orders them."""
    text = AGENT | {"release": ""}
    body = PROTOCOL.replace(
        "global_store_dword v1, v4, s[4:5]\n", "global_store_dword v1, v4, s[4:5] sc1\n"
    )

    def run(release: str, seed: int) -> torch.Tensor:
        data, out = torch.zeros(2048, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
        module = assemble(body.format(producer=0, consumer=1, **(text | {"release": release})))
        Emulator(gfx950(seed=seed, quantum=16)).launch(
            module, "kernel", (2, 1, 1), (64, 1, 1), data, out
        )
        return out

    assert failures(lambda seed: run("s_waitcnt vmcnt(0)", seed)) == 0
    assert failures(lambda seed: run("", seed), range(100)) > 0


def test_missing_wait_reorders_loads_of_flag_and_data() -> None:
    """Both are stored and loaded at the coherent level; the loads of each poll go out together."""
    body = PROTOCOL.replace(
        "global_store_dword v1, v4, s[4:5]\n", "global_store_dword v1, v4, s[4:5] sc1\n"
    )
    poll = "global_load_dword v2, v9, s[4:5] {load_scope}\n"
    data = "global_load_dword v3, v1, s[4:5]"
    body = body.replace(poll, poll + "{wait}\n" + data + " sc1\n")
    head, tail = body.split("{acquire}\n" + data + "\n")
    body = head + tail
    fields = AGENT | {"release": "s_waitcnt vmcnt(0)"}

    def run(wait: str, seed: int) -> torch.Tensor:
        data, out = torch.zeros(2048, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
        module = assemble(body.format(producer=0, consumer=1, wait=wait, **fields))
        Emulator(gfx950(seed=seed, quantum=16)).launch(
            module, "kernel", (2, 1, 1), (64, 1, 1), data, out
        )
        return out

    assert failures(lambda seed: run("s_waitcnt vmcnt(0)", seed)) == 0
    assert failures(lambda seed: run("", seed), range(100)) > 0


@pytest.mark.parametrize("part", ["release", "store_scope", "load_scope", "acquire"])
def test_agent_scope_is_too_small_between_devices(part: str) -> None:
    assert failures(lambda seed: two_devices(SYSTEM | {part: AGENT[part]}, seed)) == len(SEEDS)


def test_stale_spin_is_reported_as_a_deadlock_with_its_load() -> None:
    with pytest.raises(Deadlock, match=r"workgroup \(1,0,0\).*last load `global_load_dword v2, v9"):
        for seed in SEEDS:
            one_device(AGENT | {"load_scope": ""}, 1, seed)


def test_starved_workgroup_is_reported() -> None:
    """With one workgroup a compute unit and one unit, the consumer never gets a place."""
    text = PROTOCOL.format(producer=1, consumer=0, **AGENT)
    data, out = torch.zeros(2048, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    machine = Emulator(gfx950(xccs=1, cus_per_xcc=1, groups_per_cu=1))
    with pytest.raises(Deadlock, match="1 workgroups have not started"):
        machine.launch(assemble(text), "kernel", (2, 1, 1), (64, 1, 1), data, out)


def test_atomics_are_coherent_within_a_device_without_fences() -> None:
    text = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_mov_b32_e32 v1, 0
v_mov_b32_e32 v2, 1
s_waitcnt lgkmcnt(0)
global_atomic_add v1, v2, s[6:7]
s_endpgm
"""
    out = torch.zeros(1, dtype=torch.int32)
    Emulator(gfx950()).launch(assemble(text), "kernel", (40, 1, 1), (64, 1, 1), out, out)
    assert out.item() == 40 * 64


def test_scalar_cache_is_not_coherent() -> None:
    """A scalar load after a store to the same place sees it only after s_dcache_inv."""
    text = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_mov_b32_e32 v1, 0
v_mov_b32_e32 v2, 7
s_waitcnt lgkmcnt(0)
s_load_dword s8, s[4:5], 0x0
s_waitcnt lgkmcnt(0)
global_store_dword v1, v2, s[4:5]
s_waitcnt vmcnt(0)
{invalidate}
s_load_dword s8, s[4:5], 0x0
s_waitcnt lgkmcnt(0)
v_mov_b32_e32 v3, s8
global_store_dword v1, v3, s[6:7]
s_endpgm
"""
    for invalidate, want in (("s_dcache_inv", 7), ("", 3)):
        data, out = torch.full((32,), 3, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        module = assemble(text.format(invalidate=invalidate))
        Emulator(gfx950()).launch(module, "kernel", (1, 1, 1), (64, 1, 1), data, out)
        assert out.item() == want


def test_lines_pushed_out_of_a_full_l2_are_not_lost() -> None:
    """One workgroup writes 6 MiB, half as much again as its L2 holds, and reads it back."""
    text = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_lshlrev_b32_e32 v1, 4, v0
v_mov_b32_e32 v2, v0
v_mov_b32_e32 v3, v0
v_mov_b32_e32 v4, v0
v_mov_b32_e32 v5, v0
s_movk_i32 s8, 6144
s_waitcnt lgkmcnt(0)
.Lwrite:
global_store_dwordx4 v1, v[2:5], s[4:5]
s_waitcnt vmcnt(0)
v_add_u32_e32 v2, 1, v2
v_add_u32_e32 v1, 0x400, v1
s_sub_u32 s8, s8, 1
s_cmp_lg_u32 s8, 0
s_cbranch_scc1 .Lwrite
v_lshlrev_b32_e32 v1, 4, v0
v_mov_b32_e32 v7, 0
s_movk_i32 s8, 6144
.Lread:
global_load_dwordx4 v[8:11], v1, s[4:5]
s_waitcnt vmcnt(0)
v_add_u32_e32 v7, v7, v8
v_add_u32_e32 v1, 0x400, v1
s_sub_u32 s8, s8, 1
s_cmp_lg_u32 s8, 0
s_cbranch_scc1 .Lread
v_lshlrev_b32_e32 v1, 2, v0
global_store_dword v1, v7, s[6:7]
s_endpgm
"""
    data = torch.zeros(6144, 64, 4, dtype=torch.int32)
    out = torch.zeros(64, dtype=torch.int32)
    machine = Emulator(gfx950(seed=5))
    machine.uninitialized(data)
    machine.launch(assemble(text), "kernel", (1, 1, 1), (64, 1, 1), data, out)
    first = torch.arange(6144)[:, None] + torch.arange(64)
    assert torch.equal(data[:, :, 0].long(), first)
    assert torch.equal(data[:, :, 3].long(), torch.arange(64).expand(6144, 64))
    assert torch.equal(out.long(), first.sum(0))


# Each wave works for a while, then takes a ticket (s[4:5]) and mixes it into what it leaves: the
# result tells in which order the waves of all dies came.
TICKETS = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
s_lshl_b32 s3, s2, 10
v_lshlrev_b32_e32 v1, 2, v0
v_add_u32_e32 v1, s3, v1
v_mov_b32_e32 v4, 0
v_mov_b32_e32 v5, 0
v_mov_b32_e32 v6, 1
s_movk_i32 s8, 20
s_waitcnt lgkmcnt(0)
.Louter:
s_movk_i32 s9, 200
.Linner:
v_add_u32_e32 v4, v4, v6
s_sub_u32 s9, s9, 1
s_cmp_lg_u32 s9, 0
s_cbranch_scc1 .Linner
global_atomic_add v3, v5, v6, s[4:5] sc0
s_waitcnt vmcnt(0)
v_lshlrev_b32_e32 v4, 1, v4
v_xor_b32_e32 v4, v4, v3
s_sub_u32 s8, s8, 1
s_cmp_lg_u32 s8, 0
s_cbranch_scc1 .Louter
global_store_dword v1, v4, s[6:7]
s_endpgm
"""


def test_a_seed_repeats_exactly_on_any_number_of_threads() -> None:
    counter, out = torch.zeros(1, dtype=torch.int32), torch.zeros(16 * 256, dtype=torch.int32)

    def run(seed: int, threads: int) -> tuple[int, torch.Tensor]:
        counter.zero_()
        machine = Emulator(gfx950(seed=seed, threads=threads))
        machine.launch(assemble(TICKETS), "kernel", (16, 1, 1), (256, 1, 1), counter, out)
        assert counter.item() == 16 * 256 * 20
        return machine.launches[-1].instructions, out.clone()

    first = run(seed=1, threads=1)
    for threads in (1, 2, 3, 8):
        again = run(seed=1, threads=threads)
        assert again[0] == first[0] and torch.equal(again[1], first[1])
    assert not torch.equal(run(seed=2, threads=2)[1], first[1])


def test_a_fault_repeats_exactly_on_any_number_of_threads() -> None:
    """Many workgroups store out of bounds: the same one is reported each time."""
    text = TICKETS.replace("global_store_dword v1", "v_add_u32_e32 v1, 0x3000, v1\n"
                           "global_store_dword v1")  # fmt: skip
    counter, out = torch.zeros(1, dtype=torch.int32), torch.zeros(16 * 256, dtype=torch.int32)
    messages = set()
    for threads in (1, 2, 2, 8):
        with pytest.raises(OutOfBounds) as caught:
            machine = Emulator(gfx950(seed=3, threads=threads))
            machine.launch(assemble(text), "kernel", (16, 1, 1), (256, 1, 1), counter, out)
        messages.add(str(caught.value))
    assert len(messages) == 1
