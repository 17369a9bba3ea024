"""Every scalar ALU instruction against Python integers, and branches by what they reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from assemble import assemble
from dsv41_kernels.emulator import Emulator, InvalidOperation, UnsupportedInstruction, gfx950
from oracle import EDGES

M32, M64 = 2**32 - 1, 2**64 - 1
GROUPS = 96


@dataclass
class In:
    """One workgroup's inputs: a, b and the old result as 64-bit numbers, SCC and EXEC."""

    a: int
    b: int
    old: int
    scc: int
    exec: int

    @property
    def a32(self) -> int:
        return self.a & M32

    @property
    def b32(self) -> int:
        return self.b & M32

    @property
    def old32(self) -> int:
        return self.old & M32


@dataclass
class Out:
    """Expected results; None where the instruction leaves the value as it was."""

    value: int | None = None
    scc: int | bool | None = None
    exec: int | None = None
    wide: bool = False


CASES: dict[str, list[tuple[str, Callable[[In], Out]]]] = {}


def case(text: str, oracle: Callable[[In], Out]) -> None:
    CASES.setdefault(text.split()[0], []).append((text, oracle))


def signed(x: int, width: int = 32) -> int:
    return x - (1 << width) if x >> (width - 1) & 1 else x


def s32(
    op: str,
    f: Callable[[int, int, In], int],
    scc: Callable[..., int] | None = None,
    sign: bool = False,
) -> None:
    """A 32-bit binary operation; `scc` maps (a, b, unwrapped result) to SCC."""

    def oracle(x: In) -> Out:
        a, b = (signed(x.a32), signed(x.b32)) if sign else (x.a32, x.b32)
        r = f(a, b, x)
        return Out(r & M32, None if scc is None else scc(a, b, r))

    case(f"{op} s20, s10, s12", oracle)


def s64(op: str, f: Callable[[int, int, In], int], scc: bool, second: str = "s[12:13]") -> None:
    def oracle(x: In) -> Out:
        r = f(x.a, x.b, x) & M64
        return Out(r, r != 0 if scc else None, wide=True)

    case(f"{op} s[20:21], s[10:11], {second}", oracle)


def overflow(a: int, b: int, r: int) -> int:
    return not -(2**31) <= r < 2**31


def carry(a: int, b: int, r: int) -> int:
    return not 0 <= r <= M32


def nonzero(a: int, b: int, r: int) -> int:
    return r & M32 != 0


def field(value: int, spec: int, width: int, sign: bool) -> int:
    offset, count = spec & (width - 1), spec >> 16 & 0x7F
    count = min(count, width - offset) if sign or count < width else width - offset
    x = value >> offset & ((1 << count) - 1)
    return signed(x, count) if sign and count else x


s32("s_add_u32", lambda a, b, x: a + b, carry)
s32("s_sub_u32", lambda a, b, x: a - b, carry)
s32("s_add_i32", lambda a, b, x: a + b, overflow, sign=True)
s32("s_sub_i32", lambda a, b, x: a - b, overflow, sign=True)
s32("s_addc_u32", lambda a, b, x: a + b + x.scc, carry)
s32("s_subb_u32", lambda a, b, x: a - b - x.scc, carry)
s32("s_min_i32", lambda a, b, x: min(a, b), lambda a, b, r: a < b, sign=True)
s32("s_max_i32", lambda a, b, x: max(a, b), lambda a, b, r: a > b, sign=True)
s32("s_min_u32", lambda a, b, x: min(a, b), lambda a, b, r: a < b)
s32("s_max_u32", lambda a, b, x: max(a, b), lambda a, b, r: a > b)
s32("s_absdiff_i32", lambda a, b, x: abs(a - b), nonzero, sign=True)
s32("s_lshl_b32", lambda a, b, x: a << (b & 31), nonzero)
s32("s_lshr_b32", lambda a, b, x: a >> (b & 31), nonzero)
s32("s_ashr_i32", lambda a, b, x: a >> (b & 31), nonzero, sign=True)
s32("s_bfe_u32", lambda a, b, x: field(a, b, 32, False), nonzero)
s32("s_bfe_i32", lambda a, b, x: field(a & M32, b, 32, True), nonzero)
for k in range(1, 5):
    s32(f"s_lshl{k}_add_u32", lambda a, b, x, k=k: (a << k) + b, lambda a, b, r: r > M32)
