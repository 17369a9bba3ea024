// Vector integer arithmetic and logic.
#include <algorithm>

#include "operands.h"

#define UNARY(name, expr)                                       \
  OPCODE(name, VECTOR, 0) {                                     \
    const Source A(w, I, 0);                                    \
    alignas(64) Lanes d;                                        \
    FOR_LANES(l) {                                              \
      const u32 a = A[l];                                       \
      d[l] = static_cast<u32>(expr);                            \
    }                                                           \
    write_vector(w, I, d);                                      \
  }
#define BINARY(name, T, expr)                                   \
  OPCODE(name, VECTOR, 0) {                                     \
    const Source A(w, I, 0), B(w, I, 1);                        \
    alignas(64) Lanes d;                                        \
    FOR_LANES(l) {                                              \
      const T a = static_cast<T>(A[l]), b = static_cast<T>(B[l]); \
      d[l] = static_cast<u32>(expr);                            \
    }                                                           \
    write_vector(w, I, d);                                      \
  }
#define TERNARY(name, T, expr)                                  \
  OPCODE(name, VECTOR, 0) {                                     \
    const Source A(w, I, 0), B(w, I, 1), C(w, I, 2);            \
    alignas(64) Lanes d;                                        \
    FOR_LANES(l) {                                              \
      const T a = static_cast<T>(A[l]), b = static_cast<T>(B[l]), c = static_cast<T>(C[l]); \
      d[l] = static_cast<u32>(expr);                            \
    }                                                           \
    write_vector(w, I, d);                                      \
  }

static u32 low24(u32 a) { return a & 0xffffff; }
static i64 signed24(u32 a) { return static_cast<i32>(a << 8) >> 8; }
static u32 low16(u32 a) { return a & 0xffff; }

UNARY(v_mov_b32, a)
UNARY(v_accvgpr_read_b32, a)
UNARY(v_accvgpr_write_b32, a)
UNARY(v_accvgpr_mov_b32, a)
UNARY(v_not_b32, ~a)
UNARY(v_bfrev_b32, reverse_bits(a))
UNARY(v_ffbh_u32, a ? std::countl_zero(a) : -1)
UNARY(v_ffbl_b32, a ? std::countr_zero(a) : -1)
UNARY(v_ffbh_i32, first_bit_signed(a))

BINARY(v_add_u32, u32, a + b)
BINARY(v_sub_u32, u32, a - b)
BINARY(v_subrev_u32, u32, b - a)
BINARY(v_and_b32, u32, a &b)
BINARY(v_or_b32, u32, a | b)
BINARY(v_xor_b32, u32, a ^ b)
BINARY(v_xnor_b32, u32, ~(a ^ b))
BINARY(v_lshlrev_b32, u32, b << (a & 31))
BINARY(v_lshrrev_b32, u32, b >> (a & 31))
BINARY(v_ashrrev_i32, i32, b >> (a & 31))
BINARY(v_min_u32, u32, std::min(a, b))
BINARY(v_max_u32, u32, std::max(a, b))
BINARY(v_min_i32, i32, std::min(a, b))
BINARY(v_max_i32, i32, std::max(a, b))
BINARY(v_mul_lo_u32, u32, a *b)
BINARY(v_mul_hi_u32, u32, static_cast<u64>(a) * b >> 32)
BINARY(v_mul_hi_i32, i32, static_cast<i64>(a) * b >> 32)
BINARY(v_mul_u32_u24, u32, low24(a) * low24(b))
BINARY(v_mul_hi_u32_u24, u32, static_cast<u64>(low24(a)) * low24(b) >> 32)
BINARY(v_mul_i32_i24, u32, signed24(a) * signed24(b))
BINARY(v_mul_hi_i32_i24, u32, signed24(a) * signed24(b) >> 32)
BINARY(v_bfm_b32, u32, ((1u << (a & 31)) - 1) << (b & 31))
BINARY(v_bcnt_u32_b32, u32, std::popcount(a) + b)
BINARY(v_add_u16, u32, low16(a + b))
BINARY(v_sub_u16, u32, low16(a - b))
BINARY(v_subrev_u16, u32, low16(b - a))
BINARY(v_mul_lo_u16, u32, low16(a *b))
BINARY(v_lshlrev_b16, u32, low16(b << (a & 15)))
BINARY(v_lshrrev_b16, u32, low16(b) >> (a & 15))
BINARY(v_ashrrev_i16, u32, low16(static_cast<i16>(b) >> (a & 15)))
BINARY(v_min_u16, u32, std::min(low16(a), low16(b)))
BINARY(v_max_u16, u32, std::max(low16(a), low16(b)))
BINARY(v_min_i16, u32, low16(std::min(static_cast<i16>(a), static_cast<i16>(b))))
BINARY(v_max_i16, u32, low16(std::max(static_cast<i16>(a), static_cast<i16>(b))))
BINARY(v_cvt_pk_u16_u32, u32, std::min(a, 65535u) | std::min(b, 65535u) << 16)
BINARY(v_cvt_pk_i16_i32, i32,
       low16(std::clamp(a, -32768, 32767)) | low16(std::clamp(b, -32768, 32767)) << 16)

