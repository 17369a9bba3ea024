"""Every matrix instruction against numpy: layouts exactly, on small integers; sums within bounds.

The layouts come from AMD's CDNA4 instruction set manual: lane l of A holds row l mod n, lane l of B
column l mod n, each a run of consecutive k chosen by l div n.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from assemble import assemble
from dsv41_kernels.emulator import Emulator, UninitializedRead, gfx950
from oracle import BF6, BF8, BF16, F16, F32, FP4, FP6, FP8, I32, U32

LANES = 64
FORMATS: dict[str, tuple[type, int]] = {
    "f32": (F32, 32),
    "f16": (F16, 16),
    "bf16": (BF16, 16),
    "fp8": (FP8, 8),
    "bf8": (BF8, 8),
    "fp6": (FP6, 6),
    "bf6": (BF6, 6),
    "fp4": (FP4, 4),
    "i8": (np.int8, 8),
}
CODES = {"fp8": 0, "bf8": 1, "fp6": 2, "bf6": 3, "fp4": 4}


def pack(values: np.ndarray, fmt: str) -> np.ndarray:
    """[lanes, elements] values to [lanes, registers] words, low bits first."""
    dtype, width = FORMATS[fmt]
    codes = values.astype(dtype).view({32: U32, 16: np.uint16}.get(width, np.uint8))
    bits = (codes.astype(np.uint64)[..., None] >> np.arange(width, dtype=np.uint64)) & np.uint64(1)
    flat = bits.reshape(LANES, -1, 32).astype(U32)
    return (flat << np.arange(32, dtype=U32)).sum(axis=2, dtype=U32)


def lane_view(matrix: np.ndarray, fmt: str, split: bool) -> np.ndarray:
    """[n, k] rows of A (or columns of B) to [lanes, elements] in register order."""
    n, depth = matrix.shape
    groups = LANES // n
    if split and FORMATS[fmt][1] == 8:  # two runs of 16, half of k apart
        runs = matrix.reshape(n, 2, groups, 16).transpose(2, 0, 1, 3)
    else:
        runs = matrix.reshape(n, groups, depth // groups).transpose(1, 0, 2)
    return runs.reshape(LANES, -1)


def result_matrix(registers: np.ndarray, n: int) -> np.ndarray:
    """[lanes, n * n / 64] accumulator registers to the [n, n] result."""
    out = np.zeros((n, n), registers.dtype)
    for lane in range(LANES):
        for r in range(registers.shape[1]):
            row = 4 * (lane // 16) + r if n == 16 else 8 * (r // 4) + 4 * (lane // 32) + r % 4
            out[row, lane % n] = registers[lane, r]
    return out


def accumulator(matrix: np.ndarray, n: int) -> np.ndarray:
    """Inverse of result_matrix."""
    count = n * n // LANES
    index = result_matrix(np.arange(LANES * count).reshape(LANES, count), n)
    out = np.zeros(LANES * count, matrix.dtype)
    out[index.ravel()] = matrix.ravel()
    return out.reshape(LANES, count)


def run(
    op: str,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    tail: str = "",
    scales: np.ndarray | None = None,
    agpr: bool = False,
) -> np.ndarray:
    """One matrix instruction; a, b, c as [lanes, registers]. Returns the result's registers."""
    widths = [a.shape[1], b.shape[1], c.shape[1]]
    starts = [64, 80, 32]
    source = np.concatenate([a, b, c] + ([scales] if scales is not None else []), axis=1)
    stride = 4 * source.shape[1]
    body = f"s_load_dwordx4 s[4:7], s[0:1], 0x0\nv_mul_u32_u24_e32 v1, {stride}, v0\n"
    body += f"v_mul_u32_u24_e32 v2, {4 * widths[2]}, v0\ns_waitcnt lgkmcnt(0)\n"
    registers = [s + k for s, w in zip(starts, widths, strict=True) for k in range(w)]
    registers += [10, 11][: source.shape[1] - len(registers)]
    for k, register in enumerate(registers):
        body += f"global_load_dword v{register}, v1, s[4:5] offset:{4 * k}\n"
    body += "s_waitcnt vmcnt(0)\n"
    c_reg = f"v[32:{31 + widths[2]}]"
    if agpr:
        for k in range(widths[2]):
            body += f"v_accvgpr_write_b32 a{32 + k}, v{32 + k}\n"
        c_reg = c_reg.replace("v", "a")
    names = [
        f"v[{s}:{s + w - 1}]" if w > 1 else f"v{s}" for s, w in zip(starts, widths, strict=True)
    ]
    extra = ", v10, v11" if scales is not None else ""
    body += (
        f"s_nop 7\n{op} {c_reg}, {names[0]}, {names[1]}, {c_reg}{extra} {tail}\ns_nop 15\ns_nop 7\n"
    )
    for k in range(widths[2]):
        if agpr:
            body += f"v_accvgpr_read_b32 v{32 + k}, a{32 + k}\n"
        body += f"global_store_dword v2, v{32 + k}, s[6:7] offset:{4 * k}\n"
    x = torch.from_numpy(source.astype(U32).view(I32).copy())
    out = torch.zeros(LANES, widths[2], dtype=torch.int32)
    Emulator(gfx950()).launch(
        assemble(body + "s_endpgm\n"), "kernel", (1, 1, 1), (64, 1, 1), x, out
    )
    return out.numpy()