s32("s_mul_i32", lambda a, b, x: a * b)
s32("s_mul_hi_u32", lambda a, b, x: a * b >> 32)
s32("s_mul_hi_i32", lambda a, b, x: a * b >> 32, sign=True)
s32("s_bfm_b32", lambda a, b, x: ((1 << (a & 31)) - 1) << (b & 31))
s32("s_pack_ll_b32_b16", lambda a, b, x: a & 0xFFFF | b << 16)
s32("s_pack_lh_b32_b16", lambda a, b, x: a & 0xFFFF | b & 0xFFFF0000)
s32("s_pack_hh_b32_b16", lambda a, b, x: a >> 16 | b & 0xFFFF0000)
s32("s_cselect_b32", lambda a, b, x: a if x.scc else b)
LOGIC: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
for name, f in LOGIC.items():
    s32(f"s_{name}_b32", lambda a, b, x, f=f: f(a, b), nonzero)
    s64(f"s_{name}_b64", lambda a, b, x, f=f: f(a, b), True)
s64("s_cselect_b64", lambda a, b, x: a if x.scc else b, False)
s64("s_lshl_b64", lambda a, b, x: a << (b & 63), True, "s12")
s64("s_lshr_b64", lambda a, b, x: a >> (b & 63), True, "s12")
s64("s_ashr_i64", lambda a, b, x: signed(a, 64) >> (b & 63), True, "s12")
s64("s_bfe_u64", lambda a, b, x: field(a, b & M32, 64, False), True, "s12")
s64("s_bfe_i64", lambda a, b, x: field(a, b & M32, 64, True), True, "s12")
case(
    "s_bfm_b64 s[20:21], s10, s12",
    lambda x: Out(((1 << (x.a & 63)) - 1) << (x.b & 63) & M64, wide=True),
)


def unary(
    op: str, f: Callable[[int], int], scc: bool = False, source: int = 32, result: int = 32
) -> None:
    regs = ["s20" if result == 32 else "s[20:21]", "s10" if source == 32 else "s[10:11]"]

    def oracle(x: In) -> Out:
        r = f(x.a32 if source == 32 else x.a) & ((1 << result) - 1)
        return Out(r, r != 0 if scc else None, wide=result == 64)

    case(f"{op} {', '.join(regs)}", oracle)


def leading(x: int, width: int) -> int:
    return width - x.bit_length() if x else -1


def trailing(x: int) -> int:
    return (x & -x).bit_length() - 1


unary("s_mov_b32", lambda a: a)
unary("s_mov_b64", lambda a: a, source=64, result=64)
unary("s_not_b32", lambda a: ~a, True)
unary("s_not_b64", lambda a: ~a, True, 64, 64)
unary("s_brev_b32", lambda a: int(f"{a:032b}"[::-1], 2))
unary("s_brev_b64", lambda a: int(f"{a:064b}"[::-1], 2), source=64, result=64)
unary("s_abs_i32", lambda a: abs(signed(a)), True)
unary("s_sext_i32_i8", lambda a: signed(a & 0xFF, 8))
unary("s_sext_i32_i16", lambda a: signed(a & 0xFFFF, 16))
unary("s_bcnt0_i32_b32", lambda a: 32 - a.bit_count(), True)
unary("s_bcnt1_i32_b32", lambda a: a.bit_count(), True)
unary("s_bcnt0_i32_b64", lambda a: 64 - a.bit_count(), True, 64)
unary("s_bcnt1_i32_b64", lambda a: a.bit_count(), True, 64)
unary("s_ff0_i32_b32", lambda a: trailing(~a & M32))
unary("s_ff1_i32_b32", trailing)
unary("s_ff1_i32_b64", trailing, source=64)
unary("s_flbit_i32_b32", lambda a: leading(a, 32))
unary("s_flbit_i32_b64", lambda a: leading(a, 64), source=64)
unary("s_flbit_i32", lambda a: leading(~a & M32 if a >> 31 else a, 32))
case("s_cmov_b32 s20, s10", lambda x: Out(x.a32 if x.scc else x.old32))
case("s_cmov_b64 s[20:21], s[10:11]", lambda x: Out(x.a if x.scc else x.old, wide=True))
case("s_bitset0_b32 s20, s10", lambda x: Out(x.old32 & ~(1 << (x.a & 31))))
case("s_bitset1_b32 s20, s10", lambda x: Out(x.old32 | 1 << (x.a & 31)))
case("s_movk_i32 s20, -5", lambda x: Out(-5 & M32))
case("s_cmovk_i32 s20, 77", lambda x: Out(77 if x.scc else x.old32))
case("s_mulk_i32 s20, -3", lambda x: Out(x.old32 * -3 & M32))
case(
    "s_addk_i32 s20, 0x7fff",
    lambda x: Out(x.old32 + 0x7FFF & M32, overflow(0, 0, signed(x.old32) + 0x7FFF)),
)

