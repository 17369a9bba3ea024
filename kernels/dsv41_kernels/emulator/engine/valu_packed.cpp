// Packed arithmetic: two f32 in a register pair, two 16-bit values in one register; 64-bit moves.
#include <algorithm>

#include "operands.h"

namespace {

// One dword of a pair source and whether each lane of it was written.
struct Half {
  const u32 *value;
  u64 defined;
  alignas(64) Lanes buffer;
};

void fetch_half(Wave &w, const Operand &o, int k, Half &half) {
  half.defined = ~0ull;
  if (o.kind == VGPR || o.kind == AGPR) {
    k = std::min(k, o.count - 1);
    half.value = w.row(o, k);
    half.defined = w.defined[w.row_index(o, k)];
    return;
  }
  u32 x = static_cast<u32>(o.imm);
  if (o.kind == SGPR) {
    k = std::min(k, o.count - 1);
    x = w.s[o.reg + k];
    half.defined = w.s_defined[o.reg + k] == ~0u ? ~0ull : 0;
  }
  FOR_LANES(l) half.buffer[l] = x;
  half.value = half.buffer;
}

void write_half(Wave &w, const Inst &I, int k, const u32 *value, u64 defined) {
  const u32 row = w.row_index(I.dst[0], k);
  const u64 mask = w.write_mask;
  store_row(w.v + kLanes * row, value, mask);
  w.defined[row] = (w.defined[row] & ~mask) | (defined & mask);
  if (mask & ~defined) w.origin[row] = I.pc;
}

template <int N, class F>
void packed_f32(Wave &w, const Inst &I, F f) {
  alignas(64) Lanes result[2];
  u64 defined[2] = {~0ull, ~0ull};
  for (int h = 0; h < 2; h++) {
    Half x[3];
    u32 flip[3] = {0, 0, 0};
    for (int i = 0; i < N; i++) {
      fetch_half(w, I.src[i], bit(h ? I.op_sel_hi : I.op_sel, i), x[i]);
      defined[h] &= x[i].defined;
      flip[i] = bit(h ? I.neg_hi : I.neg_lo, i) ? 0x80000000 : 0;
    }
    const u32 *third = N > 2 ? x[2].value : x[0].value;
    FOR_LANES(l) {
      const float r = f(as_f32(x[0].value[l] ^ flip[0]), as_f32(x[1].value[l] ^ flip[1]),
                        as_f32(third[l] ^ flip[2]));
      result[h][l] = bits(r);
    }
    if (I.clamp) FOR_LANES(l) result[h][l] = bits(modify(I, as_f32(result[h][l])));
  }
  for (int h = 0; h < 2; h++) write_half(w, I, h, result[h], defined[h]);
}

}  // namespace

OPCODE(v_pk_add_f32, OWN, 0) {
  packed_f32<2>(w, I, [](float a, float b, float) { return a + b; });
}
OPCODE(v_pk_mul_f32, OWN, 0) {
  packed_f32<2>(w, I, [](float a, float b, float) { return a * b; });
}
OPCODE(v_pk_fma_f32, OWN, 0) {
  packed_f32<3>(w, I, [](float a, float b, float c) { return std::fma(a, b, c); });
}
// The low result comes from source 0, the high one from source 1; op_sel picks the dword of each.
OPCODE(v_pk_mov_b32, OWN, 0) {
  alignas(64) Lanes result[2];
  u64 defined[2];
  for (int h = 0; h < 2; h++) {
    Half x;
    fetch_half(w, I.src[h], bit(I.op_sel, h), x);
    std::memcpy(result[h], x.value, sizeof(Lanes));
    defined[h] = x.defined;
  }
  for (int h = 0; h < 2; h++) write_half(w, I, h, result[h], defined[h]);
}
OPCODE(v_mov_b64, OWN, 0) {
  alignas(64) Lanes result[2];
  u64 defined[2] = {~0ull, ~0ull};
  if (I.src[0].kind == VGPR || I.src[0].kind == AGPR || I.src[0].kind == SGPR) {
    for (int h = 0; h < 2; h++) {
      Half x;
      fetch_half(w, I.src[0], h, x);
      std::memcpy(result[h], x.value, sizeof(Lanes));
      defined[h] = x.defined;
    }
  } else {
    const u64 x = scalar64(w, I.src[0]);
    FOR_LANES(l) {
      result[0][l] = static_cast<u32>(x);
      result[1][l] = x >> 32;
    }
  }
  for (int h = 0; h < 2; h++) write_half(w, I, h, result[h], defined[h]);
}

