"""Device-side building blocks for gfx950 kernels: bounds-checked buffers, DPP, waits.

Every function here is called while a FlyDSL kernel is traced and emits a few operations.
"""

from __future__ import annotations

from typing import Any

import flydsl.expr as fx
from flydsl._mlir import ir
from flydsl._mlir.dialects import llvm
from flydsl.expr import rocdl
from flydsl.expr.typing import T, as_ir_value

WAVE = 64

CACHED = 0
# Cache-policy operand of the raw buffer intrinsics (LLVM, AMDGPU usage, gfx942): SC1 alone is
# agent scope. Such a store reaches the memory behind the L2s of all XCDs, such a load does not
# stop at a stale line of its own L1 or L2, so no write-back or invalidation of a cache is needed.
AGENT = 16

ROW_ROR = 0x120
QUAD_XOR1 = 0xB1
QUAD_XOR2 = 0x4E


def buffer(tensor: Any, num_bytes: Any) -> Any:
    """A buffer descriptor over a tensor: loads past its end give 0, stores there are dropped."""
    pointer = fx.rocdl.make_buffer_ptr(fx.get_iter(tensor), num_records_bytes=num_bytes)
    return fx.rocdl.get_buffer_rsrc(pointer)


def load(buf: Any, dtype: Any, count: int, offset: Any, base: Any = 0, cache: int = CACHED) -> Any:
    """``count`` values of ``dtype`` at ``offset`` (per lane) + ``base`` (uniform) bytes."""
    result = dtype.ir_type if count == 1 else fx.Vector.make_type(count, dtype)
    raw = rocdl.raw_ptr_buffer_load(result, buf, fx.Int32(offset), fx.Int32(base), cache)
    return dtype(raw) if count == 1 else fx.Vector(raw, (count,), dtype)


def store(buf: Any, value: Any, offset: Any, base: Any = 0, cache: int = CACHED) -> None:
    """Store a scalar or vector at ``offset`` (per lane) + ``base`` (uniform) bytes."""
    aux = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), cache)
    rocdl.raw_ptr_buffer_store(
        as_ir_value(value), buf, fx.Int32(offset).ir_value(), fx.Int32(base).ir_value(), aux=aux
    )


def put(array: Any, index: Any, value: Any) -> None:
    """``array[index] = value``; inside a traced ``if`` an assignment would rebind ``array``."""
    array[index] = value


def uniform(value: Any) -> Any:
    """An Int32 that is the same in all lanes, as a scalar register."""
    return fx.Int32(rocdl.readfirstlane(T.i32, value))


def dpp(value: Any, control: int) -> Any:
    """A Float32 from another lane of the row of 16, by a DPP control that is defined everywhere."""
    raw = rocdl.update_dpp(
        T.i32,
        fx.Int32(0).ir_value(),
        value.bitcast(fx.Int32).ir_value(),
        control,
        0xF,
        0xF,
        True,
    )
    return fx.Int32(raw).bitcast(fx.Float32)


def quad_sum(x: Any) -> Any:
    """Sum over the 4 lanes of a quad, in each of them."""
    x = x + dpp(x, QUAD_XOR1)
    return x + dpp(x, QUAD_XOR2)


def quad_max(x: Any) -> Any:
    """Maximum over the 4 lanes of a quad, in each of them."""
    x = fx.max(x, dpp(x, QUAD_XOR1))
    return fx.max(x, dpp(x, QUAD_XOR2))


def stride4_sum(x: Any) -> Any:
    """Sum over the lanes of a row of 16 that are equal modulo 4, in each of them."""
    x = x + dpp(x, ROW_ROR + 4)
    return x + dpp(x, ROW_ROR + 8)


def exp2(x: Any) -> Any:
    """v_exp_f32."""
    return fx.Float32(rocdl.exp2(T.f32, x.ir_value()))


def rcp(x: Any) -> Any:
    """v_rcp_f32."""
    return fx.Float32(rocdl.rcp(T.f32, x))


def rsqrt(x: Any) -> Any:
    """v_rsq_f32."""
    return fx.Float32(rocdl.rsq(T.f32, x.ir_value()))


def splat(x: Any, count: int) -> Any:
    """A Float32 vector of ``count`` equal elements."""
    return fx.Vector.filled(count, x, fx.Float32)


def widen(word: Any) -> Any:
    """The two bf16 of an Int32 word as a Float32 vector."""
    low = (word << 16).bitcast(fx.Float32)
    high = (word & -65536).bitcast(fx.Float32)
    return fx.Vector.from_elements([low, high], fx.Float32)


def narrow(pair: Any) -> Any:
    """A Float32 vector of 2, rounded to nearest even, as an Int32 word of two bf16."""
    return pair.to(fx.BFloat16).bitcast(fx.Int32)[0]


def hidden_from_optimizer(value: Any) -> Any:
    """The same Int32 or Int32 vector, its origin unknown to the optimiser.

    What is worked out from the result is worked out there, instead of being shared with earlier
    code and held in registers in between (the Float32 forms of packed bf16 take twice theirs).
    """

    def hide(word: Any) -> Any:
        return fx.Int32(llvm.inline_asm(T.i32, [as_ir_value(word)], "", "=v,0"))

    if not isinstance(value, fx.Vector):
        return hide(value)
    return fx.Vector.from_elements([hide(value[i]) for i in range(value.numel)], fx.Int32)
