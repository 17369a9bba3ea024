// Scalar ALU, branches, and the scalar side of program control. (Memory: smem.cpp.)
#include <algorithm>

#include "operands.h"

// 32-bit results from one or two 32-bit sources a and b; `r` is the result, `scc` the old SCC.
#define BINARY(name, T, flow, traits, expr, new_scc)                     \
  OPCODE(name, flow, traits) {                                           \
    [[maybe_unused]] const T a = static_cast<T>(scalar32(w, I.src[0]));  \
    [[maybe_unused]] const T b = static_cast<T>(scalar32(w, I.src[1]));  \
    [[maybe_unused]] const bool scc = w.scc;                             \
    const u32 r = static_cast<u32>(expr);                                \
    w.scc = (new_scc);                                                   \
    write_scalar32(w, I.dst[0], r);                                      \
  }
#define ARITHMETIC(name, T, expr, new_scc) BINARY(name, T, SCALAR, WRITES_SCC, expr, new_scc)
#define LOGIC(name, flow, expr) BINARY(name, u32, flow, WRITES_SCC, expr, r != 0)
#define PURE(name, T, expr) BINARY(name, T, SCALAR, 0, expr, scc)
#define BINARY64(name, flow, traits, expr, new_scc)                                 \
  OPCODE(name, flow, traits) {                                                      \
    const u64 a = scalar64(w, I.src[0]);                                            \
    [[maybe_unused]] const u64 b = scalar64(w, I.src[1]);                           \
    [[maybe_unused]] const bool scc = w.scc;                                        \
    const u64 r = (expr);                                                           \
    w.scc = (new_scc);                                                              \
    write_scalar64(w, I.dst[0], r);                                                 \
  }
#define LOGIC64(name, flow, expr) BINARY64(name, flow, WRITES_SCC, expr, r != 0)
#define UNARY(name, flow, traits, expr, new_scc)                         \
  OPCODE(name, flow, traits) {                                           \
    const u32 a = scalar32(w, I.src[0]);                                 \
    [[maybe_unused]] const bool scc = w.scc;                             \
    const u32 r = static_cast<u32>(expr);                                \
    w.scc = (new_scc);                                                   \
    write_scalar32(w, I.dst[0], r);                                      \
  }
#define COUNT64(name, traits, expr, new_scc)                             \
  OPCODE(name, SCALAR, traits) {                                         \
    const u64 a = scalar64(w, I.src[0]);                                 \
    [[maybe_unused]] const bool scc = w.scc;                             \
    const u32 r = static_cast<u32>(expr);                                \
    w.scc = (new_scc);                                                   \
    write_scalar32(w, I.dst[0], r);                                      \
  }

ARITHMETIC(s_add_u32, u32, a + b, static_cast<u64>(a) + b > ~0u)
ARITHMETIC(s_sub_u32, u32, a - b, b > a)
ARITHMETIC(s_add_i32, u32, a + b, ((a ^ r) & (b ^ r)) >> 31)
ARITHMETIC(s_sub_i32, u32, a - b, ((a ^ b) & (a ^ r)) >> 31)
BINARY(s_addc_u32, u32, SCALAR, READS_SCC | WRITES_SCC, a + b + scc,
       static_cast<u64>(a) + b + scc > ~0u)
BINARY(s_subb_u32, u32, SCALAR, READS_SCC | WRITES_SCC, a - b - scc,
       static_cast<u64>(b) + scc > a)