PLAIN = {
    "v_mfma_f32_16x16x4_f32": (16, 4, "f32", "f32"),
    "v_mfma_f32_32x32x2_f32": (32, 2, "f32", "f32"),
    "v_mfma_f32_16x16x16_f16": (16, 16, "f16", "f16"),
    "v_mfma_f32_32x32x8_f16": (32, 8, "f16", "f16"),
    "v_mfma_f32_16x16x32_f16": (16, 32, "f16", "f16"),
    "v_mfma_f32_32x32x16_f16": (32, 16, "f16", "f16"),
    "v_mfma_f32_16x16x16_bf16": (16, 16, "bf16", "bf16"),
    "v_mfma_f32_32x32x8_bf16": (32, 8, "bf16", "bf16"),
    "v_mfma_f32_16x16x32_bf16": (16, 32, "bf16", "bf16"),
    "v_mfma_f32_32x32x16_bf16": (32, 16, "bf16", "bf16"),
    "v_mfma_i32_16x16x32_i8": (16, 32, "i8", "i8"),
    "v_mfma_i32_32x32x16_i8": (32, 16, "i8", "i8"),
    "v_mfma_i32_16x16x64_i8": (16, 64, "i8", "i8"),
    "v_mfma_i32_32x32x32_i8": (32, 32, "i8", "i8"),
}
for _a in ("fp8", "bf8"):
    for _b in ("fp8", "bf8"):
        PLAIN[f"v_mfma_f32_16x16x32_{_a}_{_b}"] = (16, 32, _a, _b)
        PLAIN[f"v_mfma_f32_32x32x16_{_a}_{_b}"] = (32, 16, _a, _b)
SMALL = np.array([-3, -2, -1, 0, 1, 2, 3, 4])  # exact in every format


def operands(rng: np.random.Generator, n: int, depth: int) -> tuple[np.ndarray, ...]:
    return (
        rng.choice(SMALL, (n, depth)).astype(F32),
        rng.choice(SMALL, (n, depth)).astype(F32),  # B transposed: [column, k]
        rng.integers(-100, 100, (n, n)).astype(F32),
    )


@pytest.mark.parametrize("agpr", [False, True])
@pytest.mark.parametrize("op", PLAIN)
def test_layout_is_exact(op: str, agpr: bool) -> None:
    n, depth, fa, fb = PLAIN[op]
    a, b, c = operands(np.random.default_rng(1), n, depth)
    kind = I32 if fa == "i8" else F32
    got = run(
        op,
        pack(lane_view(a, fa, False), fa),
        pack(lane_view(b, fb, False), fb),
        accumulator(c.astype(kind), n).view(U32),
        agpr=agpr,
    )
    want = a @ b.T + c
    assert np.array_equal(result_matrix(got.view(kind), n).astype(F32), want)


SCALED = {
    "v_mfma_f32_16x16x128_f8f6f4": (16, 128, False),
    "v_mfma_f32_32x32x64_f8f6f4": (32, 64, False),
    "v_mfma_scale_f32_16x16x128_f8f6f4": (16, 128, True),
    "v_mfma_scale_f32_32x32x64_f8f6f4": (32, 64, True),
}