SAVES: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, e: a & e,
    "or": lambda a, e: a | e,
    "xor": lambda a, e: a ^ e,
    "andn2": lambda a, e: a & ~e,
    "orn2": lambda a, e: a | ~e,
    "andn1": lambda a, e: ~a & e,
}
for name, f in SAVES.items():

    def save(x: In, f: Callable[[int, int], int] = f) -> Out:
        r = f(x.a, x.exec) & M64
        return Out(x.exec, r != 0, r, wide=True)

    case(f"s_{name}_saveexec_b64 s[20:21], s[10:11]", save)

COMPARES: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}
for name, f in COMPARES.items():
    case(f"s_cmp_{name}_i32 s10, s12", lambda x, f=f: Out(scc=f(signed(x.a32), signed(x.b32))))
    case(f"s_cmp_{name}_u32 s10, s12", lambda x, f=f: Out(scc=f(x.a32, x.b32)))
    case(f"s_cmpk_{name}_i32 s10, -2", lambda x, f=f: Out(scc=f(signed(x.a32), -2)))
    case(f"s_cmpk_{name}_u32 s10, 0xfffe", lambda x, f=f: Out(scc=f(x.a32, 0xFFFE)))
case("s_cmp_eq_u64 s[10:11], s[12:13]", lambda x: Out(scc=x.a == x.b))
case("s_cmp_lg_u64 s[10:11], s[12:13]", lambda x: Out(scc=x.a != x.b))
for k in (0, 1):
    case(f"s_bitcmp{k}_b32 s10, s12", lambda x, k=k: Out(scc=(x.a32 >> (x.b & 31) & 1) == k))
    case(f"s_bitcmp{k}_b64 s[10:11], s12", lambda x, k=k: Out(scc=(x.a >> (x.b & 63) & 1) == k))

ALL = [item for items in CASES.values() for item in items]