// Signed saturating variants of add and sub exist only as VOP3 with clamp.
static u32 clamp_i32(i64 x, bool clamp) {
  return static_cast<u32>(clamp ? std::clamp<i64>(x, INT32_MIN, INT32_MAX) : x);
}
BINARY(v_add_i32, i32, clamp_i32(static_cast<i64>(a) + b, I.clamp))
BINARY(v_sub_i32, i32, clamp_i32(static_cast<i64>(a) - b, I.clamp))

TERNARY(v_add3_u32, u32, a + b + c)
TERNARY(v_lshl_add_u32, u32, (a << (b & 31)) + c)
TERNARY(v_add_lshl_u32, u32, (a + b) << (c & 31))
TERNARY(v_lshl_or_b32, u32, (a << (b & 31)) | c)
TERNARY(v_and_or_b32, u32, (a & b) | c)
TERNARY(v_or3_b32, u32, a | b | c)
TERNARY(v_xad_u32, u32, (a ^ b) + c)
TERNARY(v_bfe_u32, u32, bit_field(a, b & 31, c & 31))
TERNARY(v_bfe_i32, u32, signed_bit_field(a, b & 31, c & 31))
TERNARY(v_bfi_b32, u32, (a & b) | (~a & c))
TERNARY(v_alignbit_b32, u32, (static_cast<u64>(a) << 32 | b) >> (c & 31))
TERNARY(v_alignbyte_b32, u32, (static_cast<u64>(a) << 32 | b) >> (8 * (c & 3)))
TERNARY(v_mad_u32_u24, u32, low24(a) * low24(b) + c)
TERNARY(v_mad_i32_i24, u32, signed24(a) * signed24(b) + c)
TERNARY(v_mad_u32_u16, u32, low16(a) * low16(b) + c)
TERNARY(v_mad_i32_i16, u32, static_cast<i16>(a) * static_cast<i16>(b) + static_cast<i32>(c))
TERNARY(v_mad_legacy_u16, u32, low16(low16(a) * low16(b) + c))
TERNARY(v_mad_u16, u32, low16(low16(a) * low16(b) + c))
TERNARY(v_min3_u32, u32, std::min({a, b, c}))
TERNARY(v_max3_u32, u32, std::max({a, b, c}))
TERNARY(v_med3_u32, u32, std::max(std::min(a, b), std::min(std::max(a, b), c)))
TERNARY(v_min3_i32, i32, std::min({a, b, c}))
TERNARY(v_max3_i32, i32, std::max({a, b, c}))
TERNARY(v_med3_i32, i32, std::max(std::min(a, b), std::min(std::max(a, b), c)))
TERNARY(v_sad_u32, u32, (a > b ? a - b : b - a) + c)

static i32 dot_i8(u32 a, u32 b, i32 sum) {
  for (int i = 0; i < 32; i += 8) sum += static_cast<i8>(a >> i) * static_cast<i8>(b >> i);
  return sum;
}
TERNARY(v_dot4_i32_i8, u32, dot_i8(a, b, static_cast<i32>(c)))

