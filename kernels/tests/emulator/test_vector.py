"""Every vector ALU instruction against numpy, on edge cases and random bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from assemble import assemble
from dsv41_kernels.emulator import Emulator, gfx950
from oracle import (
    BF8,
    BF16,
    F16,
    F32,
    F64,
    FP4,
    FP8,
    I16,
    I32,
    I64,
    U16,
    U32,
    U64,
    bf16,
    bits,
    f16,
    f32,
    flush,
    half_bits,
    i32,
    join,
    low16,
    same,
    words,
)

LANES = 64
WAVES = 24

# A program loads a (v10, v11), b (v12, v13), c (v14, v15) and the old result (v16, v17), and a lane
# mask (s[10:11]); runs each instruction on fresh copies (v20, v21: result; s[20:21]: scalar
# result), and stores the four result dwords.
PROLOGUE = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_lshlrev_b32_e32 v1, 5, v0
s_lshl_b32 s3, s2, 11
s_mov_b32 s10, 0x5a5a1234
s_mov_b32 s11, 0xc3c3fedc
s_waitcnt lgkmcnt(0)
s_add_u32 s4, s4, s3
s_addc_u32 s5, s5, 0
global_load_dwordx4 v[10:13], v1, s[4:5]
global_load_dwordx4 v[14:17], v1, s[4:5] offset:16
v_lshlrev_b32_e32 v2, 4, v0
s_mul_i32 s3, s2, {stride}
v_add_u32_e32 v2, s3, v2
s_waitcnt vmcnt(0)
"""
STEP = """
v_mov_b32_e32 v20, v16
v_mov_b32_e32 v21, v17
s_mov_b64 s[20:21], 0
s_mov_b64 vcc, s[10:11]
{text}
v_mov_b32_e32 v22, s20
v_mov_b32_e32 v23, s21
global_store_dwordx4 v2, v[20:23], s[6:7]
v_add_u32_e32 v2, 0x400, v2
"""
MASK = np.uint64(0xC3C3FEDC5A5A1234)


@dataclass
class Case:
    """One instruction; `oracle` maps (a, b, c, old) to the expected dwords it names."""

    text: str
    oracle: Callable[..., dict[str, np.ndarray] | np.ndarray]
    kind: str = "bits"


@dataclass
class Data:
    """Inputs as u32 arrays of one element a lane: low and high dword of a, b, c, old."""

    a: np.ndarray
    a1: np.ndarray
    b: np.ndarray
    b1: np.ndarray
    c: np.ndarray
    c1: np.ndarray
    old: np.ndarray
    old1: np.ndarray

    def q(self, name: str) -> np.ndarray:
        low, high = getattr(self, name), getattr(self, name + "1")
        return low.astype(U64) | high.astype(U64) << np.uint64(32)

    def d(self, name: str) -> np.ndarray:
        return self.q(name).view(F64)


CASES: dict[str, list[Case]] = {}


def case(text: str, oracle: Callable[[Data], object], kind: str = "bits") -> None:
    name = text.split()[0]
    for suffix in ("_e32", "_e64", "_sdwa", "_dpp"):
        name = name.removesuffix(suffix)
    CASES.setdefault(name, []).append(Case(text, oracle, kind))


def lane_bit(mask: np.uint64) -> np.ndarray:
    lanes = np.arange(LANES, dtype=U64)
    return np.tile((mask >> lanes) & np.uint64(1), WAVES).astype(bool)


def to_mask(lanes: np.ndarray) -> dict[str, np.ndarray]:
    """Expected scalar pair from one bool a lane."""
    weights = np.uint64(1) << np.arange(LANES, dtype=U64)
    packed = (lanes.reshape(WAVES, LANES) * weights).sum(axis=1, dtype=U64)
    packed = np.repeat(packed, LANES)
    return {
        "s0": (packed & np.uint64(0xFFFFFFFF)).astype(U32),
        "s1": (packed >> np.uint64(32)).astype(U32),
    }


def pair(x: np.ndarray) -> dict[str, np.ndarray]:
    x = x.view(U64) if x.dtype == F64 else x.astype(U64)
    return {"v0": (x & np.uint64(0xFFFFFFFF)).astype(U32), "v1": (x >> np.uint64(32)).astype(U32)}


# ---- Integer -------------------------------------------------------------------------------------


def ints1(name: str, f: Callable[[np.ndarray], np.ndarray]) -> None:
    case(f"{name}_e32 v20, v10", lambda d: bits(f(d.a)))


def ints2(name: str, f: Callable[[np.ndarray, np.ndarray], np.ndarray], e64: bool = False) -> None:
    case(f"{name}{'' if e64 else '_e32'} v20, v10, v12", lambda d: bits(f(d.a, d.b)))


def ints3(name: str, f: Callable[..., np.ndarray]) -> None:
    case(f"{name} v20, v10, v12, v14", lambda d: bits(f(d.a, d.b, d.c)))


def s(x: np.ndarray) -> np.ndarray:
    return i32(x).astype(I64)


def u(x: np.ndarray) -> np.ndarray:
    return x.astype(I64)


def h(x: np.ndarray) -> np.ndarray:
    """Signed low half."""
    return low16(x).view(I16).astype(I64)


def t24(x: np.ndarray) -> np.ndarray:
    return (s(x) & 0xFFFFFF ^ 0x800000) - 0x800000


def bit_length(x: np.ndarray) -> np.ndarray:
    return np.array([int(v).bit_length() for v in x], dtype=I64)


def trailing(x: np.ndarray) -> np.ndarray:
    return np.array([(int(v) & -int(v)).bit_length() - 1 for v in x], dtype=I64)


def reverse(x: np.ndarray) -> np.ndarray:
    return np.array([int(f"{int(v):032b}"[::-1], 2) for v in x], dtype=I64)


def ones(x: np.ndarray) -> np.ndarray:
    return np.array([int(v).bit_count() for v in x], dtype=I64)


def leading_sign(x: np.ndarray) -> np.ndarray:
    folded = np.where(s(x) < 0, ~s(x), s(x))
    return np.where(folded == 0, -1, 32 - bit_length(folded))


def field(a: np.ndarray, offset: np.ndarray, width: np.ndarray, signed: bool) -> np.ndarray:
    out = []
    for value, start, count in zip(a, offset & 31, width & 31, strict=True):
        value, start, count = int(value), int(start), int(count)
        count = min(count, 32 - start)
        x = value >> start & ((1 << count) - 1)
        out.append(x - (1 << count) if signed and count and x >> (count - 1) else x)
    return np.array(out, dtype=I64)


