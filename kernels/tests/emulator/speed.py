"""Wave-instructions a second of this emulator and, beside it, of tinygrad's CDNA emulator.

    python tests/emulator/speed.py [--tinygrad CHECKOUT]

The same code object runs in both, in one process: each wave loads, then loops over vector
arithmetic, an LDS exchange and a 16x16x4 f32 MFMA, and stores. On one thread the process's CPU time
counts, on all cores the time on the clock, so let the machine be idle. Every emulator gets one
warm-up run; the best of ten is reported. tinygrad's emulator is in its repository, not its wheel.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from assemble import assemble
from dsv41_kernels.emulator import Emulator, gfx950

LOOPS, GROUPS, WAVES = 1000, 8, 4
BODY = f"""
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_lshlrev_b32_e32 v1, 2, v0
s_lshl_b32 s3, s2, 10
v_add_u32_e32 v2, s3, v1
s_waitcnt lgkmcnt(0)
global_load_dword v4, v2, s[4:5]
v_mov_b32_e32 v5, 1.0
s_movk_i32 s8, {LOOPS}
s_waitcnt vmcnt(0)
v_mov_b32_e32 v12, v4
v_mov_b32_e32 v13, v4
v_mov_b32_e32 v14, v4
v_mov_b32_e32 v15, v4
.Lloop:
v_add_f32_e32 v5, v5, v4
v_mul_f32_e32 v6, 0.5, v5
v_max_f32_e32 v6, v6, v4
v_lshlrev_b32_e32 v7, 1, v6
v_and_b32_e32 v7, 0x3fffffff, v7
v_cmp_gt_f32_e32 vcc, v7, v4
v_cndmask_b32_e32 v8, v7, v6, vcc
ds_write_b32 v1, v8
s_waitcnt lgkmcnt(0)
ds_read_b32 v9, v1
s_waitcnt lgkmcnt(0)
v_mfma_f32_16x16x4_f32 v[12:15], v9, v6, v[12:15]
s_sub_u32 s8, s8, 1
s_cmp_lg_u32 s8, 0
s_nop 7
s_cbranch_scc1 .Lloop
s_nop 15
v_add_f32_e32 v5, v5, v12
global_store_dword v2, v5, s[6:7]
s_endpgm
"""


def best(run: Callable[[], None], clock: Callable[[], float] = time.process_time) -> float:
    """Seconds of the fastest of ten runs, after one warm-up."""
    run()
    times = []
    for _ in range(10):
        start = clock()
        run()
        times.append(clock() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tinygrad", type=Path, help="checkout of tinygrad with test/mockgpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    module = assemble(BODY, lds=1024)
    kernel = module.code.kernels["kernel"]
    threads = 64 * WAVES
    source = torch.rand(GROUPS * threads)
    out = torch.zeros(GROUPS * threads)

    def emulate(machine: Emulator) -> Callable[[], None]:
        grid, block = (GROUPS, 1, 1), (threads, 1, 1)
        return lambda: machine.launch(module, "kernel", grid, block, source, out)

    single, every = Emulator(gfx950(threads=1)), Emulator(gfx950())
    seconds = best(emulate(single))
    on_clock = best(emulate(every), time.perf_counter)
    instructions = single.launches[-1].instructions
    assert instructions == every.launches[-1].instructions
    cores = len(os.sched_getaffinity(0))
    print(f"instructions {instructions}")
    print(f"one thread: {instructions / seconds:,.0f} wave-instructions/s (CPU time)")
    print(f"{cores} cores: {instructions / on_clock:,.0f} wave-instructions/s (on the clock)")
    if not options.tinygrad:
        return
    sys.path.insert(0, str(options.tinygrad))
    from test.mockgpu.amd import emu  # type: ignore[import-not-found]

    expected = out.clone()
    out.zero_()
    args = (ctypes.c_uint64 * 2)(source.data_ptr(), out.data_ptr())
    rsrc2 = kernel.rsrc2 & ~(0x1FF << 15) | (-(-kernel.lds // 512) << 15)

    def theirs() -> None:
        entry = module.base + kernel.entry
        emu.run_asm(
            entry, kernel.code_size, GROUPS, 1, 1, threads, 1, 1, ctypes.addressof(args),
            rsrc2=rsrc2, arch="cdna",
        )  # fmt: skip

    slow = best(theirs)
    agree = torch.allclose(out, expected, rtol=1e-5)
    print(f"tinygrad {instructions / slow:,.0f} wave-instructions/s; results agree: {agree}")
    print(f"ratio {slow / seconds:.1f} on one thread, {slow / on_clock:.1f} on {cores} cores")


if __name__ == "__main__":
    main()
