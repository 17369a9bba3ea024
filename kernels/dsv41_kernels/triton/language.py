"""The words the kernels are written in: Gluon on a GPU, in the interpreter their meaning alone.

Triton's interpreter does not know Gluon. There a kernel is an ordinary ``triton.jit`` function and
``gl`` drops every layout: what is left is ``triton.language``, and arrays for shared memory.
"""

from __future__ import annotations

from copy import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton import knobs
from triton.experimental import gluon
from triton.runtime import interpreter

__all__ = [
    "async_load", "barrier", "commit_group", "constant", "constexpr_function", "fence", "gl", "jit",
    "load_box", "mbarrier", "mma", "mma_wait", "rows_of", "store_box", "store_wait", "wait_group",
    "warp_specialize",
]  # fmt: skip

INTERPRETED = bool(knobs.runtime.interpret)


def _number(x: Any) -> int:
    """A scalar, which in the interpreter may be a tensor."""
    return int(x.handle.data.item()) if hasattr(x, "handle") else int(x)


class _Shared:
    """Shared memory: one array, of which ``slice``, ``index`` and ``permute`` give views."""

    def __init__(self, dtype: Any, shape: list[int], layout: Any) -> None:
        self.dtype = dtype
        kind = np.uint16 if dtype == tl.bfloat16 else np.float32  # all that is kept there
        self.data = np.zeros([int(n) for n in shape], kind)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    def view(self, data: Any) -> Any:
        view = copy(self)
        view.data = data
        return view

    def slice(self, start: Any, length: Any, dim: Any = 0) -> Any:
        at = [slice(None)] * int(dim) + [slice(int(start), int(start) + int(length))]
        return self.view(self.data[tuple(at)])

    def index(self, at: Any) -> Any:
        return self.view(self.data[_number(at)])

    def permute(self, order: tuple[int, ...]) -> Any:
        return self.view(self.data.transpose(order))

    def store(self, value: Any) -> None:
        self.data[...] = value.handle.data

    def load(self, layout: Any) -> Any:
        held = interpreter.TensorHandle(self.data.copy(), self.dtype)
        return tl.tensor(held, tl.block_type(self.dtype, list(self.data.shape)))


def _interpreted() -> Any:
    same = "load store sum max maximum minimum where exp rsqrt abs static_range program_id"
    same += " reshape permute split constexpr inline_asm_elementwise"
    same += " atomic_add atomic_cas atomic_xchg"

    def late(name: str) -> Any:  # the interpreter replaces its functions while a kernel runs
        return lambda *args, **kwargs: getattr(tl, name)(*args, **kwargs)

    words = {name: late(name) for name in same.split()}

    def no_layout(*args: Any, **kwargs: Any) -> None:
        return None

    words |= {
        "arange": lambda start, end, layout: tl.arange(start, end),
        "full": lambda shape, value, dtype, layout: tl.full(shape, value, dtype),
        "convert_layout": lambda value, layout: value,
        "allocate_shared_memory": _Shared,
        "SliceLayout": no_layout,
        "BlockedLayout": no_layout,
        "NVMMASharedLayout": no_layout,
        "NVMMADistributedLayout": no_layout,
        "DistributedLinearLayout": no_layout,
        "SwizzledSharedLayout": no_layout,
        "constexpr": tl.constexpr,
    }
    return SimpleNamespace(**words)