ARITHMETIC(s_min_i32, i32, std::min(a, b), a < b)
ARITHMETIC(s_max_i32, i32, std::max(a, b), a > b)
ARITHMETIC(s_min_u32, u32, std::min(a, b), a < b)
ARITHMETIC(s_max_u32, u32, std::max(a, b), a > b)
ARITHMETIC(s_absdiff_i32, i32, std::llabs(static_cast<i64>(a) - b), r != 0)
ARITHMETIC(s_lshl_b32, u32, a << (b & 31), r != 0)
ARITHMETIC(s_lshr_b32, u32, a >> (b & 31), r != 0)
ARITHMETIC(s_ashr_i32, i32, a >> (b & 31), r != 0)
ARITHMETIC(s_bfe_u32, u32, bit_field(a, b & 31, (b >> 16) & 0x7f), r != 0)
ARITHMETIC(s_bfe_i32, u32, signed_bit_field(a, b & 31, (b >> 16) & 0x7f), r != 0)
ARITHMETIC(s_lshl1_add_u32, u32, (a << 1) + b, (static_cast<u64>(a) << 1) + b > ~0u)
ARITHMETIC(s_lshl2_add_u32, u32, (a << 2) + b, (static_cast<u64>(a) << 2) + b > ~0u)
ARITHMETIC(s_lshl3_add_u32, u32, (a << 3) + b, (static_cast<u64>(a) << 3) + b > ~0u)
ARITHMETIC(s_lshl4_add_u32, u32, (a << 4) + b, (static_cast<u64>(a) << 4) + b > ~0u)
PURE(s_mul_i32, u32, a * b)
PURE(s_mul_hi_u32, u32, static_cast<u64>(a) * b >> 32)
PURE(s_mul_hi_i32, i32, static_cast<i64>(a) * b >> 32)
PURE(s_bfm_b32, u32, ((1u << (a & 31)) - 1) << (b & 31))
PURE(s_pack_ll_b32_b16, u32, (a & 0xffff) | b << 16)
PURE(s_pack_lh_b32_b16, u32, (a & 0xffff) | (b & 0xffff0000))
PURE(s_pack_hh_b32_b16, u32, a >> 16 | (b & 0xffff0000))
BINARY(s_cselect_b32, u32, SCALAR, READS_SCC, scc ? a : b, scc)
LOGIC(s_and_b32, AND, a & b)
LOGIC(s_or_b32, OR, a | b)
LOGIC(s_andn2_b32, AND_NOT, a & ~b)
LOGIC(s_orn2_b32, OR_NOT, a | ~b)
LOGIC(s_nand_b32, AND, ~(a & b))
LOGIC(s_nor_b32, OR, ~(a | b))
LOGIC(s_xor_b32, BITWISE, a ^ b)
LOGIC(s_xnor_b32, BITWISE, ~(a ^ b))

LOGIC64(s_and_b64, AND, a & b)
LOGIC64(s_or_b64, OR, a | b)
LOGIC64(s_andn2_b64, AND_NOT, a & ~b)
LOGIC64(s_orn2_b64, OR_NOT, a | ~b)
LOGIC64(s_nand_b64, AND, ~(a & b))
LOGIC64(s_nor_b64, OR, ~(a | b))
LOGIC64(s_xor_b64, BITWISE, a ^ b)
LOGIC64(s_xnor_b64, BITWISE, ~(a ^ b))
BINARY64(s_cselect_b64, SCALAR, READS_SCC, scc ? a : b, scc)
// Definedness shifts along: the low dword of a left shift does not depend on the high one.
template <class F, class G>
static void shift64(Wave &w, const Inst &I, F f, G filled) {
  const Operand &source = I.src[0], &amount = I.src[1], &to = I.dst[0];
  const u32 n = scalar32(w, amount) & 63;
  u64 known = ~0ull;
  if (source.kind == SGPR)
    known = w.s_defined[source.reg] | static_cast<u64>(w.s_defined[source.reg + 1]) << 32;
  known = f(known, n) | filled(n);
  if (amount.kind == SGPR && w.s_defined[amount.reg] != ~0u) known = 0;
  const u64 r = f(scalar64(w, source), n);
  w.scc = r != 0;
  w.scc_defined = known == ~0ull;
  write_scalar64(w, to, r);
  if (to.kind != SGPR) return;
  if (to.reg == EXEC_REG && !w.scc_defined && w.shard->options.poison)
    fail("uninitialized", "a never-written value decides which lanes run");
  w.s_defined[to.reg] = static_cast<u32>(known);
  w.s_defined[to.reg + 1] = known >> 32;
}
OPCODE(s_lshl_b64, OWN, 0) {
  shift64(w, I, [](u64 x, u32 n) { return x << n; }, [](u32 n) { return (1ull << n) - 1; });
}
OPCODE(s_lshr_b64, OWN, 0) {
  shift64(w, I, [](u64 x, u32 n) { return x >> n; }, [](u32 n) { return ~(~0ull >> n); });
}
OPCODE(s_ashr_i64, OWN, 0) {
  shift64(w, I, [](u64 x, u32 n) { return static_cast<u64>(static_cast<i64>(x) >> n); },
          [](u32) { return 0ull; });
}
OPCODE(s_bfm_b64, SCALAR, 0) {
  const u32 width = scalar32(w, I.src[0]) & 63, offset = scalar32(w, I.src[1]) & 63;
  write_scalar64(w, I.dst[0], ((1ull << width) - 1) << offset);
}
OPCODE(s_bfe_u64, SCALAR, WRITES_SCC) {
  const u64 a = scalar64(w, I.src[0]);
  const u32 b = scalar32(w, I.src[1]), offset = b & 63, width = (b >> 16) & 0x7f;
  const u64 r = width == 0 ? 0 : width >= 64 ? a >> offset : a >> offset & ((1ull << width) - 1);
  w.scc = r != 0;
  write_scalar64(w, I.dst[0], r);
}
OPCODE(s_bfe_i64, SCALAR, WRITES_SCC) {
  const i64 a = static_cast<i64>(scalar64(w, I.src[0]));
  const u32 b = scalar32(w, I.src[1]), offset = b & 63, width = (b >> 16) & 0x7f;
  i64 r = 0;
  if (width && offset + width >= 64)
    r = a >> offset;
  else if (width)
    r = static_cast<i64>(static_cast<u64>(a) << (64 - offset - width)) >> (64 - width);
  w.scc = r != 0;
  write_scalar64(w, I.dst[0], static_cast<u64>(r));
}