@pytest.mark.parametrize("fb", CODES)
@pytest.mark.parametrize("fa", CODES)
@pytest.mark.parametrize("op", SCALED)
def test_low_precision(op: str, fa: str, fb: str) -> None:
    n, depth, scaled = SCALED[op]
    rng = np.random.default_rng(2)
    a, b, c = operands(rng, n, depth)
    tail = f"cbsz:{CODES[fa]} blgp:{CODES[fb]}"
    scales, factors = None, [np.ones((n, depth // 32))] * 2
    if scaled:
        exponents = rng.integers(-3, 4, (2, n, depth // 32))
        factors = [np.exp2(e) for e in exponents]
        # Lane l scales row l mod n, block l div n; byte 2 for A, byte 1 for B.
        codes = (exponents + 127).transpose(0, 2, 1).reshape(2, LANES).astype(U32)
        scales = np.stack([codes[0] << 16 | 0x77, codes[1] << 8 | 0x66000000], axis=1)
        tail = f"op_sel:[0,1,0] op_sel_hi:[1,0,0] {tail}"
    got = run(
        op,
        pack(lane_view(a, fa, True), fa),
        pack(lane_view(b, fb, True), fb),
        accumulator(c, n).view(U32),
        tail,
        scales,
    )
    wide_a = a * np.repeat(factors[0], 32, axis=1)
    wide_b = b * np.repeat(factors[1], 32, axis=1)
    want = (wide_a @ wide_b.T + c).astype(F32)
    assert np.array_equal(result_matrix(got.view(F32), n), want)


@pytest.mark.parametrize(
    "op", ["v_mfma_f32_16x16x32_bf16", "v_mfma_f32_32x32x16_f16", "v_mfma_f32_16x16x4_f32"]
)
def test_sum_error_is_bounded(op: str) -> None:
    """Any summation order keeps |error| under depth * 2^-23 * sum |a b|; so must this one."""
    n, depth, fa, _ = PLAIN[op]
    rng = np.random.default_rng(3)
    dtype = FORMATS[fa][0]
    a, b = (rng.standard_normal((n, depth)).astype(dtype).astype(F32) for _ in range(2))
    c = rng.standard_normal((n, n)).astype(F32)
    got = run(
        op,
        pack(lane_view(a, fa, False), fa),
        pack(lane_view(b, fa, False), fa),
        accumulator(c, n).view(U32),
    )
    exact = a.astype(np.float64) @ b.T.astype(np.float64) + c
    bound = (depth + 1) * 2.0**-23 * (np.abs(a).astype(np.float64) @ np.abs(b).T + np.abs(c))
    assert (np.abs(result_matrix(got.view(F32), n) - exact) <= bound).all()


def test_unwritten_row_spoils_only_its_results() -> None:
    """Row 3 of A is never written: storing another row's result is fine, storing row 3's is not."""
    text = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_and_b32_e32 v1, 15, v0
v_cmp_ne_u32_e32 vcc, 3, v1
v_lshlrev_b32_e32 v2, 2, v0
v_mov_b32_e32 v9, 1.0
s_mov_b64 exec, vcc
v_mov_b32_e32 v8, 1.0
s_mov_b64 exec, -1
s_waitcnt lgkmcnt(0)
v_mfma_f32_16x16x4_f32 v[12:15], v8, v9, 0
s_nop 15
global_store_dword v2, v{register}, s[6:7]
s_endpgm
"""
    out = torch.zeros(64)
    machine = Emulator(gfx950())
    machine.launch(assemble(text.format(register=14)), "kernel", (1, 1, 1), (64, 1, 1), out, out)
    assert (out == 4).all()
    with pytest.raises(UninitializedRead, match="v15"):
        machine.launch(
            assemble(text.format(register=15)), "kernel", (1, 1, 1), (64, 1, 1), out, out
        )


def test_every_matrix_opcode_is_covered() -> None:
    from dsv41_kernels.emulator import core

    assert {name for name in core.opcodes() if "mfma" in name} == set(PLAIN) | set(SCALED)