PROLOGUE = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
s_lshl_b32 s3, s2, 6
s_waitcnt lgkmcnt(0)
s_add_u32 s4, s4, s3
s_addc_u32 s5, s5, 0
s_load_dwordx8 s[40:47], s[4:5], 0x0
s_load_dwordx2 s[48:49], s[4:5], 0x20
v_lshlrev_b32_e32 v1, 2, v0
s_mul_i32 s3, s2, {stride}
v_mov_b32_e32 v2, s3
s_waitcnt lgkmcnt(0)
"""
# s[40:41] a, s[42:43] b, s[44:45] old, s46 SCC, s[48:49] EXEC. Lane 0 stores the results.
STEP = """
s_mov_b64 s[10:11], s[40:41]
s_mov_b64 s[12:13], s[42:43]
s_mov_b64 s[20:21], s[44:45]
s_mov_b64 exec, s[48:49]
s_cmp_lg_u32 s46, 0
{text}
s_cselect_b32 s22, 1, 0
s_mov_b64 s[24:25], exec
s_mov_b64 exec, -1
v_mov_b32_e32 v20, s20
v_mov_b32_e32 v21, s21
v_mov_b32_e32 v22, s22
v_mov_b32_e32 v23, 0
v_mov_b32_e32 v24, s24
v_mov_b32_e32 v25, s25
s_mov_b64 exec, 1
global_store_dwordx4 v2, v[20:23], s[6:7]
global_store_dwordx2 v2, v[24:25], s[6:7] offset:16
s_mov_b64 exec, -1
v_add_u32_e32 v2, 32, v2
"""


@pytest.fixture(scope="module")
def results() -> tuple[list[In], np.ndarray]:
    rng = np.random.default_rng(7)
    raw = rng.integers(0, 2**32, (GROUPS, 16), dtype=np.uint32)
    edges = rng.choice(EDGES, raw.shape)
    raw = np.where(rng.random(raw.shape) < 0.5, raw, edges).astype(np.uint32)
    raw[::5, 2:4] = raw[::5, 0:2]  # some equal operands
    raw[:, 6] &= 1
    body = PROLOGUE.format(stride=32 * len(ALL)) + "".join(STEP.format(text=t) for t, _ in ALL)
    source = torch.from_numpy(raw.view(np.int32).copy())
    out = torch.zeros(GROUPS, len(ALL), 8, dtype=torch.int32)
    module = assemble(body + "s_endpgm\n")
    Emulator(gfx950()).launch(module, "kernel", (GROUPS, 1, 1), (64, 1, 1), source, out)
    ins = []
    for r in raw:
        wide = [int(r[k]) | int(r[k + 1]) << 32 for k in (0, 2, 4, 8)]
        ins.append(In(wide[0], wide[1], wide[2], int(r[6]), wide[3]))
    return ins, out.numpy().view(np.uint32)


@pytest.mark.parametrize("index", range(len(ALL)), ids=[text for text, _ in ALL])
def test_instruction(results: tuple[list[In], np.ndarray], index: int) -> None:
    ins, got = results
    for k, x in enumerate(ins):
        want = ALL[index][1](x)
        row = [int(v) for v in got[k, index]]
        value = row[0] | (row[1] << 32 if want.wide else 0)
        old = x.old if want.wide else x.old32
        assert value == (old if want.value is None else want.value), (x, want)
        assert row[2] == int(x.scc if want.scc is None else want.scc), (x, want)
        assert row[4] | row[5] << 32 == (x.exec if want.exec is None else want.exec), (x, want)


def run(body: str, groups: int = 1, waves: int = 1) -> np.ndarray:
    """Runs `body`, which leaves a number in s20; returns it, one a workgroup."""
    text = f"""
s_load_dwordx4 s[4:7], s[0:1], 0x0
s_waitcnt lgkmcnt(0)
{body}
s_mov_b64 exec, -1
v_mov_b32_e32 v1, s20
s_lshl_b32 s2, s2, 2
v_mov_b32_e32 v2, s2
global_store_dword v2, v1, s[6:7]
s_endpgm
"""
    out = torch.zeros(groups, dtype=torch.int32)
    module = assemble(text)
    Emulator(gfx950()).launch(module, "kernel", (groups, 1, 1), (64 * waves, 1, 1), out, out)
    return out.numpy()


BRANCHES = {
    "s_branch": ("", True),
    "s_cbranch_scc0": ("s_cmp_eq_u32 0, 1", True),
    "s_cbranch_scc1": ("s_cmp_eq_u32 0, 1", False),
    "s_cbranch_vccz": ("s_mov_b64 vcc, 0", True),
    "s_cbranch_vccnz": ("s_mov_b64 vcc, 0", False),
    "s_cbranch_execz": ("s_mov_b64 exec, 0", True),
    "s_cbranch_execnz": ("s_mov_b64 exec, 0", False),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_branch(name: str) -> None:
    setup, taken = BRANCHES[name]
    body = f"{setup}\ns_movk_i32 s20, 1\n{name} .Lskip\ns_movk_i32 s20, 2\n.Lskip:"
    assert run(body).item() == (1 if taken else 2)


def test_calls_return() -> None:
    body = """
