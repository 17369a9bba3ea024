"""Kernels of FlyDSL's own repository, which its wheel does not ship, against torch.

    FLYDSL_REPOSITORY=CHECKOUT python -m pytest tests/emulator/test_flydsl_repository.py

Skipped without a checkout of https://github.com/ROCm/FlyDSL. README.md says on which commit it last
ran.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from dsv41_kernels.emulator import DataRace, MissingWait, OutOfBounds, emulated, gfx950

flyc = pytest.importorskip("flydsl.compiler")
import flydsl.expr as fx  # noqa: E402

REPOSITORY = os.environ.get("FLYDSL_REPOSITORY")
pytestmark = pytest.mark.skipif(not REPOSITORY, reason="FLYDSL_REPOSITORY names no checkout")
TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
NO_STREAM = fx.Stream(None)


@pytest.fixture(autouse=True)
def _on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert REPOSITORY and Path(REPOSITORY, "kernels").is_dir(), f"no FlyDSL in {REPOSITORY}"
    monkeypatch.syspath_prepend(REPOSITORY)


def load(module: str) -> Any:
    return importlib.import_module(f"kernels.{module}")


@pytest.mark.parametrize(("dtype", "columns"), [("f32", 4096), ("bf16", 2000), ("f16", 2048)])
def test_the_race_in_softmax_is_found(dtype: str, columns: int) -> None:
    """Its two reductions over the block use the same LDS words, and no barrier keeps the second's
    first write from the first's last read. With the check off, some seed gives wrong values."""
    rows = 9
    x = (4 * torch.randn(rows, columns)).to(TYPES[dtype])
    want = x.double().softmax(1)

    def run(**options: Any) -> float:
        out = torch.zeros_like(x)
        with emulated(gfx950(**options)):
            load("norm.softmax_kernel").build_softmax_module(rows, columns, dtype)(x, out, rows)
        return (out.double() - want).abs().max().item()

    with pytest.raises(DataRace, match=r"ds_read_b32.*the write by wave 0 at `ds_write_b32"):
        run(seed=1)
    assert max(run(seed=seed, lds_races=False) for seed in range(4)) > 0.01


@pytest.mark.parametrize(("dtype", "columns"), [("f32", 4096), ("bf16", 8192), ("bf16", 2000)])
def test_layernorm(dtype: str, columns: int) -> None:
    rows = 9
    x, weight, bias = torch.randn(rows, columns), torch.rand(columns), torch.rand(columns)
    x, weight, bias = (t.to(TYPES[dtype]) for t in (x, weight, bias))
    out = torch.zeros_like(x)
    element = {"f32": fx.Float32, "bf16": fx.BFloat16}[dtype]
    with emulated(gfx950(seed=2)):
        launch = load("norm.layernorm_kernel").build_layernorm_module(columns, dtype)
        launch(*(flyc.from_c_void_p(element, t.data_ptr()) for t in (x, weight, bias, out)), rows)
    want = torch.nn.functional.layer_norm(
        x.double(), (columns,), weight.double(), bias.double(), 1e-5
    )
    assert (out.double() - want).abs().max() < (1e-5 if dtype == "f32" else 3e-2)