ints1("v_mov_b32", u)
ints1("v_not_b32", lambda a: ~u(a))
ints1("v_bfrev_b32", reverse)
ints1("v_ffbh_u32", lambda a: np.where(a == 0, -1, 32 - bit_length(a)))
ints1("v_ffbl_b32", lambda a: np.where(a == 0, -1, trailing(a)))
ints1("v_ffbh_i32", leading_sign)
for name, f in {
    "v_add_u32": lambda a, b: u(a) + u(b),
    "v_sub_u32": lambda a, b: u(a) - u(b),
    "v_subrev_u32": lambda a, b: u(b) - u(a),
    "v_and_b32": lambda a, b: a & b,
    "v_or_b32": lambda a, b: a | b,
    "v_xor_b32": lambda a, b: a ^ b,
    "v_xnor_b32": lambda a, b: ~(a ^ b),
    "v_lshlrev_b32": lambda a, b: u(b) << u(a & 31),
    "v_lshrrev_b32": lambda a, b: u(b) >> u(a & 31),
    "v_ashrrev_i32": lambda a, b: s(b) >> u(a & 31),
    "v_min_u32": lambda a, b: np.minimum(u(a), u(b)),
    "v_max_u32": lambda a, b: np.maximum(u(a), u(b)),
    "v_min_i32": lambda a, b: np.minimum(s(a), s(b)),
    "v_max_i32": lambda a, b: np.maximum(s(a), s(b)),
    "v_mul_u32_u24": lambda a, b: u(a & 0xFFFFFF) * u(b & 0xFFFFFF),
    "v_mul_hi_u32_u24": lambda a, b: u(a & 0xFFFFFF) * u(b & 0xFFFFFF) >> 32,
    "v_mul_i32_i24": lambda a, b: t24(a) * t24(b),
    "v_mul_hi_i32_i24": lambda a, b: t24(a) * t24(b) >> 32,
    "v_add_u16": lambda a, b: low16(a + b),
    "v_sub_u16": lambda a, b: low16(a - b),
    "v_subrev_u16": lambda a, b: low16(b - a),
    "v_mul_lo_u16": lambda a, b: low16(u(low16(a)) * u(low16(b))),
    "v_lshlrev_b16": lambda a, b: low16(u(b) << u(a & 15)),
    "v_lshrrev_b16": lambda a, b: u(low16(b)) >> u(a & 15),
    "v_ashrrev_i16": lambda a, b: low16(h(b) >> u(a & 15)),
    "v_min_u16": lambda a, b: np.minimum(low16(a), low16(b)),
    "v_max_u16": lambda a, b: np.maximum(low16(a), low16(b)),
    "v_min_i16": lambda a, b: low16(np.minimum(h(a), h(b))),
    "v_max_i16": lambda a, b: low16(np.maximum(h(a), h(b))),
}.items():
    ints2(name, f)
for name, f in {
    "v_mul_lo_u32": lambda a, b: (a.astype(U64) * b.astype(U64)) & np.uint64(0xFFFFFFFF),
    "v_mul_hi_u32": lambda a, b: (a.astype(U64) * b.astype(U64)) >> np.uint64(32),
    "v_mul_hi_i32": lambda a, b: s(a) * s(b) >> 32,
    "v_bfm_b32": lambda a, b: ((1 << u(a & 31)) - 1) << u(b & 31),
    "v_bcnt_u32_b32": lambda a, b: ones(a) + u(b),
    "v_add_i32": lambda a, b: s(a) + s(b),
    "v_sub_i32": lambda a, b: s(a) - s(b),
    "v_cvt_pk_u16_u32": lambda a, b: join(np.minimum(a, 65535), np.minimum(b, 65535)),
    "v_cvt_pk_i16_i32": lambda a, b: join(
        np.clip(s(a), -32768, 32767) & 0xFFFF, np.clip(s(b), -32768, 32767) & 0xFFFF
    ),
}.items():
    ints2(name, f, e64=True)
case("v_add_i32 v20, v10, v12 clamp", lambda d: bits(np.clip(s(d.a) + s(d.b), -(2**31), 2**31 - 1)))
case("v_sub_i32 v20, v10, v12 clamp", lambda d: bits(np.clip(s(d.a) - s(d.b), -(2**31), 2**31 - 1)))


def alignbit(a: np.ndarray, b: np.ndarray, shift: np.ndarray) -> np.ndarray:
    return (a.astype(U64) << np.uint64(32) | b.astype(U64)) >> shift.astype(U64) & np.uint64(
        0xFFFFFFFF
    )