s_getpc_b64 s[30:31]
.Lhere:
s_add_u32 s30, s30, .Lfunction-.Lhere
s_addc_u32 s31, s31, 0
s_movk_i32 s20, 5
s_swappc_b64 s[32:33], s[30:31]
s_addk_i32 s20, 1
s_branch .Ldone
.Lfunction:
s_mulk_i32 s20, 7
s_setpc_b64 s[32:33]
.Ldone:
"""
    assert run(body).item() == 36


def test_hardware_registers_and_clock() -> None:
    xcc = run("s_getreg_b32 s20, hwreg(HW_REG_XCC_ID)", groups=16)
    assert list(xcc) == [k % 8 for k in range(16)]
    assert run("s_getreg_b32 s20, hwreg(HW_REG_MODE, 0, 8)").item() == 0xF0
    elapsed = run(
        "s_memtime s[30:31]\ns_waitcnt lgkmcnt(0)\ns_nop 0\ns_memrealtime s[32:33]\n"
        "s_waitcnt lgkmcnt(0)\ns_cmp_ge_u32 s32, s30\ns_cselect_b32 s20, 1, 0"
    )
    assert elapsed.item() == 1


def test_fp16_overflow_mode_saturates_fp8() -> None:
    body = """
{mode}
v_mov_b32_e32 v1, 0x44800000
v_cvt_pk_fp8_f32 v2, v1, v1
v_readfirstlane_b32 s20, v2
s_and_b32 s20, s20, 0x7f7f
"""
    assert run(body.format(mode="v_mov_b32_e32 v2, 0")).item() == 0x7F7F  # NaN
    set_mode = "v_mov_b32_e32 v2, 0\ns_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1"
    assert run(body.format(mode=set_mode)).item() == 0x7E7E  # 448
    by_register = "v_mov_b32_e32 v2, 0\ns_mov_b32 s9, 1\ns_setreg_b32 hwreg(HW_REG_MODE, 23, 1), s9"
    assert run(body.format(mode=by_register)).item() == 0x7E7E


def test_other_mode_bits_are_refused() -> None:
    with pytest.raises(UnsupportedInstruction, match="MODE"):
        run("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 3\ns_mov_b32 s20, 0")


def test_trap_and_unknown_jump_are_errors() -> None:
    with pytest.raises(InvalidOperation, match="s_trap"):
        run("s_trap 2\ns_mov_b32 s20, 0")
    with pytest.raises(InvalidOperation, match="jump to"):
        run("s_mov_b64 s[30:31], 64\ns_setpc_b64 s[30:31]")


def test_instructions_without_effect() -> None:
    quiet = (
        "s_nop 3\ns_setprio 2\ns_sleep 1\ns_icache_inv\ns_dcache_wb\ns_dcache_inv\nv_nop\nds_nop\n"
    )
    quiet += "s_incperflevel 1\ns_decperflevel 1\ns_ttracedata\n"
    assert run(quiet + "s_movk_i32 s20, 9").item() == 9


ELSEWHERE = {  # opcodes the tests of this file, or of the memory model, cover by their effect
    *BRANCHES,
    *("s_getpc_b64", "s_setpc_b64", "s_swappc_b64", "s_getreg_b32", "s_setreg_b32"),
    *("s_setreg_imm32_b32", "s_trap", "s_memtime", "s_memrealtime", "s_endpgm", "s_barrier"),
    *("s_waitcnt", "s_nop", "s_setprio", "s_sleep", "s_icache_inv", "s_dcache_wb", "s_dcache_inv"),
    *("s_incperflevel", "s_decperflevel", "s_ttracedata"),
}


def test_every_scalar_opcode_is_covered() -> None:
    from dsv41_kernels.emulator import core

    names = {name for name in core.opcodes() if name.startswith("s_")}
    alu = {name for name in names if not name.startswith(("s_load", "s_buffer_load"))}
    assert alu - set(CASES) - ELSEWHERE == set()