// Each selector byte picks a byte of {a, b}, a sign of one of their halves, 0 or 0xff.
static u32 permute_bytes(u32 a, u32 b, u32 selectors) {
  const u64 both = static_cast<u64>(a) << 32 | b;
  u32 r = 0;
  for (int i = 0; i < 32; i += 8) {
    const u32 select = (selectors >> i) & 0xff;
    u32 byte;
    if (select < 8)
      byte = (both >> (8 * select)) & 0xff;
    else if (select < 12)
      byte = bit(both, 16 * (select - 8) + 15) ? 0xff : 0;
    else
      byte = select == 12 ? 0 : 0xff;
    r |= byte << i;
  }
  return r;
}
TERNARY(v_perm_b32, u32, permute_bytes(a, b, c))

// Any Boolean function of three bits: bit (4a + 2b + c) of the table.
static u32 boolean3(u32 a, u32 b, u32 c, u8 table) {
  u32 r = 0;
  for (int i = 0; i < 8; i++)
    if (bit(table, i)) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return r;
}
TERNARY(v_bitop3_b32, u32, boolean3(a, b, c, I.bitop3))
TERNARY(v_bitop3_b16, u32, low16(boolean3(a, b, c, I.bitop3)))

OPCODE(v_mbcnt_lo_u32_b32, VECTOR, 0) {
  const Source A(w, I, 0), B(w, I, 1);
  alignas(64) Lanes d;
  FOR_LANES(l) d[l] = std::popcount(A[l] & (l >= 32 ? ~0u : (1u << l) - 1)) + B[l];
  write_vector(w, I, d);
}
OPCODE(v_mbcnt_hi_u32_b32, VECTOR, 0) {
  const Source A(w, I, 0), B(w, I, 1);
  alignas(64) Lanes d;
  FOR_LANES(l) d[l] = std::popcount(A[l] & (l < 32 ? 0 : (1u << (l - 32)) - 1)) + B[l];
  write_vector(w, I, d);
}
OPCODE(v_cndmask_b32, SELECT, 0) {
  const FloatSource A(w, I, 0), B(w, I, 1);  // allows negation
  const u64 condition = I.nsrc > 2 ? scalar64(w, I.src[2]) : w.vcc();
  alignas(64) Lanes d;
  FOR_LANES(l) d[l] = bit(condition, l) ? bits(B[l]) : bits(A[l]);
  write_vector(w, I, d);
}

// Carry instructions: result 0 is the sum, result 1 the carry out, a lane mask.
template <class F>
static void with_carry(Wave &w, const Inst &I, F f) {
  const Source A(w, I, 0), B(w, I, 1);
  const u64 carry_in = I.nsrc > 2 ? scalar64(w, I.src[2]) : 0, exec = w.exec();
  u64 carry_out = 0;
  alignas(64) Lanes d;
  FOR_LANES(l) {
    const u64 r = f(static_cast<u64>(A[l]), static_cast<u64>(B[l]), static_cast<u64>(bit(carry_in, l)));
    d[l] = static_cast<u32>(r);
    carry_out |= (r >> 32 & 1) << l;
  }
  write_vector(w, I, d);
  write_scalar64(w, I.dst[1], carry_out & exec);
}
#define CARRY(name, expr)                                                                 \
  OPCODE(name, VECTOR, 0) {                                                               \
    with_carry(w, I, [](u64 a, u64 b, [[maybe_unused]] u64 c) -> u64 { return expr; });   \
  }
CARRY(v_add_co_u32, a + b)
CARRY(v_addc_co_u32, a + b + c)
CARRY(v_sub_co_u32, a - b)
CARRY(v_subb_co_u32, a - b - c)
CARRY(v_subrev_co_u32, b - a)
CARRY(v_subbrev_co_u32, b - a - c)