if INTERPRETED:
    gl = _interpreted()
    tl.block_type.layout = None  # what a kernel may ask of a tensor's type
    jit = triton.jit
    constexpr_function = constant = lambda value: value

    def mma(a: Any, b: Any, acc: Any) -> Any:
        return tl.dot(a.load(None), b.load(None), acc)

    def mma_wait(acc: Any) -> Any:
        return acc

    def fence() -> None:
        pass

    def barrier() -> None:
        tl.debug_barrier()

    def async_load(smem: Any, pointer: Any, mask: Any = None) -> None:
        smem.store(tl.load(pointer, mask=mask))

    def commit_group() -> None:
        pass

    def wait_group(pending: int) -> None:
        pass

    def _at_box(source: Any, row: Any, col: Any, rows: Any, width: Any, smem: Any) -> Any:
        i = row + tl.arange(0, smem.shape[0])[:, None]
        j = col + tl.arange(0, smem.shape[1])[None, :]
        return source + i * width + j, (i < rows) & (j < width)

    def load_box(
        source: Any, row: Any, col: Any, rows: Any, width: Any, bar: Any, smem: Any
    ) -> None:
        at, inside = _at_box(source, row, col, rows, width, smem)
        smem.store(tl.load(at, mask=inside, other=0.0))

    def store_box(target: Any, row: Any, col: Any, rows: Any, width: Any, smem: Any) -> None:
        at, inside = _at_box(target, row, col, rows, width, smem)
        tl.store(at, smem.load(None), mask=inside)

    def store_wait(pending: int) -> None:
        pass

    def rows_of(boxes: Any, first: Any, zero: Any, rows: Any, layout: Any) -> Any:
        flat = boxes.data.reshape(-1, boxes.shape[2])
        return boxes.view(flat[first * boxes.shape[1] :][:rows])

    def warp_specialize(parts: Any, warps: Any, registers: Any) -> None:
        for function, arguments in parts:  # one after another: nothing may wait for a later one
            function(*arguments)

    def _no_barrier(*args: Any, **kwargs: Any) -> None:
        pass

    mbarrier = SimpleNamespace(
        **dict.fromkeys(("MBarrierLayout", "init", "expect", "arrive", "wait"), _no_barrier)
    )
else:
    import triton.experimental.gluon.language as gl
    from triton.experimental.gluon.language.nvidia.hopper import (
        async_copy,
        mbarrier,
        tma,
        warpgroup_mma,
        warpgroup_mma_wait,
    )
    from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared as fence

    jit, constant = gluon.jit, tl.constexpr
    constexpr_function = gluon.constexpr_function
    commit_group, wait_group = async_copy.commit_group, async_copy.wait_group
    # As Triton 3.6 calls them, where there is no name of later releases.
    async_load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
    barrier = getattr(gl, "barrier", None) or gl.thread_barrier
    tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
    tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
    store_wait, warp_specialize = tma.store_wait, gl.warp_specialize

    @jit
    def mma(a, b, acc):
        return warpgroup_mma(a, b, acc, is_async=True)

    @jit
    def mma_wait(acc):
        return warpgroup_mma_wait(0, deps=[acc])

    @jit
    def load_box(source, row, col, rows, width, bar, smem):
        """Let the copy engine bring smem's shape from (row, col) of a matrix [rows, width]."""
        tma_load(source, [row, col], bar, smem)

    @jit
    def store_box(target, row, col, rows, width, smem):
        """Let the copy engine write smem to (row, col) of a matrix [rows, width]."""
        tma_store(target, [row, col], smem)

    if hasattr(gl.shared_memory_descriptor, "reinterpret"):

        @jit
        def rows_of(boxes, first: tl.constexpr, zero, rows: tl.constexpr, layout: tl.constexpr):
            """``rows`` rows from box ``first`` on of boxes [n, 16, columns]."""
            some = boxes.slice(first, rows // 16)
            return some.reinterpret(tl.bfloat16, [rows, boxes.shape[2]], layout)
    else:

        @jit
        def rows_of(boxes, first: tl.constexpr, zero, rows: tl.constexpr, layout: tl.constexpr):
            """``rows`` rows from box ``first`` on of boxes [n, 16, columns].

            ``zero`` keeps the compiler from holding the address of every view in registers.
            """
            some = boxes.index(zero + first)
            return some._reinterpret(tl.bfloat16, [rows, boxes.shape[2]], layout)
