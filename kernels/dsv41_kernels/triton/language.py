"""The words the kernel is written in: Gluon on a GPU, in the interpreter their meaning alone.

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
    "async_load", "barrier", "commit_group", "constexpr_function", "fence", "gl", "jit", "mma",
    "mma_wait", "wait_group",
]  # fmt: skip

INTERPRETED = bool(knobs.runtime.interpret)


class _Shared:
    """Shared memory: one array, of which ``slice`` and ``permute`` give views."""

    def __init__(self, dtype: Any, shape: list[int], layout: Any) -> None:
        self.dtype = dtype
        self.data = np.zeros([int(n) for n in shape], np.uint16)  # bf16 is all that is kept there

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    def _view(self, data: Any) -> Any:
        view = copy(self)
        view.data = data
        return view

    def slice(self, start: Any, length: Any) -> Any:
        return self._view(self.data[int(start) : int(start) + int(length)])

    def permute(self, order: tuple[int, ...]) -> Any:
        return self._view(self.data.transpose(order))

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
    constexpr_function = lambda fn: fn  # noqa: E731

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
else:
    import triton.experimental.gluon.language as gl
    from triton.experimental.gluon.language.nvidia.hopper import (
        async_copy,
        warpgroup_mma,
        warpgroup_mma_wait,
    )
    from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared as fence

    jit = gluon.jit
    constexpr_function = gluon.constexpr_function
    commit_group, wait_group = async_copy.commit_group, async_copy.wait_group
    # As Triton 3.6 calls them, where there is no name of later releases.
    async_load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
    barrier = getattr(gl, "barrier", None) or gl.thread_barrier

    @jit
    def mma(a, b, acc):
        return warpgroup_mma(a, b, acc, is_async=True)

    @jit
    def mma_wait(acc):
        return warpgroup_mma_wait(0, deps=[acc])