UNARY(s_mov_b32, BITWISE, 0, a, scc)
UNARY(s_not_b32, BITWISE, WRITES_SCC, ~a, r != 0)
UNARY(s_brev_b32, SCALAR, 0, reverse_bits(a), scc)
UNARY(s_abs_i32, SCALAR, WRITES_SCC, std::llabs(static_cast<i32>(a)), r != 0)
UNARY(s_sext_i32_i8, SCALAR, 0, static_cast<i8>(a), scc)
UNARY(s_sext_i32_i16, SCALAR, 0, static_cast<i16>(a), scc)
UNARY(s_bcnt0_i32_b32, SCALAR, WRITES_SCC, 32 - std::popcount(a), r != 0)
UNARY(s_bcnt1_i32_b32, SCALAR, WRITES_SCC, std::popcount(a), r != 0)
UNARY(s_ff0_i32_b32, SCALAR, 0, ~a ? std::countr_zero(~a) : -1, scc)
UNARY(s_ff1_i32_b32, SCALAR, 0, a ? std::countr_zero(a) : -1, scc)
UNARY(s_flbit_i32_b32, SCALAR, 0, a ? std::countl_zero(a) : -1, scc)
UNARY(s_flbit_i32, SCALAR, 0, first_bit_signed(a), scc)
COUNT64(s_bcnt1_i32_b64, WRITES_SCC, std::popcount(a), r != 0)
COUNT64(s_bcnt0_i32_b64, WRITES_SCC, 64 - std::popcount(a), r != 0)
COUNT64(s_ff1_i32_b64, 0, a ? std::countr_zero(a) : -1, scc)
COUNT64(s_flbit_i32_b64, 0, a ? std::countl_zero(a) : -1, scc)
OPCODE(s_mov_b64, BITWISE, 0) { write_scalar64(w, I.dst[0], scalar64(w, I.src[0])); }
OPCODE(s_not_b64, BITWISE, WRITES_SCC) {
  const u64 r = ~scalar64(w, I.src[0]);
  w.scc = r != 0;
  write_scalar64(w, I.dst[0], r);
}
OPCODE(s_brev_b64, SCALAR, 0) {
  const u64 a = scalar64(w, I.src[0]);
  write_scalar64(w, I.dst[0], static_cast<u64>(reverse_bits(static_cast<u32>(a))) << 32 |
                                  reverse_bits(a >> 32));
}
OPCODE(s_cmov_b32, SCALAR, READS_SCC | READS_DST) {
  if (w.scc) write_scalar32(w, I.dst[0], scalar32(w, I.src[0]));
}
OPCODE(s_cmov_b64, SCALAR, READS_SCC | READS_DST) {
  if (w.scc) write_scalar64(w, I.dst[0], scalar64(w, I.src[0]));
}
OPCODE(s_bitset0_b32, SCALAR, READS_DST) {
  write_scalar32(w, I.dst[0], w.s[I.dst[0].reg] & ~(1u << (scalar32(w, I.src[0]) & 31)));
}
OPCODE(s_bitset1_b32, SCALAR, READS_DST) {
  write_scalar32(w, I.dst[0], w.s[I.dst[0].reg] | 1u << (scalar32(w, I.src[0]) & 31));
}

#define SAVE_EXEC(name, flow, expr)                            \
  OPCODE(name, flow, WRITES_SCC | WRITES_EXEC) {               \
    const u64 a = scalar64(w, I.src[0]), exec = w.exec();      \
    write_scalar64(w, I.dst[0], exec);                         \
    const u64 r = (expr);                                      \
    w.set_exec(r);                                             \
    w.scc = r != 0;                                            \
  }
