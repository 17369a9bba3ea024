"""FlyDSL kernels through `with emulated(gfx950())`: compiled by FlyDSL, run here, CPU tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dsv41_kernels.emulator import (
    EmulatorError,
    OutOfBounds,
    UninitializedRead,
    current,
    emulated,
    gfx950,
)

flyc = pytest.importorskip("flydsl.compiler")
import flydsl.expr as fx  # noqa: E402

BLOCK = 256
NO_STREAM = fx.Stream(None)


@flyc.kernel(known_block_size=[BLOCK, 1, 1])
def add_kernel(a: fx.Tensor, b: fx.Tensor, out: fx.Tensor) -> None:
    at = fx.block_idx.x * BLOCK + fx.thread_idx.x
    out[at] = a[at] + b[at]


@flyc.jit
def add(
    a: fx.Tensor,
    b: fx.Tensor,
    out: fx.Tensor,
    blocks: fx.Int32,
    stream: fx.Stream = NO_STREAM,
) -> None:
    add_kernel(a, b, out).launch(grid=(blocks, 1, 1), block=(BLOCK, 1, 1), stream=stream)


def inputs(n: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, generator=generator), torch.randn(n, generator=generator), torch.zeros(n)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_vector_add(seed: int) -> None:
    a, b, out = inputs(16 * BLOCK)
    with emulated(gfx950(seed=seed)) as machine:
        assert current() is machine
        add(a, b, out, 16)
    assert torch.equal(out, a + b)
    record = machine.launches[-1]
    assert (record.grid, record.block) == ((16, 1, 1), (BLOCK, 1, 1))
    assert record.instructions > 16 * 4 and record.kernel.vgpr_spills == 0


def test_compiled_function() -> None:
    a, b, out = inputs(4 * BLOCK)
    with emulated(gfx950()):
        stream = fx.Stream(None)
        compiled = flyc.compile(add, a, b, out, 4, stream)
        out.zero_()
        compiled(a, b, out, 4, stream)
    assert torch.equal(out, a + b)


def test_grid_past_the_tensors_is_out_of_bounds() -> None:
    a, b, out = inputs(4 * BLOCK)
    with emulated(gfx950()), pytest.raises(OutOfBounds, match=r"add_kernel.*load of 4 bytes"):
        add(a, b, out, 5)


def test_uninitialized_input_is_a_fault_and_output_is_not() -> None:
    a, b, out = inputs(BLOCK)
    with emulated(gfx950()) as machine:
        machine.uninitialized(out)
        add(a, b, out, 1)
        assert torch.equal(out, a + b)
        machine.uninitialized(b)
        with pytest.raises(UninitializedRead, match="came in with"):
            add(a, b, out, 1)


def test_devices_run_together() -> None:
    sets = [inputs(BLOCK) for _ in range(4)]
    with emulated(gfx950(devices=4)) as machine:
        with machine.together():
            for device, (a, b, out) in enumerate(sets):
                with machine.device(device):
                    add(a, b, out, 1)
        assert [record.device for record in machine.launches] == [0, 1, 2, 3]
    assert all(torch.equal(out, a + b) for a, b, out in sets)


def test_empty_grid_runs_nothing() -> None:
    a, b, out = inputs(BLOCK)
    with emulated(gfx950()) as machine:
        add(a, b, out, 0)
    assert not machine.launches and not out.any()


def test_bad_use_is_one_clear_error() -> None:
    a, b, out = inputs(BLOCK)
    with emulated(gfx950()) as machine:
        add(a, b, out, 1)
        with pytest.raises(EmulatorError, match="nested"), emulated():
            pass
        with pytest.raises(ValueError, match=r"device 1: this machine has 1"), machine.device(1):
            pass
    with pytest.raises(ValueError, match=r"gfx950\(devices=9\): must be 1 to 8"):
        gfx950(devices=9)
    with pytest.raises(ValueError, match=r"gfx950\(threads=0\): must be 1 or more"):
        gfx950(threads=0)


def test_environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("ARCH", "gfx942")
    monkeypatch.delenv("ROCM_PATH", raising=False)
    with emulated(gfx950()):
        assert os.environ["ARCH"] == "gfx950"
    assert os.environ["ARCH"] == "gfx942" and "ROCM_PATH" not in os.environ


def test_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from dsv41_kernels.emulator import MissingToolError, build

    which: Any = lambda name: None  # noqa: E731
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build.shutil, "which", which)
    with pytest.raises(MissingToolError, match=r"g\+\+ is not installed; run: apt-get install"):
        build.library()
