"""What the tests compare with: numpy and ml_dtypes, never the emulator's own arithmetic."""

from __future__ import annotations

import ml_dtypes
import numpy as np

U32, I32, F32, F64, U64, I64 = np.uint32, np.int32, np.float32, np.float64, np.uint64, np.int64
U16, I16, F16 = np.uint16, np.int16, np.float16
BF16 = ml_dtypes.bfloat16
FP8, BF8, FP4 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn
FP6, BF6 = ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn

EDGES = np.array(
    [
        *(0, 1, 2, 3, 31, 32, 63, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000),
        *(0xFFFFFFFF, 0xFFFFFFFE, 0x3F800000, 0xBF800000, 0x3F000000, 0x40490FDB, 0x7F800000),
        *(0xFF800000, 0x7FC00000, 0x00000001, 0x007FFFFF, 0x00800000, 0x80800000, 0x7F7FFFFF),
        *(0x477FE000, 0x43E00000, 0x43F00000, 0x4F000000, 0xCF000000, 0x4F800000, 0x3C003C00),
        *(0x7BFF7C00, 0x80008001, 0x3F803F80, 0x0F0E0D0C, 0x42280000, 0xC2280000, 0x34000000),
    ],
    dtype=U32,
)


def words(count: int, seed: int) -> np.ndarray:
    """32-bit patterns: edge cases, floats of moderate size, and uniformly random bits."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, 3, count)
    moderate = (rng.standard_normal(count) * np.exp2(rng.integers(-8, 9, count))).astype(F32)
    mixed = np.where(
        chosen == 0, rng.choice(EDGES, count), rng.integers(0, 1 << 32, count, dtype=U32)
    )
    return np.where(chosen == 1, moderate.view(U32), mixed).astype(U32)


def f32(x: np.ndarray) -> np.ndarray:
    return x.astype(U32).view(F32)


def i32(x: np.ndarray) -> np.ndarray:
    return x.astype(U32).view(I32)


def bits(x: np.ndarray) -> np.ndarray:
    """The bit pattern of f32 values, or of integers modulo 2^32."""
    x = np.asarray(x)
    if x.dtype.kind == "f":
        return x.astype(F32).view(U32)
    return (x.astype(I64) & 0xFFFFFFFF).astype(U32)


def low16(x: np.ndarray) -> np.ndarray:
    return (np.asarray(x) & 0xFFFF).astype(U16)


def f16(x: np.ndarray) -> np.ndarray:
    return low16(x).view(F16)


def bf16(x: np.ndarray) -> np.ndarray:
    return low16(x).view(BF16)


def half_bits(x: np.ndarray) -> np.ndarray:
    """The bit pattern of values rounded to f16."""
    return np.asarray(x).astype(F16).view(U16).astype(U32)


def join(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return (np.asarray(low).astype(U32) & 0xFFFF) | (np.asarray(high).astype(U32) & 0xFFFF) << 16


def flush(x: np.ndarray) -> np.ndarray:
    """f32 denormals to zero of the same sign."""
    return np.where(np.abs(x) < 2.0**-126, np.copysign(F32(0), x), x).astype(F32)


def same(got: np.ndarray, want: np.ndarray, kind: str) -> np.ndarray:
    """Where two bit patterns agree: `bits` exactly; `f32`, `f16`, `f64`: any NaN equals any NaN;
    `ulp`: f32 within one unit in the last place."""
    if kind == "bits":
        return got == want
    if kind == "f16":
        a, b = got.astype(U32), want.astype(U32)
        nan = (a & 0x7FFF) > 0x7C00
        return (a == b) | (nan & ((b & 0x7FFF) > 0x7C00))
    if kind == "pk16":
        return same(got & 0xFFFF, want & 0xFFFF, "f16") & same(got >> 16, want >> 16, "f16")
    both_nan = np.isnan(f32(got)) & np.isnan(f32(want))
    if kind == "f32":
        return (got == want) | both_nan
    distance = np.abs(i32(got).astype(I64) - i32(want).astype(I64))
    return (distance <= 1) | both_nan