def preshuffled(b: torch.Tensor) -> torch.Tensor:
    """Blocks of 16 rows by 32 columns, in each of which 16 bytes of every row come in turn."""
    rows, columns = b.shape
    run = 16 // b.element_size()
    blocks = b.view(rows // 16, 16, columns // 32, 32 // run, run)
    return blocks.permute(0, 2, 3, 1, 4).contiguous().view(rows, columns)


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "int8"])
@pytest.mark.parametrize("to_lds", [False, True], ids=["through registers", "LDS-DMA"])
def test_preshuffled_gemm(dtype: str, to_lds: bool) -> None:
    """33 rows in tiles of 32: loads and stores of the last tile are clipped by its descriptor, but
    those of the row scales are not, which is found; they need room for the whole tile."""
    m, n, k = 33, 256, 1024
    a, b = torch.randn(m, k), torch.randn(n, k)
    scales = torch.ones(0), torch.ones(0)
    if dtype == "bf16":
        a, b = a.bfloat16(), b.bfloat16()
        want = a.double() @ b.double().T
    else:
        kind, most = (torch.int8, 127.0) if dtype == "int8" else (torch.float8_e4m3fn, 448.0)
        scales = a.abs().amax(1) / most, b.abs().amax(1) / most
        a, b = a / scales[0][:, None], b / scales[1][:, None]
        padded = torch.zeros(64)
        padded[:m] = scales[0]
        a, b = ((t.round() if dtype == "int8" else t).to(kind) for t in (a, b))
        want = (a.double() @ b.double().T) * scales[0].double()[:, None] * scales[1].double()
    out = torch.full((64, n), -8192.0, dtype=torch.bfloat16)
    inputs = [t.view(torch.int8) if t.element_size() == 1 else t for t in (a, preshuffled(b))]
    with emulated(gfx950(seed=3)):
        launch = load("gemm.preshuffle_gemm").compile_preshuffle_gemm(
            N=n, K=k, tile_m=32, tile_n=64, tile_k=256, in_dtype=dtype, use_async_copy=to_lds
        )
        flat = [out[:m].view(-1), *(t.view(-1) for t in inputs)]
        rest = [scales[1], torch.empty(0, dtype=torch.bfloat16), m, n, NO_STREAM]
        if dtype == "bf16":
            launch(*flat, scales[0], *rest)
        else:
            with pytest.raises(OutOfBounds, match="load of 16 bytes"):
                launch(*flat, scales[0], *rest)
            launch(*flat, padded[:m], *rest)
    assert (out[:m].double() - want).abs().max() <= 2**-8 * want.abs().max()
    assert (out[m:] == -8192).all()


def test_the_missing_wait_in_the_pipelined_fp8_gemm_is_found() -> None:
    """Its last two steps read tiles whose LDS-DMA only the final `s_waitcnt vmcnt(0)` covers, after
    those reads; on the chip they rely on the time that has passed."""
    m, n, k = 256, 256, 256
    a, b = (torch.randint(-8, 8, (rows, k), dtype=torch.int8).view(-1) for rows in (m, n))
    out = torch.zeros(m * n, dtype=torch.bfloat16)
    with emulated(gfx950(seed=0)):
        launch = load("gemm.fp8_gemm_8wave").compile_fp8_gemm_8w(K=k)
        with pytest.raises(MissingWait, match=r"reads LDS .* while a load to LDS is in flight"):
            launch(a, b, out, torch.ones(m), torch.ones(n), m, n, NO_STREAM)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("stages", [1, 2])
def test_all_reduce_on_eight_devices(stages: int, seed: int) -> None:
    """Two rounds over the same signal memory, which FlyDSL allocates uncached."""
    world, size = 8, 8 * 512 * 8
    signals = [torch.zeros(16384, dtype=torch.uint8) for _ in range(world)]
    parts = [torch.zeros(size, dtype=torch.bfloat16) for _ in range(world)]

    def table(tensors: list[torch.Tensor], first: int = 0) -> torch.Tensor:
        turned = tensors[first:] + tensors[:first]
        return torch.tensor([t.data_ptr() for t in turned], dtype=torch.int64)

    with emulated(gfx950(devices=world, seed=seed)) as machine:
        kernels = load("comm.custom_all_reduce_kernel").make_allreduce_kernels(
            N=size, dtype_str="bf16", world_size=world, threads=512
        )
        machine.register(*signals, *parts, uncached=True)
        for _ in range(2):
            x = [torch.randn(size).bfloat16() for _ in range(world)]
            out = [torch.zeros_like(t) for t in x]
            machine.register(*x)
            tables = [
                [table(signals), table(x, rank)] + ([table(parts, rank)] if stages == 2 else [])
                for rank in range(world)
            ]
            with machine.together():
                for rank in range(world):
                    pointers = [signals[rank], *tables[rank], out[rank]]
                    with machine.device(rank):
                        kernels[f"run_{stages}stage_arr"](
                            fx.Int32(rank),
                            fx.Int32(4),
                            *(fx.Int64(t.data_ptr()) for t in pointers),
                        )
            want = torch.stack(x).double().sum(0)
            assert all((o.double() - want).abs().max() < 0.07 for o in out)
