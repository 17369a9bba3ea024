"""Makes Triton's interpreter round and multiply as a GPU does.

Triton 3.6 interprets a float32 to bf16 cast as a truncation, rounds fp8 without carrying into the
exponent, multiplies the bit patterns of bf16 dot operands and knows no inline PTX. The
replacements use ml_dtypes and give the kernels' PTX instructions their meaning.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_NUMPY = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp8e4nv": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp32": np.dtype(np.float32),
}


def _convert_float(data: np.ndarray, source: Any, target: Any, rounding: Any) -> np.ndarray:
    values = np.ascontiguousarray(data).view(_NUMPY[str(source)])
    unsigned = np.dtype(f"uint{target.primitive_bitwidth}")
    return values.astype(np.float32).astype(_NUMPY[str(target)]).view(unsigned)


def _create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
    def wide(operand: Any) -> np.ndarray:
        return _convert_float(operand.data, operand.dtype, tl.float32, None).view(np.float32)

    return interpreter.TensorHandle(np.matmul(wide(a), wide(b)) + d.data, d.dtype.scalar)


class _Call:
    """Results of one inline-assembly call, as the compiler's builder hands them out."""

    def __init__(self, results: list[Any]) -> None:
        self.get_result = results.__getitem__


def _create_inline_asm(
    self: Any, asm: str, constraints: str, values: list[Any], dtype: Any, pure: bool, pack: int
) -> _Call:
    (x,) = values
    if asm.startswith("rcp.approx.ftz.f32"):
        result = np.float32(1) / x.data
    elif asm.startswith("cvt.rn.bf16x2.f32"):
        result = _convert_float(x.data, tl.float32, tl.bfloat16, None)
    elif asm.startswith("{ .reg .b32 h; shl.b32 h, $2, 16;"):
        result = _convert_float(x.data, tl.bfloat16, tl.float32, None).view(np.float32)
    else:
        raise NotImplementedError(f"no meaning is given here for {asm!r}")
    return _Call([interpreter.TensorHandle(result, dtype[0].scalar)])


def install() -> None:
    """Replace the functions for the life of the process."""
    interpreter.InterpreterBuilder.create_inline_asm = _create_inline_asm
    interpreter._convert_float = _convert_float
    interpreter.InterpreterBuilder.create_dot = _create_dot
