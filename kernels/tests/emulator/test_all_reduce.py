"""An all-reduce between devices that reach each other's memory by pointer, and its planted bugs.

Several rounds in one launch: every workgroup publishes its part of x in memory the peers can read,
raises a flag at each peer, waits for the flags of all and adds up what they published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from dsv41_kernels.emulator import Deadlock, Emulator, emulated, gfx950

flyc = pytest.importorskip("flydsl.compiler")
import flydsl.expr as fx  # noqa: E402

BLOCK, BLOCKS, ROUNDS = 256, 2, 4
SIZE = BLOCK * BLOCKS
NO_STREAM = fx.Stream(None)
RELEASE, ACQUIRE = fx.AtomicOrdering.Release, fx.AtomicOrdering.Acquire
RELAXED = fx.AtomicOrdering.Monotonic
SYSTEM = None  # LLVM's default scope: all devices
SOUND = {"release": SYSTEM, "release_in_all_waves": True, "flag": SYSTEM, "acquire": SYSTEM}


def at(address: Any, dtype: Any) -> Any:
    """A pointer to `dtype` in global memory from an address a tensor held."""
    kind = fx.PointerType.get(dtype.ir_type, fx.AddressSpace.Global, dtype.width // 8)
    return fx.inttoptr(kind, fx.Int64(address))


def build(world: int, protocol: dict[str, Any]) -> Any:
    """The launcher; `protocol` names the scope of each step (SOUND, or with one thing wrong)."""

    @flyc.kernel(known_block_size=[BLOCK, 1, 1])
    def all_reduce_kernel(
        rank: fx.Int32, x: fx.Pointer, parts: fx.Pointer, flags: fx.Pointer, out: fx.Pointer
    ) -> None:
        block, thread = fx.block_idx.x, fx.thread_idx.x
        own = at(parts[rank], fx.Float32)
        for step in fx.range_constexpr(ROUNDS):
            i = block * BLOCK + thread
            # Two halves in turn: a peer that has come this far has read the half before the last.
            half = i + (step % 2) * SIZE
            own[half] = x[i + step * SIZE]
            if fx.const_expr(protocol["release_in_all_waves"]):
                fx.memory_fence(syncscope=protocol["release"], ordering=RELEASE)
            fx.gpu.barrier()
            if thread < world:
                if fx.const_expr(not protocol["release_in_all_waves"]):
                    fx.memory_fence(syncscope=protocol["release"], ordering=RELEASE)
                theirs = at(flags[thread], fx.Int32) + (block * world + rank)
                fx.generic_store(
                    theirs, fx.Int32(step + 1), memory_order=RELAXED, syncscope=protocol["flag"]
                )
                mine = at(flags[rank], fx.Int32) + (block * world + thread)
                seen = fx.generic_load(mine, memory_order=RELAXED, syncscope=protocol["flag"])
                while seen <= step:
                    seen = fx.generic_load(mine, memory_order=RELAXED, syncscope=protocol["flag"])
            fx.gpu.barrier()
            if fx.const_expr(protocol["acquire"] != "none"):
                fx.memory_fence(syncscope=protocol["acquire"], ordering=ACQUIRE)
            total = fx.Float32(0.0)
            for peer in fx.range_constexpr(world):
                total = total + at(parts[peer], fx.Float32)[half]
            out[i + step * SIZE] = total

    @flyc.jit
    def all_reduce(
        rank: fx.Int32,
        x: fx.Pointer,
        parts: fx.Pointer,
        flags: fx.Pointer,
        out: fx.Pointer,
        stream: fx.Stream = NO_STREAM,
    ) -> None:
        all_reduce_kernel(rank, x, parts, flags, out).launch(
            grid=(BLOCKS, 1, 1), block=(BLOCK, 1, 1), stream=stream
        )

    return all_reduce


def pointers(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64)


class Buffers:
    """What `world` ranks share and what each of them has."""

    def __init__(self, world: int) -> None:
        self.parts = [torch.zeros(2 * SIZE) for _ in range(world)]
        self.flags = [torch.zeros(BLOCKS * world, dtype=torch.int32) for _ in range(world)]
        self.tables = pointers(self.parts), pointers(self.flags)
        self.x = [torch.randn(ROUNDS * SIZE) for _ in range(world)]
        self.out = [torch.zeros(ROUNDS * SIZE) for _ in range(world)]

    def reset(self) -> None:
        for tensor in self.parts + self.flags + self.out:
            tensor.zero_()


def run(
    machine: Emulator, all_reduce: Callable[..., None], ranks: Sequence[int], buffers: Buffers
) -> bool:
    """Starts `ranks` together; whether each got the sums over all."""
    buffers.reset()
    machine.register(*buffers.parts, *buffers.flags)
    with machine.together():
        for rank in ranks:
            with machine.device(rank):
                all_reduce(
                    rank,
                    flyc.from_c_void_p(fx.Float32, buffers.x[rank].data_ptr()),
                    flyc.from_c_void_p(fx.Int64, buffers.tables[0].data_ptr()),
                    flyc.from_c_void_p(fx.Int64, buffers.tables[1].data_ptr()),
                    flyc.from_c_void_p(fx.Float32, buffers.out[rank].data_ptr()),
                )
    want = sum(buffers.x[1:], buffers.x[0])
    return all(torch.equal(buffers.out[rank], want) for rank in ranks)


def failures(world: int, protocol: dict[str, Any]) -> int:
    """How many of four seeds end in a wrong sum."""
    all_reduce, buffers = build(world, protocol), Buffers(world)
    count = 0
    for seed in range(4):
        with emulated(gfx950(devices=world, seed=seed, quantum=64)) as machine:
            count += not run(machine, all_reduce, range(world), buffers)
    return count


@pytest.mark.parametrize("world", [2, 8])
def test_all_reduce(world: int) -> None:
    assert failures(world, SOUND) == 0


def test_a_seed_repeats_on_any_number_of_threads() -> None:
    """How often the ranks polled tells the whole schedule."""
    all_reduce, buffers = build(4, SOUND), Buffers(4)
    counts = set()
    for threads in (1, 2, 2, 4):
        with emulated(gfx950(devices=4, seed=7, threads=threads)) as machine:
            assert run(machine, all_reduce, range(4), buffers)
            counts.add(machine.launches[-1].instructions)
    assert len(counts) == 1


@pytest.mark.parametrize(
    "bug",
    [
        {"release": "agent"},
        {"release": "workgroup"},
        # A release covers the wave's own stores: other waves' may still be on their way.
        {"release_in_all_waves": False},
        {"acquire": "agent"},
        {"acquire": "none"},
    ],
    ids=str,
)
def test_planted_bug_gives_wrong_sums(bug: dict[str, Any]) -> None:
    assert failures(4, SOUND | bug) > 0


def test_flag_at_agent_scope_never_arrives() -> None:
    with emulated(gfx950(devices=4)) as machine:
        with pytest.raises(Deadlock, match=r"on device 0 spins at .*last load `global_load_dword"):
            run(machine, build(4, SOUND | {"flag": "agent"}), range(4), Buffers(4))


def test_rank_that_does_not_come_is_a_deadlock() -> None:
    with emulated(gfx950(devices=4)) as machine:
        with pytest.raises(Deadlock, match="on device 2 spins at"):
            run(machine, build(4, SOUND), range(3), Buffers(4))
