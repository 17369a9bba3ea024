"""FlyDSL's own cooperative algorithms, which its wheel ships, in kernels of a few lines.

Other people's code, written for the chip: LDS exchanges between barriers, DPP scans, atomics. Each
must give torch's result under several schedules without a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dsv41_kernels.emulator import emulated, gfx950

flyc = pytest.importorskip("flydsl.compiler")
import flydsl.expr as fx  # noqa: E402

coop: Any = fx.coop
BLOCK, ITEMS = 256, 4
SIZE = BLOCK * ITEMS
NO_STREAM = fx.Stream(None)


def run(body: Callable[..., None], x: torch.Tensor, out: torch.Tensor) -> list[torch.Tensor]:
    """`body(items, out, thread)` in one workgroup, thread t holding x[4t:4t+4]; a result a seed."""

    @flyc.kernel(known_block_size=[BLOCK, 1, 1])
    def kernel(x: fx.Tensor, out: fx.Tensor) -> None:
        thread = fx.thread_idx.x
        items = fx.Vector.from_elements([x[thread * ITEMS + i] for i in range(ITEMS)])
        body(items, out, thread)

    @flyc.jit
    def launch(x: fx.Tensor, out: fx.Tensor, stream: fx.Stream = NO_STREAM) -> None:
        kernel(x, out).launch(grid=(1, 1, 1), block=(BLOCK, 1, 1), stream=stream)

    results = []
    for seed in range(3):
        result = out.clone()
        with emulated(gfx950(seed=seed)):
            launch(x, result)
        results.append(result)
    return results


def storage(algorithm: Any) -> Any:
    return fx.SharedAllocator().allocate(algorithm.SharedStorage).peek()


def put_items(out: Any, thread: Any, items: Any) -> None:
    for i in range(ITEMS):
        out[thread * ITEMS + i] = items[i]


def keys(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-500, 500, (SIZE,), dtype=torch.int32, generator=generator)


@pytest.mark.parametrize("algorithm", ["RADIX_SCAN", "RADIX_DIGIT"])
def test_radix_sort(algorithm: str) -> None:
    def body(items: Any, out: Any, thread: Any) -> None:
        sort = coop.BlockRadixSort[
            fx.Int32, BLOCK, ITEMS, getattr(coop.BlockRadixSortAlgorithm, algorithm)
        ]
        put_items(out, thread, sort(items, storage=storage(sort)))

    x = keys()
    for got in run(body, x, torch.zeros_like(x)):
        assert torch.equal(got, x.sort().values)


def test_merge_sort_of_floats() -> None:
    def body(items: Any, out: Any, thread: Any) -> None:
        sort = coop.BlockMergeSort[fx.Float32, BLOCK, ITEMS]
        put_items(out, thread, sort(items, storage=storage(sort)))

    x = torch.randn(SIZE, generator=torch.Generator().manual_seed(1))
    for got in run(body, x, torch.zeros_like(x)):
        assert torch.equal(got, x.sort().values)


@pytest.mark.parametrize("algorithm", ["MERGE", "AIR"])
def test_top_k(algorithm: str) -> None:
    k = 37

    def body(items: Any, out: Any, thread: Any) -> None:
        top = coop.BlockTopK[fx.Int32, BLOCK, ITEMS, getattr(coop.BlockTopKAlgorithm, algorithm)]
        chosen, valid = top(items, k, storage=storage(top), largest=True)
        put_items(out, thread, valid.select(chosen, fx.Vector.filled(ITEMS, -1000, fx.Int32)))

    x = keys(2)
    want = x.sort(descending=True).values[:k]
    for got in run(body, x, torch.full_like(x, -1000)):
        assert torch.equal(got[:k].sort(descending=True).values, want)
        assert (got[k:] == -1000).all()


@pytest.mark.parametrize("algorithm", ["ATOMIC", "SORT"])
def test_histogram(algorithm: str) -> None:
    def body(items: Any, out: Any, thread: Any) -> None:
        histogram = coop.BlockHistogram[
            fx.Int32, BLOCK, BLOCK, getattr(coop.BlockHistogramAlgorithm, algorithm)
        ]
        counts = histogram(items, storage=storage(histogram))
        out[thread] = counts[thread]

    x = keys(3).abs() % BLOCK
    for got in run(body, x, torch.zeros(BLOCK, dtype=torch.int32)):
        assert torch.equal(got.long(), torch.bincount(x, minlength=BLOCK))


@pytest.mark.parametrize("inclusive", [True, False])
def test_scan(inclusive: bool) -> None:
    def body(items: Any, out: Any, thread: Any) -> None:
        scan = coop.BlockScan[fx.Int32, BLOCK]
        form = scan.inclusive if inclusive else scan.exclusive
        put_items(out, thread, form(items, fx.ReductionOp.ADD, storage=storage(scan)))

    x = keys(4)
    want = x.cumsum(0) if inclusive else x.cumsum(0) - x
    for got in run(body, x, torch.zeros_like(x)):
        assert torch.equal(got.long(), want)