def permute(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    out = []
    for x, y, selectors in zip(a, b, c, strict=True):
        data = int(y).to_bytes(4, "little") + int(x).to_bytes(4, "little")
        chosen = []
        for k in int(selectors).to_bytes(4, "little"):
            if k < 8:
                chosen.append(data[k])
            elif k < 12:
                chosen.append(255 * (data[2 * (k - 8) + 1] >> 7))
            else:
                chosen.append(0 if k == 12 else 255)
        out.append(int.from_bytes(bytes(chosen), "little"))
    return np.array(out, dtype=I64)


def dot4(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    x, y = (v.view(np.int8).reshape(-1, 4).astype(I64) for v in (a.copy(), b.copy()))
    return (x * y).sum(axis=1) + s(c)


def bitop3(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: int) -> np.ndarray:
    r = np.zeros(len(a), dtype=I64)
    for k in range(32):
        index = (u(a) >> k & 1) << 2 | (u(b) >> k & 1) << 1 | (u(c) >> k & 1)
        r |= (table >> index & 1) << k
    return r


for name, f in {
    "v_add3_u32": lambda a, b, c: u(a) + u(b) + u(c),
    "v_lshl_add_u32": lambda a, b, c: (u(a) << u(b & 31)) + u(c),
    "v_add_lshl_u32": lambda a, b, c: (u(a) + u(b) & 0xFFFFFFFF) << u(c & 31),
    "v_lshl_or_b32": lambda a, b, c: (u(a) << u(b & 31)) | u(c),
    "v_and_or_b32": lambda a, b, c: (a & b) | c,
    "v_or3_b32": lambda a, b, c: a | b | c,
    "v_xad_u32": lambda a, b, c: u(a ^ b) + u(c),
    "v_bfe_u32": lambda a, b, c: field(a, b, c, False),
    "v_bfe_i32": lambda a, b, c: field(a, b, c, True),
    "v_bfi_b32": lambda a, b, c: (a & b) | (~a & c),
    "v_alignbit_b32": lambda a, b, c: alignbit(a, b, c & 31),
    "v_alignbyte_b32": lambda a, b, c: alignbit(a, b, 8 * (c & 3)),
    "v_mad_u32_u24": lambda a, b, c: u(a & 0xFFFFFF) * u(b & 0xFFFFFF) + u(c),
    "v_mad_i32_i24": lambda a, b, c: t24(a) * t24(b) + u(c),
    "v_mad_u32_u16": lambda a, b, c: u(low16(a)) * u(low16(b)) + u(c),
    "v_mad_i32_i16": lambda a, b, c: h(a) * h(b) + u(c),
    "v_mad_legacy_u16": lambda a, b, c: low16(u(low16(a)) * u(low16(b)) + u(c)),
    "v_min3_u32": lambda a, b, c: np.minimum(np.minimum(u(a), u(b)), u(c)),
    "v_max3_u32": lambda a, b, c: np.maximum(np.maximum(u(a), u(b)), u(c)),
    "v_med3_u32": lambda a, b, c: np.median([u(a), u(b), u(c)], axis=0).astype(I64),
    "v_min3_i32": lambda a, b, c: np.minimum(np.minimum(s(a), s(b)), s(c)),
    "v_max3_i32": lambda a, b, c: np.maximum(np.maximum(s(a), s(b)), s(c)),
    "v_med3_i32": lambda a, b, c: np.median([s(a), s(b), s(c)], axis=0).astype(I64),
    "v_sad_u32": lambda a, b, c: np.abs(u(a) - u(b)) + u(c),
    "v_dot4_i32_i8": dot4,
    "v_perm_b32": permute,
}.items():
    ints3(name, f)
case(
    "v_mad_u16 v20, v10, v12, v14",
    lambda d: low16(u(low16(d.a)) * u(low16(d.b)) + u(d.c)).astype(U32),
)
for table in (0x3C, 0x96, 0xE8):
    case(
        f"v_bitop3_b32 v20, v10, v12, v14 bitop3:{table:#x}",
        lambda d, t=table: bits(bitop3(d.a, d.b, d.c, t)),
    )
case(
    "v_bitop3_b16 v20, v10, v12, v14 bitop3:0xe8",
    lambda d: low16(bitop3(d.a, d.b, d.c, 0xE8)).astype(U32),
)


def below(lanes: range) -> np.ndarray:
    """Per lane, a mask of the lanes under it, counted from lanes.start."""
    counts = np.clip(np.arange(LANES) - lanes.start, 0, 32)
    return np.tile((1 << counts.astype(I64)) - 1, WAVES)


case(
    "v_mbcnt_lo_u32_b32 v20, v10, v12", lambda d: bits(ones(u(d.a) & below(range(0, 32))) + u(d.b))
)
case(
    "v_mbcnt_hi_u32_b32 v20, v10, v12", lambda d: bits(ones(u(d.a) & below(range(32, 64))) + u(d.b))
)
case("v_cndmask_b32_e32 v20, v10, v12, vcc", lambda d: np.where(lane_bit(MASK), d.b, d.a))
case("v_cndmask_b32_e64 v20, v10, v12, s[10:11]", lambda d: np.where(lane_bit(MASK), d.b, d.a))


def carried(total: np.ndarray) -> dict[str, np.ndarray]:
    return {"v0": bits(total), **to_mask((total < 0) | (total >> 32 != 0))}


CIN = lane_bit(MASK).astype(I64)
case("v_add_co_u32_e64 v20, s[20:21], v10, v12", lambda d: carried(u(d.a) + u(d.b)))
case("v_sub_co_u32_e64 v20, s[20:21], v10, v12", lambda d: carried(u(d.a) - u(d.b)))
case("v_subrev_co_u32_e64 v20, s[20:21], v10, v12", lambda d: carried(u(d.b) - u(d.a)))
case(
    "v_addc_co_u32_e64 v20, s[20:21], v10, v12, s[10:11]", lambda d: carried(u(d.a) + u(d.b) + CIN)
)
case(
    "v_subb_co_u32_e64 v20, s[20:21], v10, v12, s[10:11]", lambda d: carried(u(d.a) - u(d.b) - CIN)
)
case(
    "v_subbrev_co_u32_e64 v20, s[20:21], v10, v12, s[10:11]",
    lambda d: carried(u(d.b) - u(d.a) - CIN),
)


def wide_mad(d: Data, signed: bool) -> dict[str, np.ndarray]:
    values, carries = [], []
    for x, y, z in zip(d.a, d.b, d.q("c"), strict=True):
        if signed:
            total = int(x.view(I32)) * int(y.view(I32)) + int(z.view(I64))
        else:
            total = int(x) * int(y) + int(z)
        values.append(total & (2**64 - 1))
        carries.append(bool(total >> 64 & 1))
    return {**pair(np.array(values, dtype=U64)), **to_mask(np.array(carries))}


case("v_mad_u64_u32 v[20:21], s[20:21], v10, v12, v[14:15]", lambda d: wide_mad(d, False))
case("v_mad_i64_i32 v[20:21], s[20:21], v10, v12, v[14:15]", lambda d: wide_mad(d, True))
case(
    "v_lshl_add_u64 v[20:21], v[10:11], 3, v[14:15]",
    lambda d: pair((d.q("a") << np.uint64(3)) + d.q("c")),
)
case("v_lshlrev_b64 v[20:21], v10, v[12:13]", lambda d: pair(d.q("b") << (d.a & 63).astype(U64)))
case("v_lshrrev_b64 v[20:21], v10, v[12:13]", lambda d: pair(d.q("b") >> (d.a & 63).astype(U64)))
case(
    "v_ashrrev_i64 v[20:21], v10, v[12:13]",
    lambda d: pair((d.q("b").view(I64) >> (d.a & 63).astype(I64)).view(U64)),
)
case("v_mov_b64_e32 v[20:21], v[10:11]", lambda d: pair(d.q("a")))
case("v_pk_mov_b32 v[20:21], v[10:11], v[12:13] op_sel:[1,0]", lambda d: {"v0": d.a1, "v1": d.b})
case("v_accvgpr_write_b32 a3, v10\n s_nop 4\n v_accvgpr_read_b32 v20, a3", lambda d: d.a)
case("v_accvgpr_read_b32 v20, a4", lambda d: d.a)
case("v_accvgpr_mov_b32 a5, a4\n s_nop 4\n v_accvgpr_read_b32 v20, a5", lambda d: d.a)

# ---- f32, f64, f16 -------------------------------------------------------------------------------


def min_num(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    tie = (x == 0) & (y == 0)
    return np.where(tie, np.where(np.signbit(x), x, y), np.fmin(x, y))


def max_num(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    tie = (x == 0) & (y == 0)
    return np.where(tie, np.where(np.signbit(x), y, x), np.fmax(x, y))


def median3(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    nan = np.isnan(x) | np.isnan(y) | np.isnan(z)
    # As the ISA manual defines it, which tells equal zeros apart by position, not by sign.
    most = max_num(max_num(x, y), z)
    middle = np.where(most == x, max_num(y, z), np.where(most == y, max_num(x, z), max_num(x, y)))
    return np.where(nan, min_num(min_num(x, y), z), middle)


def fma32(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Exactly rounded: the product of two f32 is exact in longdouble's 64 bits."""
    exact = x.astype(np.longdouble) * y.astype(np.longdouble)
    return torch_fma(exact, x, y, z)


def torch_fma(exact: np.ndarray, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    import math
    from fractions import Fraction

    out = np.empty(len(x), F32)
    for k, (a, b, c) in enumerate(zip(x, y, z, strict=True)):
        if not all(math.isfinite(v) for v in (a, b, c)):
            out[k] = F32(float(exact[k]) + float(c))
            continue
        total = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        if total == 0:
            out[k] = F32(float(exact[k]) + float(c))
            continue
        out[k] = round_f32(total)
    return out


def round_f32(x: object) -> np.float32:
    """A Fraction rounded to the nearest even f32."""
    from fractions import Fraction

    assert isinstance(x, Fraction)
    sign, x = (-1 if x < 0 else 1), abs(x)
    exponent = max(x.numerator.bit_length() - x.denominator.bit_length(), -126)
    if x < Fraction(2) ** exponent and exponent > -126:
        exponent -= 1
    step = Fraction(2) ** (exponent - 23)
    rounded = round(x / step) * step  # round() of a Fraction is to even
    if rounded >= Fraction(2) ** 128:
        return F32(sign * np.inf)
    return F32(sign * float(rounded))


def float1(name: str, f: Callable[[np.ndarray], np.ndarray], kind: str = "f32") -> None:
    case(f"{name}_e32 v20, v10", lambda d: bits(f(f32(d.a))), kind)


def float2(name: str, f: Callable[..., np.ndarray]) -> None:
    case(f"{name}_e32 v20, v10, v12", lambda d: bits(f(f32(d.a), f32(d.b))), "f32")
    case(f"{name}_e64 v20, -v10, |v12|", lambda d: bits(f(-f32(d.a), np.abs(f32(d.b)))), "f32")


def float3(name: str, f: Callable[..., np.ndarray]) -> None:
    case(f"{name} v20, v10, v12, v14", lambda d: bits(f(f32(d.a), f32(d.b), f32(d.c))), "f32")


def in64(f: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: flush(f(flush(x).astype(F64)).astype(F32))


def saturating(x: np.ndarray, low: int, high: int) -> np.ndarray:
    x = np.where(np.isnan(x), 0, x.astype(F64))
    return np.clip(np.trunc(x), low, high).astype(I64)


float2("v_add_f32", lambda x, y: x + y)
float2("v_sub_f32", lambda x, y: x - y)
float2("v_subrev_f32", lambda x, y: y - x)
float2("v_mul_f32", lambda x, y: x * y)
case(
    "v_mul_legacy_f32 v20, v10, v12",
    lambda d: bits(np.where((f32(d.a) == 0) | (f32(d.b) == 0), F32(0), f32(d.a) * f32(d.b))),
    "f32",
)
float2("v_min_f32", min_num)
float2("v_max_f32", max_num)
float3("v_fma_f32", fma32)
float3("v_min3_f32", lambda x, y, z: min_num(min_num(x, y), z))
float3("v_max3_f32", lambda x, y, z: max_num(max_num(x, y), z))
float3("v_med3_f32", median3)


def nan_if(r: np.ndarray, *xs: np.ndarray) -> np.ndarray:
    """r, but NaN where any of xs is."""
    return np.where(np.logical_or.reduce([np.isnan(x) for x in xs]), np.nan, r)


float3("v_minimum3_f32", lambda x, y, z: nan_if(min_num(min_num(x, y), z), x, y, z))
float3("v_maximum3_f32", lambda x, y, z: nan_if(max_num(max_num(x, y), z), x, y, z))
case(
    "v_fmaak_f32 v20, v10, v12, 0x40490fdb",
    lambda d: bits(fma32(f32(d.a), f32(d.b), np.full(len(d.a), np.pi, F32))),
    "f32",
)
case(
    "v_fmamk_f32 v20, v10, 0x40490fdb, v12",
    lambda d: bits(fma32(f32(d.a), np.full(len(d.a), np.pi, F32), f32(d.b))),
    "f32",
)
case("v_fmac_f32_e32 v20, v10, v12", lambda d: bits(fma32(f32(d.a), f32(d.b), f32(d.old))), "f32")
case(
    "v_add_f32_e64 v20, v10, v12 clamp",
    lambda d: bits(
        np.clip(
            np.nan_to_num(f32(d.a) + f32(d.b), nan=0.0, posinf=np.inf, neginf=-np.inf),
            F32(0),
            F32(1),
        )
    ),
    "f32",
)
case("v_mul_f32_e64 v20, v10, v12 mul:2", lambda d: bits(f32(d.a) * f32(d.b) * F32(2)), "f32")
case("v_mul_f32_e64 v20, v10, v12 div:2", lambda d: bits(f32(d.a) * f32(d.b) * F32(0.5)), "f32")
for name, g in {
    "v_floor_f32": np.floor,
    "v_ceil_f32": np.ceil,
    "v_trunc_f32": np.trunc,
    "v_rndne_f32": np.rint,
}.items():
    float1(name, g)
float1("v_fract_f32", lambda x: np.fmin(x - np.floor(x), F32(1 - 2.0**-24)))
float1("v_frexp_mant_f32", lambda x: np.where(np.isfinite(x), np.frexp(x)[0], x))
case(
    "v_frexp_exp_i32_f32_e32 v20, v10",
    lambda d: bits(np.where(np.isfinite(f32(d.a)), np.frexp(f32(d.a))[1], 0)),
)
float1("v_rcp_f32", in64(lambda x: 1 / x), "ulp")
float1("v_rcp_iflag_f32", in64(lambda x: 1 / x), "ulp")
float1("v_rsq_f32", in64(lambda x: 1 / np.sqrt(x)), "ulp")
float1("v_sqrt_f32", in64(np.sqrt), "ulp")
float1("v_exp_f32", in64(np.exp2), "ulp")
float1("v_log_f32", in64(np.log2), "ulp")
# One turn is 1.0; numpy's sine of a huge angle is exact only for the reduced argument.
case(
    "v_sin_f32_e32 v20, v10",
    lambda d: bits(
        np.where(
            np.abs(f32(d.a)) < 256, np.sin(2 * np.pi * flush(f32(d.a)).astype(F64)), np.nan
        ).astype(F32)
    ),
    "trig",
)
case(
    "v_cos_f32_e32 v20, v10",
    lambda d: bits(
        np.where(
            np.abs(f32(d.a)) < 256, np.cos(2 * np.pi * flush(f32(d.a)).astype(F64)), np.nan
        ).astype(F32)
    ),
    "trig",
)
case(
    "v_ldexp_f32 v20, v10, v12",
    lambda d: bits(
        np.ldexp(f32(d.a).astype(np.longdouble), np.clip(i32(d.b), -2000, 2000)).astype(F32)
    ),
    "f32",
)

for name, g in {
    "v_add_f64": np.add,
    "v_mul_f64": np.multiply,
    "v_min_f64": np.fmin,
    "v_max_f64": np.fmax,
}.items():
    case(f"{name} v[20:21], v[10:11], v[12:13]", lambda d, g=g: pair(g(d.d("a"), d.d("b"))), "f64")


# Powers of two times small integers, for which the product is exact in f64 too.
case("v_fma_f64 v[20:21], v[10:11], 2.0, v[14:15]", lambda d: pair(d.d("a") * 2 + d.d("c")), "f64")
case("v_fmac_f64_e32 v[20:21], 2.0, v[12:13]", lambda d: pair(d.d("b") * 2 + d.d("old")), "f64")


def h1(name: str, f: Callable[[np.ndarray], np.ndarray], ulp: bool = False) -> None:
    case(f"{name}_e32 v20, v10", lambda d: half_bits(f(f16(d.a).astype(F64))), "f16")


def h2(name: str, f: Callable[..., np.ndarray]) -> None:
    case(
        f"{name}_e32 v20, v10, v12",
        lambda d: half_bits(f(f16(d.a).astype(F64), f16(d.b).astype(F64))),
        "f16",
    )


def h3(name: str, f: Callable[..., np.ndarray]) -> None:
    case(
        f"{name} v20, v10, v12, v14",
        lambda d: half_bits(f(*(f16(x).astype(F64) for x in (d.a, d.b, d.c)))),
        "f16",
    )


h2("v_add_f16", np.add)
h2("v_sub_f16", np.subtract)
h2("v_subrev_f16", lambda x, y: y - x)
h2("v_mul_f16", np.multiply)
h2("v_min_f16", min_num)
h2("v_max_f16", max_num)
h3("v_fma_f16", lambda x, y, z: x * y + z)
h3("v_min3_f16", lambda x, y, z: min_num(min_num(x, y), z))
h3("v_max3_f16", lambda x, y, z: max_num(max_num(x, y), z))
h3("v_med3_f16", median3)
for name, g in {
    "v_rcp_f16": lambda x: 1 / x,
    "v_sqrt_f16": np.sqrt,
    "v_rsq_f16": lambda x: 1 / np.sqrt(x),
    "v_exp_f16": np.exp2,
    "v_log_f16": np.log2,
    "v_floor_f16": np.floor,
    "v_ceil_f16": np.ceil,
    "v_trunc_f16": np.trunc,
    "v_rndne_f16": np.rint,
}.items():
    h1(name, g)
case(
    "v_ldexp_f16_e32 v20, v10, v12",
    lambda d: half_bits(np.ldexp(f16(d.a).astype(F64), h(d.b).astype(int))),
    "f16",
)
case("v_pack_b32_f16 v20, v10, v12 op_sel:[1,0,0]", lambda d: join(d.a >> 16, d.b))


def packed(
    name: str, f: Callable[..., np.ndarray], convert: Callable, back: Callable, n: int, kind: str
) -> None:
    """Plain, and with the halves of source b swapped."""
    regs = ", ".join(("v10", "v12", "v14")[:n])

    def oracle(d: Data, swap: bool) -> np.ndarray:
        xs = (d.a, d.b, d.c)[:n]
        low = [convert(x >> 16 if swap and i == 1 else x) for i, x in enumerate(xs)]
        high = [convert(x if swap and i == 1 else x >> 16) for i, x in enumerate(xs)]
        return join(back(f(*low)), back(f(*high)))

    case(f"{name} v20, {regs}", lambda d: oracle(d, False), kind)
    sel, hi = ("0,1,0", "1,0,1") if n == 3 else ("0,1", "1,0")
    case(f"{name} v20, {regs} op_sel:[{sel}] op_sel_hi:[{hi}]", lambda d: oracle(d, True), kind)


def wide_half(x: np.ndarray) -> np.ndarray:
    return f16(x).astype(F64)


packed("v_pk_add_f16", np.add, wide_half, half_bits, 2, "pk16")
packed("v_pk_mul_f16", np.multiply, wide_half, half_bits, 2, "pk16")
packed("v_pk_fma_f16", lambda x, y, z: x * y + z, wide_half, half_bits, 3, "pk16")
packed("v_pk_min_f16", min_num, wide_half, half_bits, 2, "pk16")
packed("v_pk_max_f16", max_num, wide_half, half_bits, 2, "pk16")
packed(
    "v_pk_minimum3_f16",
    lambda x, y, z: nan_if(min_num(min_num(x, y), z), x, y, z),
    wide_half,
    half_bits,
    3,
    "pk16",
)
packed(
    "v_pk_maximum3_f16",
    lambda x, y, z: nan_if(max_num(max_num(x, y), z), x, y, z),
    wide_half,
    half_bits,
    3,
    "pk16",
)


def hu(x: np.ndarray) -> np.ndarray:
    return low16(x).astype(I64)


for name, g, convert, n in (
    ("v_pk_add_u16", lambda x, y: x + y, hu, 2),
    ("v_pk_sub_u16", lambda x, y: x - y, hu, 2),
    ("v_pk_add_i16", lambda x, y: x + y, h, 2),
    ("v_pk_sub_i16", lambda x, y: x - y, h, 2),
    ("v_pk_mul_lo_u16", lambda x, y: x * y, hu, 2),
    ("v_pk_mad_u16", lambda x, y, z: x * y + z, hu, 3),
    ("v_pk_mad_i16", lambda x, y, z: x * y + z, h, 3),
    ("v_pk_lshlrev_b16", lambda x, y: y << (x & 15), hu, 2),
    ("v_pk_lshrrev_b16", lambda x, y: y >> (x & 15), hu, 2),
    ("v_pk_ashrrev_i16", lambda x, y: y >> (x & 15), h, 2),
    ("v_pk_min_u16", np.minimum, hu, 2),
    ("v_pk_max_u16", np.maximum, hu, 2),
    ("v_pk_min_i16", np.minimum, h, 2),
    ("v_pk_max_i16", np.maximum, h, 2),
):
    packed(name, g, convert, lambda x: x & 0xFFFF, n, "bits")


def two(
    f: Callable[..., np.ndarray], *pairs: tuple[np.ndarray, np.ndarray]
) -> dict[str, np.ndarray]:
    return {"v0": bits(f(*(f32(p[0]) for p in pairs))), "v1": bits(f(*(f32(p[1]) for p in pairs)))}


case(
    "v_pk_add_f32 v[20:21], v[10:11], v[12:13]",
    lambda d: two(np.add, (d.a, d.a1), (d.b, d.b1)),
    "f32",
)
case(
    "v_pk_mul_f32 v[20:21], v[10:11], v[12:13] op_sel:[1,0] op_sel_hi:[0,1]",
    lambda d: two(np.multiply, (d.a1, d.a), (d.b, d.b1)),
    "f32",
)
case(
    "v_pk_mul_f32 v[20:21], v[10:11], v[12:13] neg_lo:[1,0] neg_hi:[0,1]",
    lambda d: {"v0": bits(-f32(d.a) * f32(d.b)), "v1": bits(f32(d.a1) * -f32(d.b1))},
    "f32",
)
case(
    "v_pk_fma_f32 v[20:21], v[10:11], v[12:13], v[14:15]",
    lambda d: two(fma32, (d.a, d.a1), (d.b, d.b1), (d.c, d.c1)),
    "f32",
)

case(
    "v_fma_mix_f32 v20, v10, v12, v14 op_sel:[1,0,0] op_sel_hi:[1,1,0]",
    lambda d: bits(fma32(f16(d.a >> 16).astype(F32), f16(d.b).astype(F32), f32(d.c))),
    "f32",
)
case(
    "v_fma_mixlo_f16 v20, v10, v12, v14 op_sel_hi:[1,1,1]",
    lambda d: join(half_bits(fma32(*(f16(x).astype(F32) for x in (d.a, d.b, d.c)))), d.old >> 16),
    "pk16",
)
case(
    "v_fma_mixhi_f16 v20, v10, v12, v14 op_sel_hi:[1,1,1]",
    lambda d: join(d.old, half_bits(fma32(*(f16(x).astype(F32) for x in (d.a, d.b, d.c))))),
    "pk16",
)


def dot2(convert: Callable[[np.ndarray], np.ndarray], d: Data, total: np.ndarray) -> np.ndarray:
    products = [convert(d.a >> k).astype(F64) * convert(d.b >> k).astype(F64) for k in (0, 16)]
    return bits((products[0] + products[1] + f32(total).astype(F64)).astype(F32))


case("v_dot2_f32_f16 v20, v10, v12, v14", lambda d: dot2(f16, d, d.c), "f32")
case("v_dot2_f32_bf16 v20, v10, v12, v14", lambda d: dot2(bf16, d, d.c), "f32")
case("v_dot2c_f32_f16_e32 v20, v10, v12", lambda d: dot2(f16, d, d.old), "f32")
case("v_dot2c_f32_bf16_e32 v20, v10, v12", lambda d: dot2(bf16, d, d.old), "f32")

# ---- Conversions ---------------------------------------------------------------------------------

case("v_cvt_i32_f32_e32 v20, v10", lambda d: bits(saturating(f32(d.a), -(2**31), 2**31 - 1)))
case("v_cvt_u32_f32_e32 v20, v10", lambda d: bits(saturating(f32(d.a), 0, 2**32 - 1)))
case(
    "v_cvt_rpi_i32_f32_e32 v20, v10",
    lambda d: bits(saturating(np.floor(f32(d.a).astype(F64) + 0.5), -(2**31), 2**31 - 1)),
)
case(
    "v_cvt_flr_i32_f32_e32 v20, v10",
    lambda d: bits(saturating(np.floor(f32(d.a)), -(2**31), 2**31 - 1)),
)
case("v_cvt_f32_i32_e32 v20, v10", lambda d: bits(i32(d.a).astype(F32)))
case("v_cvt_f32_u32_e32 v20, v10", lambda d: bits(d.a.astype(F32)))
for k in range(4):
    case(
        f"v_cvt_f32_ubyte{k}_e32 v20, v10", lambda d, k=k: bits((d.a >> (8 * k) & 255).astype(F32))
    )
case("v_cvt_f32_f16_e32 v20, v10", lambda d: bits(f16(d.a).astype(F32)), "f32")
case(
    "v_cvt_f32_f16_sdwa v20, v10 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1",
    lambda d: bits(f16(d.a >> 16).astype(F32)),
    "f32",
)
case("v_cvt_f32_bf16_e32 v20, v10", lambda d: bits(bf16(d.a).astype(F32)), "f32")
case("v_cvt_f16_f32_e32 v20, v10", lambda d: half_bits(f32(d.a)), "f16")
case("v_cvt_f16_u16_e32 v20, v10", lambda d: half_bits(low16(d.a)), "f16")
case("v_cvt_f16_i16_e32 v20, v10", lambda d: half_bits(low16(d.a).view(I16)), "f16")
case("v_cvt_u16_f16_e32 v20, v10", lambda d: bits(saturating(f16(d.a), 0, 65535)))
case("v_cvt_i16_f16_e32 v20, v10", lambda d: bits(saturating(f16(d.a), -32768, 32767) & 0xFFFF))
case("v_cvt_f64_f32_e32 v[20:21], v10", lambda d: pair(f32(d.a).astype(F64)), "f64")
case("v_cvt_f64_i32_e32 v[20:21], v10", lambda d: pair(i32(d.a).astype(F64)))
case("v_cvt_f64_u32_e32 v[20:21], v10", lambda d: pair(d.a.astype(F64)))
case("v_cvt_f32_f64_e32 v20, v[10:11]", lambda d: bits(d.d("a").astype(F32)), "f32")
case("v_cvt_i32_f64_e32 v20, v[10:11]", lambda d: bits(saturating(d.d("a"), -(2**31), 2**31 - 1)))
case("v_cvt_u32_f64_e32 v20, v[10:11]", lambda d: bits(saturating(d.d("a"), 0, 2**32 - 1)))


def bf16_bits(x: np.ndarray) -> np.ndarray:
    return x.astype(BF16).view(U16).astype(U32)


def toward_zero(x: np.ndarray) -> np.ndarray:
    near = x.astype(F16)
    away = np.abs(near.astype(F64)) > np.abs(x.astype(F64))
    return np.where(away & np.isfinite(x), near.view(U16) - 1, near.view(U16)).astype(U32)


case(
    "v_cvt_pk_bf16_f32 v20, v10, v12",
    lambda d: join(bf16_bits(f32(d.a)), bf16_bits(f32(d.b))),
    "bfpk",
)
case(
    "v_cvt_pk_f16_f32 v20, v10, v12",
    lambda d: join(half_bits(f32(d.a)), half_bits(f32(d.b))),
    "pk16",
)
case(
    "v_cvt_pkrtz_f16_f32 v20, v10, v12",
    lambda d: join(toward_zero(f32(d.a)), toward_zero(f32(d.b))),
    "pk16",
)


def unit(x: np.ndarray, low: int, k: int) -> np.ndarray:
    """Clipped to [low, 1], times k, rounded, low 16 bits; NaN counts as 0."""
    clipped = np.clip(np.nan_to_num(x, nan=0.0), low, 1).astype(F32)
    return np.rint(clipped * F32(k)).astype(I64) & 0xFFFF


case(
    "v_cvt_pknorm_i16_f32 v20, v10, v12",
    lambda d: join(unit(f32(d.a), -1, 32767), unit(f32(d.b), -1, 32767)),
)
case(
    "v_cvt_pknorm_u16_f32 v20, v10, v12",
    lambda d: join(unit(f32(d.a), 0, 65535), unit(f32(d.b), 0, 65535)),
)


def pack_byte(d: Data) -> np.ndarray:
    value = np.clip(np.rint(np.nan_to_num(f32(d.a).astype(F64), nan=0.0)), 0, 255).astype(I64)
    shift = 8 * u(d.b & 3)
    return bits((u(d.c) & ~(255 << shift)) | value << shift)


case("v_cvt_pk_u8_f32 v20, v10, v12, v14", pack_byte)


def encode(x: np.ndarray, dtype: type) -> np.ndarray:
    """One byte a value. Overflow gives fp8's NaN, bf8's infinity, fp4's largest value."""
    if dtype is FP4:
        x = np.clip(np.where(np.isnan(x), np.inf, x), -6, 6)
    code = x.astype(F32).astype(dtype).view(np.uint8).astype(U32)
    sign = np.where(np.signbit(x), 0x80, 0).astype(U32)
    return np.where(np.isnan(x), sign | 0x7F, code) if dtype is not FP4 else code


def byte_pair(x: np.ndarray, y: np.ndarray, dtype: type) -> np.ndarray:
    return encode(x, dtype) | encode(y, dtype) << 8


for name, dtype in (("fp8", FP8), ("bf8", BF8)):
    case(
        f"v_cvt_pk_{name}_f32 v20, v10, v12",
        lambda d, t=dtype: join(byte_pair(f32(d.a), f32(d.b), t), d.old >> 16),
        "nan8",
    )
    case(
        f"v_cvt_pk_{name}_f32 v20, v10, v12 op_sel:[0,0,1]",
        lambda d, t=dtype: join(d.old, byte_pair(f32(d.a), f32(d.b), t)),
        "nan8",
    )
    for k in range(4):
        case(
            f"v_cvt_f32_{name}_sdwa v20, v10 src0_sel:BYTE_{k}",
            lambda d, t=dtype, k=k: bits(
                (d.a >> (8 * k) & 255).astype(np.uint8).view(t).astype(F32)
            ),
            "f32",
        )
    case(
        f"v_cvt_f32_{name}_e32 v20, v10",
        lambda d, t=dtype: bits(d.a.astype(np.uint8).view(t).astype(F32)),
        "f32",
    )
    case(
        f"v_cvt_pk_f32_{name}_e32 v[20:21], v10",
        lambda d, t=dtype: {
            f"v{i}": bits((d.a >> 8 * i).astype(np.uint8).view(t).astype(F32)) for i in (0, 1)
        },
        "f32",
    )


def scale(d: Data, which: str) -> np.ndarray:
    exponent = (getattr(d, which) >> 23 & 255).astype(I64)
    return np.where(exponent == 255, np.nan, np.ldexp(1.0, exponent - 127))


for name, dtype in (("fp8", FP8), ("bf8", BF8)):
    case(
        f"v_cvt_scalef32_pk_{name}_f32 v20, v10, v12, v14",
        lambda d, t=dtype: join(
            byte_pair(f32(d.a) / scale(d, "c"), f32(d.b) / scale(d, "c"), t), d.old >> 16
        ),
        "nan8",
    )
    for half, get in (("f16", f16), ("bf16", bf16)):
        case(
            f"v_cvt_scalef32_pk_{name}_{half} v20, v10, v12 op_sel:[0,0,1]",
            lambda d, t=dtype, g=get: join(
                d.old,
                byte_pair(
                    g(d.a).astype(F64) / scale(d, "b"), g(d.a >> 16).astype(F64) / scale(d, "b"), t
                ),
            ),
            "nan8",
        )
    for to, out in (("f32", None), ("f16", half_bits), ("bf16", bf16_bits)):

        def widen(d: Data, t: type = dtype, out: Callable | None = out) -> object:
            s32 = scale(d, "b").astype(F32)
            x, y = ((d.a >> k).astype(np.uint8).view(t).astype(F32) * s32 for k in (16, 24))
            return {"v0": bits(x), "v1": bits(y)} if out is None else join(out(x), out(y))

        result = "v[20:21]" if out is None else "v20"
        kind = {"f32": "f32", "f16": "pk16", "bf16": "bfpk"}[to]
        case(f"v_cvt_scalef32_pk_{to}_{name} {result}, v10, v12 op_sel:[1,0]", widen, kind)


def fp4_pair(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return encode(x, FP4) & 15 | (encode(y, FP4) & 15) << 4


def put_byte(old: np.ndarray, value: np.ndarray, k: int) -> np.ndarray:
    return old & U32(0xFFFFFFFF ^ 0xFF << 8 * k) | value << U32(8 * k)


def number(x: np.ndarray) -> np.ndarray:
    """fp4 has no NaN: it becomes the largest value."""
    return np.where(np.isnan(x), np.inf, x)


case(
    "v_cvt_scalef32_pk_fp4_f32 v20, v10, v12, v14 op_sel:[0,0,0,1]",
    lambda d: put_byte(
        d.old, fp4_pair(number(f32(d.a) / scale(d, "c")), number(f32(d.b) / scale(d, "c"))), 2
    ),
)
for half, get in (("f16", f16), ("bf16", bf16)):
    case(
        f"v_cvt_scalef32_pk_fp4_{half} v20, v10, v12 op_sel:[0,0,1,0]",
        lambda d, g=get: put_byte(
            d.old,
            fp4_pair(
                number(g(d.a).astype(F64) / scale(d, "b")),
                number(g(d.a >> 16).astype(F64) / scale(d, "b")),
            ),
            1,
        ),
    )
for to, out in (("f32", None), ("f16", half_bits), ("bf16", bf16_bits)):

    def widen4(d: Data, out: Callable | None = out) -> object:
        s32 = scale(d, "b").astype(F32)
        x, y = ((d.a >> k & 15).astype(np.uint8).view(FP4).astype(F32) * s32 for k in (8, 12))
        return {"v0": bits(x), "v1": bits(y)} if out is None else join(out(x), out(y))

    result = "v[20:21]" if out is None else "v20"
    kind = {"f32": "f32", "f16": "pk16", "bf16": "bfpk"}[to]
    case(f"v_cvt_scalef32_pk_{to}_fp4 {result}, v10, v12 op_sel:[1,0,0]", widen4, kind)

# ---- Compares ------------------------------------------------------------------------------------

FLOAT_TESTS = {
    "f": lambda x, y: np.zeros(len(x), bool),
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "lg": lambda x, y: (x < y) | (x > y),
    "ge": np.greater_equal,
    "o": lambda x, y: ~(np.isnan(x) | np.isnan(y)),
    "u": lambda x, y: np.isnan(x) | np.isnan(y),
    "nge": lambda x, y: ~(x >= y),
    "nlg": lambda x, y: ~((x < y) | (x > y)),
    "ngt": lambda x, y: ~(x > y),
    "nle": lambda x, y: ~(x <= y),
    "neq": np.not_equal,
    "nlt": lambda x, y: ~(x < y),
    "tru": lambda x, y: np.ones(len(x), bool),
}
INT_TESTS = {name: FLOAT_TESTS[name] for name in ("f", "lt", "eq", "le", "gt", "ge")} | {
    "ne": np.not_equal,
    "t": FLOAT_TESTS["tru"],
}
TYPES: dict[str, tuple[str, Callable[[Data, str], np.ndarray]]] = {
    "f16": ("v10, v12", lambda d, n: f16(getattr(d, n))),
    "f32": ("v10, v12", lambda d, n: f32(getattr(d, n))),
    "f64": ("v[10:11], v[12:13]", lambda d, n: d.d(n)),
    "i16": ("v10, v12", lambda d, n: h(getattr(d, n))),
    "u16": ("v10, v12", lambda d, n: hu(getattr(d, n))),
    "i32": ("v10, v12", lambda d, n: s(getattr(d, n))),
    "u32": ("v10, v12", lambda d, n: u(getattr(d, n))),
    "i64": ("v[10:11], v[12:13]", lambda d, n: d.q(n).view(I64)),
    "u64": ("v[10:11], v[12:13]", lambda d, n: d.q(n)),
}
for kind, (regs, get) in TYPES.items():
    for test, f in (FLOAT_TESTS if kind[0] == "f" else INT_TESTS).items():
        oracle = lambda d, f=f, get=get: to_mask(f(get(d, "a"), get(d, "b")))  # noqa: E731
        case(f"v_cmp_{test}_{kind}_e64 s[20:21], {regs}", oracle)
        case(
            f"v_cmpx_{test}_{kind}_e64 s[20:21], {regs}\n"
            "s_mov_b64 s[20:21], exec\n s_mov_b64 exec, -1",
            oracle,
        )


def classes(d: Data) -> dict[str, np.ndarray]:
    x, want = f32(d.a), d.b
    tiny = np.abs(x) < 2.0**-126
    quiet = (d.a >> 22 & 1).astype(bool)
    negative = np.signbit(x)
    members = [
        np.isnan(x) & ~quiet,
        np.isnan(x) & quiet,
        np.isneginf(x),
        np.isfinite(x) & ~tiny & negative,
        tiny & (x != 0) & negative,
        (x == 0) & negative,
        (x == 0) & ~negative,
        tiny & (x != 0) & ~negative,
        np.isfinite(x) & ~tiny & ~negative,
        np.isposinf(x),
    ]
    return to_mask(
        np.logical_or.reduce([m & (want >> k & 1).astype(bool) for k, m in enumerate(members)])
    )


case("v_cmp_class_f32_e64 s[20:21], v10, v12", classes)

# ---- Division steps: together the quotient, within 1 ulp (denormals are rounded twice) -----------

DIVIDE = """v_div_scale_f32 v30, s[30:31], v12, v12, v10
v_div_scale_f32 v31, vcc, v10, v12, v10
v_rcp_f32_e32 v32, v30
v_fma_f32 v33, -v30, v32, 1.0
v_fma_f32 v32, v33, v32, v32
v_mul_f32_e32 v33, v31, v32
v_fma_f32 v34, -v30, v33, v31
v_fma_f32 v33, v34, v32, v33
v_fma_f32 v30, -v30, v33, v31
v_div_fmas_f32 v30, v30, v32, v33
v_div_fixup_f32 v20, v30, v12, v10"""
for part in ("v_div_scale_f32", "v_div_fmas_f32", "v_div_fixup_f32"):
    CASES[part] = [Case(DIVIDE, lambda d: bits(f32(d.a) / f32(d.b)), "ulp")]

# ---- Lanes ---------------------------------------------------------------------------------------


def by_wave(x: np.ndarray) -> np.ndarray:
    return x.reshape(WAVES, LANES)


def dpp(d: Data, source: Callable[[int], int | None], keep: bool) -> np.ndarray:
    """b + a moved; a lane without a source adds 0 (bound_ctrl) or keeps the old result."""
    a, b, old = by_wave(d.a), by_wave(d.b), by_wave(d.old)
    out = np.empty_like(a)
    for lane in range(LANES):
        at = source(lane)
        if at is None:
            out[:, lane] = old[:, lane] if keep else b[:, lane]
        else:
            out[:, lane] = a[:, at] + b[:, lane]
    return out.ravel()


def row(lane: int, x: int) -> int | None:
    return lane & ~15 | x if 0 <= x < 16 else None


for control, source in {
    "quad_perm:[3,0,1,1]": lambda n: n & ~3 | (3, 0, 1, 1)[n & 3],
    "row_shl:3": lambda n: row(n, (n & 15) + 3),
    "row_shr:5": lambda n: row(n, (n & 15) - 5),
    "row_ror:7": lambda n: n & ~15 | (n - 7) & 15,
    "wave_shl:1": lambda n: n + 1 if n < 63 else None,
    "wave_rol:1": lambda n: (n + 1) & 63,
    "wave_shr:1": lambda n: n - 1 if n else None,
    "wave_ror:1": lambda n: (n - 1) & 63,
    "row_mirror": lambda n: n ^ 15,
    "row_half_mirror": lambda n: n ^ 7,
    "row_bcast:15": lambda n: (n & ~15) - 1 if n >= 16 else None,
    "row_bcast:31": lambda n: 31 if n >= 32 else None,
    "row_newbcast:6": lambda n: n & ~15 | 6,
}.items():
    for bound in ("", " bound_ctrl:0"):
        case(
            f"v_add_u32_dpp v20, v10, v12 {control} row_mask:0xf bank_mask:0xf{bound}",
            lambda d, f=source, keep=not bound: dpp(d, f, keep),
        )
case(
    "v_mov_b32_dpp v20, v10 quad_perm:[0,1,2,3] row_mask:0x5 bank_mask:0xe",
    lambda d: np.where(
        np.tile(((np.arange(64) >> 4) % 2 == 0) & ((np.arange(64) >> 2 & 3) != 0), WAVES),
        d.a,
        d.old,
    ),
)
case("v_readfirstlane_b32 s20, v10", lambda d: {"s0": np.repeat(by_wave(d.a)[:, 0], LANES)})
case("v_readlane_b32 s20, v10, 37", lambda d: {"s0": np.repeat(by_wave(d.a)[:, 37], LANES)})
case(
    "v_writelane_b32 v20, s10, 9",
    lambda d: np.where(np.tile(np.arange(64) == 9, WAVES), U32(0x5A5A1234), d.old),
)
case(
    "v_mov_b32_e32 v30, v10\n v_swap_b32 v20, v30\n v_mov_b32_e32 v21, v30",
    lambda d: {"v0": d.a, "v1": d.old},
)
CASES["v_swap_b32"] = [CASES["v_mov_b32"].pop()]


def swap(d: Data, size: int) -> dict[str, np.ndarray]:
    old, other = by_wave(d.old).copy(), by_wave(d.a).copy()
    for start in range(0, 64, 2 * size):
        upper, lower = slice(start + size, start + 2 * size), slice(start, start + size)
        old[:, upper], other[:, lower] = other[:, lower].copy(), old[:, upper].copy()
    return {"v0": old.ravel(), "v1": other.ravel()}


for size in (16, 32):
    CASES[f"v_permlane{size}_swap_b32"] = [
        Case(
            f"v_mov_b32_e32 v30, v10\n s_nop 1\n v_permlane{size}_swap_b32_e32 v20, v30\n"
            "s_nop 1\n v_mov_b32_e32 v21, v30",
            lambda d, n=size: swap(d, n),
        )
    ]

# ---- Running -------------------------------------------------------------------------------------

ALL = [(name, item) for name, items in CASES.items() for item in items]


@pytest.fixture(scope="module")
def results() -> tuple[Data, np.ndarray]:
    """Inputs, and per case an array [4 dwords, lanes]; everything runs in one launch."""
    inputs = np.stack([words(WAVES * LANES, seed) for seed in range(8)], axis=1)
    body = PROLOGUE.format(stride=0x400 * len(ALL)) + "v_accvgpr_write_b32 a4, v10\n s_nop 4\n"
    body += "".join(STEP.format(text=item.text) for _, item in ALL) + "s_endpgm\n"
    source = torch.from_numpy(inputs.view(I32).copy())
    out = torch.zeros(WAVES, len(ALL), LANES, 4, dtype=torch.int32)
    Emulator(gfx950()).launch(assemble(body), "kernel", (WAVES, 1, 1), (LANES, 1, 1), source, out)
    got = out.numpy().view(U32).transpose(1, 3, 0, 2).reshape(len(ALL), 4, -1)
    return Data(*inputs.T.copy()), got


def agree(got: np.ndarray, want: np.ndarray, kind: str) -> np.ndarray:
    want = want.astype(U32)
    if kind == "bfpk":  # two bf16
        nans = [((x >> s & 0x7FFF) > 0x7F80) for x in (got, want) for s in (0, 16)]
        low = ((got ^ want) & 0xFFFF == 0) | nans[0] & nans[2]
        return low & (((got ^ want) >> 16 == 0) | nans[1] & nans[3])
    if kind == "nan8":  # bytes; the sign of a NaN is free
        return (got & 0x7F7F7F7F) == (want & 0x7F7F7F7F)
    if kind == "trig":  # the chip's own error is larger; NaN marks arguments left out
        return np.isnan(f32(want)) | (np.abs(f32(got) - f32(want)) < 2e-7)
    return same(got, want, kind)


@pytest.mark.parametrize(
    "index", range(len(ALL)), ids=[item.text.split("\n")[0] for _, item in ALL]
)
def test_instruction(results: tuple[Data, np.ndarray], index: int) -> None:
    data, got = results
    item = ALL[index][1]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        want = item.oracle(data)
    if not isinstance(want, dict):
        want = {"v0": want}
    if item.kind == "f64":
        pair64 = got[index, 0].astype(U64) | got[index, 1].astype(U64) << np.uint64(32)
        expected = want["v0"].astype(U64) | want["v1"].astype(U64) << np.uint64(32)
        nan = np.isnan(pair64.view(F64)) & np.isnan(expected.view(F64))
        wrong = ~((pair64 == expected) | nan)
    else:
        rows = {"v0": 0, "v1": 1, "s0": 2, "s1": 3}
        wrong = np.zeros(WAVES * LANES, bool)
        for part, expected in want.items():
            wrong |= ~agree(got[index, rows[part]], expected, item.kind)
    if wrong.any():
        k = int(np.flatnonzero(wrong)[0])
        pytest.fail(
            f"{wrong.sum()} of {wrong.size} lanes differ; first a={data.a[k]:#x} "
            f"a1={data.a1[k]:#x} b={data.b[k]:#x} c={data.c[k]:#x} old={data.old[k]:#x}: got "
            f"{[hex(x) for x in got[index, :, k]]}, "
            f"want { {n: hex(w[k]) for n, w in want.items()} }"
        )


def test_every_vector_opcode_is_covered() -> None:
    from dsv41_kernels.emulator import core

    modelled = {name for name in core.opcodes() if name.startswith("v_") and "mfma" not in name}
    assert modelled - set(CASES) - {"v_nop"} == set()