// f gets the chosen halves of each source and returns one half of the result.
template <int N, bool Float, class F>
static void packed_16(Wave &w, const Inst &I, F f) {
  const Source A(w, I, 0), B(w, I, 1), C(w, I, N > 2 ? 2 : 1);
  const auto half = [&](u32 x, int i, bool high) -> u16 {
    u16 h = static_cast<u16>(bit(high ? I.op_sel_hi : I.op_sel, i) ? x >> 16 : x);
    if (Float && bit(high ? I.neg_hi : I.neg_lo, i)) h ^= 0x8000;
    return h;
  };
  alignas(64) Lanes d;
  FOR_LANES(l) {
    const u16 low = f(half(A[l], 0, false), half(B[l], 1, false), half(C[l], 2, false));
    const u16 high = f(half(A[l], 0, true), half(B[l], 1, true), half(C[l], 2, true));
    d[l] = low | static_cast<u32>(high) << 16;
  }
  write_vector(w, I, d);
}
#define PACKED_F16(name, count, expr)                                                       \
  OPCODE(name, VECTOR, 0) {                                                                 \
    packed_16<count, true>(w, I, [&](u16 x, u16 y, [[maybe_unused]] u16 z) -> u16 {         \
      const double a = f16_to_f32(x), b = f16_to_f32(y);                                    \
      [[maybe_unused]] const double c = f16_to_f32(z);                                      \
      const double r = (expr);                                                              \
      return f64_to_f16(I.clamp ? modify(I, static_cast<float>(r)) : r);                    \
    });                                                                                     \
  }
#define PACKED_INT(name, count, T, expr)                                                    \
  OPCODE(name, VECTOR, 0) {                                                                 \
    packed_16<count, false>(w, I, [&](u16 x, u16 y, [[maybe_unused]] u16 z) -> u16 {        \
      const T a = static_cast<T>(x), b = static_cast<T>(y);                                 \
      [[maybe_unused]] const T c = static_cast<T>(z);                                       \
      return static_cast<u16>(expr);                                                        \
    });                                                                                     \
  }
static float single(double x) { return static_cast<float>(x); }
PACKED_F16(v_pk_add_f16, 2, a + b)
PACKED_F16(v_pk_mul_f16, 2, a *b)
PACKED_F16(v_pk_fma_f16, 3, a *b + c)
PACKED_F16(v_pk_min_f16, 2, min_num(single(a), single(b)))
PACKED_F16(v_pk_max_f16, 2, max_num(single(a), single(b)))
PACKED_F16(v_pk_minimum3_f16, 3, minimum(minimum(single(a), single(b)), single(c)))
PACKED_F16(v_pk_maximum3_f16, 3, maximum(maximum(single(a), single(b)), single(c)))

static i32 clamp_to(i32 x, i32 low, i32 high, bool on) { return on ? std::clamp(x, low, high) : x; }
PACKED_INT(v_pk_add_u16, 2, u16, clamp_to(a + b, 0, 65535, I.clamp))
PACKED_INT(v_pk_sub_u16, 2, u16, clamp_to(a - b, 0, 65535, I.clamp))
PACKED_INT(v_pk_add_i16, 2, i16, clamp_to(a + b, -32768, 32767, I.clamp))
PACKED_INT(v_pk_sub_i16, 2, i16, clamp_to(a - b, -32768, 32767, I.clamp))
PACKED_INT(v_pk_mul_lo_u16, 2, u32, a *b)
PACKED_INT(v_pk_mad_u16, 3, u32, a *b + c)
PACKED_INT(v_pk_mad_i16, 3, u32, a *b + c)
PACKED_INT(v_pk_lshlrev_b16, 2, u16, b << (a & 15))
PACKED_INT(v_pk_lshrrev_b16, 2, u16, b >> (a & 15))
PACKED_INT(v_pk_ashrrev_i16, 2, i16, b >> (a & 15))
PACKED_INT(v_pk_min_u16, 2, u16, std::min(a, b))
PACKED_INT(v_pk_max_u16, 2, u16, std::max(a, b))
PACKED_INT(v_pk_min_i16, 2, i16, std::min(a, b))
PACKED_INT(v_pk_max_i16, 2, i16, std::max(a, b))