SAVE_EXEC(s_and_saveexec_b64, AND, a & exec)
SAVE_EXEC(s_or_saveexec_b64, OR, a | exec)
SAVE_EXEC(s_xor_saveexec_b64, BITWISE, a ^ exec)
SAVE_EXEC(s_andn2_saveexec_b64, AND_NOT, a & ~exec)
SAVE_EXEC(s_orn2_saveexec_b64, OR_NOT, a | ~exec)
SAVE_EXEC(s_andn1_saveexec_b64, BITWISE, ~a & exec)

#define WITH_CONSTANT(name, traits, expr, new_scc)                       \
  OPCODE(name, SCALAR, traits) {                                         \
    [[maybe_unused]] const u32 old = w.s[I.dst[0].reg];                  \
    const i32 k = static_cast<i16>(I.src[0].imm);                        \
    [[maybe_unused]] const bool scc = w.scc;                             \
    const u32 r = static_cast<u32>(expr);                                \
    w.scc = (new_scc);                                                   \
    write_scalar32(w, I.dst[0], r);                                      \
  }
WITH_CONSTANT(s_movk_i32, 0, k, scc)
WITH_CONSTANT(s_addk_i32, READS_DST | WRITES_SCC, old + k, ((~(old ^ k)) & (old ^ r)) >> 31)
WITH_CONSTANT(s_mulk_i32, READS_DST, old * k, scc)
WITH_CONSTANT(s_cmovk_i32, READS_DST | READS_SCC, scc ? k : old, scc)

#define COMPARE32(name, T, op)                                                    \
  OPCODE(s_cmp_##name, SCALAR, WRITES_SCC) {                                      \
    w.scc = static_cast<T>(scalar32(w, I.src[0])) op static_cast<T>(scalar32(w, I.src[1])); \
  }
#define COMPARE_CONSTANT(name, op)                                                \
  OPCODE(s_cmpk_##name##_i32, SCALAR, WRITES_SCC) {                               \
    w.scc = static_cast<i32>(scalar32(w, I.src[0])) op static_cast<i16>(I.src[1].imm); \
  }                                                                               \
  OPCODE(s_cmpk_##name##_u32, SCALAR, WRITES_SCC) {                               \
    w.scc = scalar32(w, I.src[0]) op static_cast<u16>(I.src[1].imm);              \
  }