// 64-bit results. The low dword of a sum, a product or a left shift does not depend on the high
// dwords of its sources, which compilers leave unwritten when only the low one is wanted.
static u64 defined_half(Wave &w, const Operand &o, int half) {
  if (o.kind == VGPR || o.kind == AGPR) return w.defined[w.row_index(o, half)];
  return o.kind != SGPR || w.s_defined[o.reg + half] == ~0u ? ~0ull : 0;
}
static void set_halves_defined(Wave &w, const Inst &I, u64 low, u64 high) {
  const u64 mask = w.write_mask, halves[] = {low, high};
  for (int k = 0; k < 2; k++) {
    const u32 row = w.row_index(I.dst[0], k);
    w.defined[row] = (w.defined[row] & ~mask) | (halves[k] & mask);
    if (mask & ~halves[k]) w.origin[row] = I.pc;
  }
}

template <class F>
static void multiply_add64(Wave &w, const Inst &I, F f) {
  const u64 factors = defined_half(w, I.src[0], 0) & defined_half(w, I.src[1], 0);
  const u64 low = factors & defined_half(w, I.src[2], 0);
  const u64 all = low & defined_half(w, I.src[2], 1);
  const Source A(w, I, 0), B(w, I, 1);
  const Source64 C(w, I, 2);
  u64 d[kLanes], carry = 0;
  FOR_LANES(l) {
    const auto r = f(A[l], B[l], C[l]);
    d[l] = static_cast<u64>(r);
    carry |= static_cast<u64>(r >> 64 & 1) << l;
  }
  write_vector64(w, I, d);
  const u64 exec = w.exec(), known = all | ~exec;
  write_scalar64(w, I.dst[1], carry & exec);
  set_halves_defined(w, I, low, all);
  if (I.dst[1].kind != SGPR) return;
  w.s_defined[I.dst[1].reg] = static_cast<u32>(known);
  w.s_defined[I.dst[1].reg + 1] = known >> 32;
}
OPCODE(v_mad_u64_u32, OWN, 0) {
  multiply_add64(w, I, [](u32 a, u32 b, u64 c) {
    return static_cast<unsigned __int128>(static_cast<u64>(a) * b) + c;
  });
}
OPCODE(v_mad_i64_i32, OWN, 0) {
  multiply_add64(w, I, [](u32 a, u32 b, u64 c) {
    const i64 product = static_cast<i64>(static_cast<i32>(a)) * static_cast<i32>(b);
    return static_cast<__int128>(product) + static_cast<i64>(c);
  });
}
OPCODE(v_lshl_add_u64, OWN, 0) {
  u64 low = defined_half(w, I.src[1], 0), high = ~0ull;
  for (int i : {0, 2}) {
    low &= defined_half(w, I.src[i], 0);
    high &= defined_half(w, I.src[i], 1);
  }
  const Source64 A(w, I, 0), C(w, I, 2);
  const Source B(w, I, 1);
  u64 d[kLanes];
  FOR_LANES(l) d[l] = (A[l] << (B[l] & 7)) + C[l];
  write_vector64(w, I, d);
  set_halves_defined(w, I, low, low & high);
}
enum class Shift { LEFT, RIGHT, RIGHT_SIGNED };
template <Shift S>
static void shift64(Wave &w, const Inst &I) {
  const u64 amount = defined_half(w, I.src[0], 0);
  const u64 near = amount & defined_half(w, I.src[1], S == Shift::LEFT ? 0 : 1);
  const u64 both = near & defined_half(w, I.src[1], S == Shift::LEFT ? 1 : 0);
  const Source A(w, I, 0);
  const Source64 B(w, I, 1);
  u64 d[kLanes];
  FOR_LANES(l) {
    const u32 n = A[l] & 63;
    const u64 x = B[l];
    d[l] = S == Shift::LEFT    ? x << n
           : S == Shift::RIGHT ? x >> n
                               : static_cast<u64>(static_cast<i64>(x) >> n);
  }
  write_vector64(w, I, d);
  if (S == Shift::LEFT)
    set_halves_defined(w, I, near, both);
  else
    set_halves_defined(w, I, both, near);
}
OPCODE(v_lshlrev_b64, OWN, 0) { shift64<Shift::LEFT>(w, I); }
OPCODE(v_lshrrev_b64, OWN, 0) { shift64<Shift::RIGHT>(w, I); }
OPCODE(v_ashrrev_i64, OWN, 0) { shift64<Shift::RIGHT_SIGNED>(w, I); }