#define COMPARES(name, op)              \
  COMPARE32(name##_i32, i32, op)        \
  COMPARE32(name##_u32, u32, op)        \
  COMPARE_CONSTANT(name, op)
COMPARES(eq, ==)
COMPARES(lg, !=)
COMPARES(gt, >)
COMPARES(ge, >=)
COMPARES(lt, <)
COMPARES(le, <=)
OPCODE(s_cmp_eq_u64, SCALAR, WRITES_SCC) { w.scc = scalar64(w, I.src[0]) == scalar64(w, I.src[1]); }
OPCODE(s_cmp_lg_u64, SCALAR, WRITES_SCC) { w.scc = scalar64(w, I.src[0]) != scalar64(w, I.src[1]); }
#define BIT_TEST(name, fetch, width, wanted)                               \
  OPCODE(name, SCALAR, WRITES_SCC) {                                       \
    w.scc = bit(fetch(w, I.src[0]), scalar32(w, I.src[1]) & (width - 1)) == wanted; \
  }
BIT_TEST(s_bitcmp0_b32, scalar32, 32, false)
BIT_TEST(s_bitcmp1_b32, scalar32, 32, true)
BIT_TEST(s_bitcmp0_b64, scalar64, 64, false)
BIT_TEST(s_bitcmp1_b64, scalar64, 64, true)

// ---- Control -----------------------------------------------------------------------------------

static void jump(Wave &w, const Inst &I) {
  if (I.target < 0) fail("invalid", "branch to an address that holds no instruction");
  w.pc = I.target;
}
static void check_condition(Wave &w, bool defined) {
  if (w.shard->options.poison && !defined)
    fail("uninitialized", "a never-written value decides a branch");
}
OPCODE(s_branch, OWN, 0) { jump(w, I); }
#define BRANCH(name, known, condition)   \
  OPCODE(name, OWN, 0) {                 \
    check_condition(w, known);           \
    if (condition) jump(w, I);           \
  }
BRANCH(s_cbranch_scc0, w.scc_defined, !w.scc)
BRANCH(s_cbranch_scc1, w.scc_defined, w.scc)
BRANCH(s_cbranch_vccz, w.vcc_defined() == ~0ull, !w.vcc())
BRANCH(s_cbranch_vccnz, w.vcc_defined() == ~0ull, w.vcc())
BRANCH(s_cbranch_execz, true, !w.exec())
BRANCH(s_cbranch_execnz, true, w.exec())

static u64 address_after(const Wave &w, const Inst &I) { return w.program->base + I.pc + 4; }
static void jump_to(Wave &w, u64 address) {
  const auto &code = w.program->code;
  const u32 offset = static_cast<u32>(address - w.program->base);
  const auto at = std::lower_bound(code.begin(), code.end(), offset,
                                   [](const Inst &inst, u32 pc) { return inst.pc < pc; });
  if (at == code.end() || w.program->base + at->pc != address)
    fail("invalid", "jump to 0x%llx, which holds no instruction",
         static_cast<unsigned long long>(address));
  w.pc = static_cast<u32>(at - code.begin());
}
OPCODE(s_getpc_b64, SCALAR, 0) { write_scalar64(w, I.dst[0], address_after(w, I)); }
OPCODE(s_setpc_b64, OWN, 0) { jump_to(w, scalar64(w, I.src[0])); }
OPCODE(s_swappc_b64, SCALAR, 0) {
  const u64 target = scalar64(w, I.src[0]);
  write_scalar64(w, I.dst[0], address_after(w, I));
  jump_to(w, target);
}

OPCODE(s_waitcnt, OWN, 0) {
  const u32 vm = (I.simm & 15) | ((I.simm >> 14) & 3) << 4, lgkm = (I.simm >> 8) & 15;
  // expcnt counts exports and GDS only, which gfx950 compute does not have.
  if (!wait_for(w, vm == 63 ? ~0u : vm, lgkm == 15 ? ~0u : lgkm)) w.pc--;
}
OPCODE(s_barrier, OWN, 0) { w.state = State::AT_BARRIER; }
OPCODE(s_endpgm, OWN, 0) { w.state = State::ENDING; }
OPCODE(s_trap, OWN, 0) { fail("invalid", "the kernel executed s_trap %u", I.simm & 0xff); }
OPCODE(s_dcache_inv, OWN, 0) { w.group->cu->scalar->invalidate(); }

// Timing, priorities and instruction caches do not change what a program computes.
#define NO_EFFECT(name) \
  OPCODE(name, OWN, 0) {}
NO_EFFECT(s_nop)
NO_EFFECT(s_setprio)
NO_EFFECT(s_sleep)
NO_EFFECT(s_icache_inv)
NO_EFFECT(s_dcache_wb)
NO_EFFECT(s_ttracedata)
NO_EFFECT(s_incperflevel)
NO_EFFECT(s_decperflevel)
NO_EFFECT(v_nop)
NO_EFFECT(ds_nop)

constexpr u32 kHwMode = 1, kHwId = 4, kHwXccId = 20;
static u32 hardware_register(const Wave &w, u32 id) {
  switch (id) {
    case kHwMode: return w.mode;
    case kHwId: return (w.index & 3) << 4 | (w.group->cu->index & 15) << 8;
    case kHwXccId: return w.group->cu->xcc;
    default: fail("unsupported", "hardware register %u is not modelled", id);
  }
}
OPCODE(s_getreg_b32, SCALAR, 0) {
  const u32 offset = (I.simm >> 6) & 31, width = ((I.simm >> 11) & 31) + 1;
  write_scalar32(w, I.dst[0], bit_field(hardware_register(w, I.simm & 63), offset, width));
}
static void set_mode(Wave &w, const Inst &I) {
  const u32 offset = (I.simm >> 6) & 31, width = ((I.simm >> 11) & 31) + 1;
  if ((I.simm & 63) != kHwMode)
    fail("unsupported", "writing hardware register %u is not modelled", I.simm & 63);
  const u32 mask = (width == 32 ? ~0u : (1u << width) - 1) << offset;
  const u32 next = (w.mode & ~mask) | (scalar32(w, I.src[0]) << offset & mask);
  if ((next ^ w.mode) & ~kModeFp16Overflow)
    fail("unsupported", "only MODE.FP16_OVFL may change (new MODE 0x%x)", next);
  w.mode = next;
}
OPCODE(s_setreg_b32, OWN, 0) { set_mode(w, I); }
OPCODE(s_setreg_imm32_b32, OWN, 0) { set_mode(w, I); }
