// Conversions between integers, f32, f64, f16, bf16 and the scaled small formats.
//
// Where an instruction writes one half or byte of its result and keeps the rest, the kept part
// counts as written. Stochastic-rounding conversions (v_cvt_sr_*) are not modelled.
#include <algorithm>

#include "operands.h"

static u32 to_i32(double x) {
  if (std::isnan(x)) return 0;
  if (x >= 2147483647.0) return 0x7fffffff;
  if (x <= -2147483648.0) return 0x80000000;
  return static_cast<u32>(static_cast<i32>(x));
}
static u32 to_u32(double x) {
  if (std::isnan(x) || x <= 0) return 0;
  return x >= 4294967295.0 ? ~0u : static_cast<u32>(x);
}

#define FROM_F32(name, expr)                            \
  OPCODE(name, VECTOR, 0) {                             \
    const FloatSource A(w, I, 0);                       \
    alignas(64) Lanes d;                                \
    FOR_LANES(l) {                                      \
      const float a = A[l];                             \
      d[l] = expr;                                      \
    }                                                   \
    write_vector(w, I, d);                              \
  }
#define TO_F32(name, expr)                              \
  OPCODE(name, VECTOR, 0) {                             \
    const Source A(w, I, 0);                            \
    alignas(64) Lanes d;                                \
    FOR_LANES(l) {                                      \
      const u32 a = A[l];                               \
      d[l] = bits(modify(I, static_cast<float>(expr))); \
    }                                                   \
    write_vector(w, I, d);                              \
  }
#define PAIR_OF_F32(name, expr)                         \
  OPCODE(name, VECTOR, 0) {                             \
    const FloatSource A(w, I, 0), B(w, I, 1);           \
    alignas(64) Lanes d;                                \
    FOR_LANES(l) {                                      \
      const float a = A[l], b = B[l];                   \
      d[l] = expr;                                      \
    }                                                   \
    write_vector(w, I, d);                              \
  }

FROM_F32(v_cvt_i32_f32, to_i32(a))
FROM_F32(v_cvt_u32_f32, to_u32(a))
FROM_F32(v_cvt_rpi_i32_f32, to_i32(std::floor(static_cast<double>(a) + 0.5)))
FROM_F32(v_cvt_flr_i32_f32, to_i32(std::floor(a)))
TO_F32(v_cvt_f32_i32, static_cast<i32>(a))
TO_F32(v_cvt_f32_u32, a)
TO_F32(v_cvt_f32_ubyte0, a & 0xff)
TO_F32(v_cvt_f32_ubyte1, (a >> 8) & 0xff)
TO_F32(v_cvt_f32_ubyte2, (a >> 16) & 0xff)
TO_F32(v_cvt_f32_ubyte3, a >> 24)
TO_F32(v_cvt_f32_f16, f16_to_f32(half_bits(I, 0, a)))
TO_F32(v_cvt_f32_bf16, bf16_to_f32(half_bits(I, 0, a)))

static u16 narrow_f16(const Wave &w, float x) {
  const u16 h = f32_to_f16(x);
  return saturates(w) && (h & 0x7fff) == 0x7c00 && !std::isinf(x) ? (h & 0x8000) | 0x7bff : h;
}
OPCODE(v_cvt_f16_f32, VECTOR, 0) {
  const FloatSource A(w, I, 0);
  const u32 *old = w.row(I.dst[0]);
  const bool high = bit(I.op_sel, 3);
  alignas(64) Lanes d;
  FOR_LANES(l) {
    const u16 h = narrow_f16(w, modify(I, A[l]));
    d[l] = high ? put_half(old[l], h, true) : h;
  }
  write_vector(w, I, d);
}
#define HALF_INT(name, expr)                                   \
  OPCODE(name, VECTOR, 0) {                                    \
    const Source A(w, I, 0);                                   \
    alignas(64) Lanes d;                                       \
    FOR_LANES(l) {                                             \
      const u32 a = A[l];                                      \
      d[l] = static_cast<u16>(expr);                           \
    }                                                          \
    write_vector(w, I, d);                                     \
  }
HALF_INT(v_cvt_f16_u16, f32_to_f16(static_cast<u16>(a)))
HALF_INT(v_cvt_f16_i16, f32_to_f16(static_cast<i16>(a)))
HALF_INT(v_cvt_u16_f16, std::min(to_u32(f16_to_f32(half_bits(I, 0, a))), 65535u))
HALF_INT(v_cvt_i16_f16,
         std::clamp(static_cast<i32>(to_i32(f16_to_f32(half_bits(I, 0, a)))), -32768, 32767))

// ---- f64 --------------------------------------------------------------------------------------

OPCODE(v_cvt_f64_f32, VECTOR, 0) {
  const FloatSource A(w, I, 0);
  u64 d[kLanes];
  FOR_LANES(l) d[l] = bits(static_cast<double>(A[l]));
  write_vector64(w, I, d);
}
OPCODE(v_cvt_f64_i32, VECTOR, 0) {
  const Source A(w, I, 0);
  u64 d[kLanes];
  FOR_LANES(l) d[l] = bits(static_cast<double>(static_cast<i32>(A[l])));
  write_vector64(w, I, d);
}
OPCODE(v_cvt_f64_u32, VECTOR, 0) {
  const Source A(w, I, 0);
  u64 d[kLanes];
  FOR_LANES(l) d[l] = bits(static_cast<double>(A[l]));
  write_vector64(w, I, d);
}
#define FROM_F64(name, expr)                     \
  OPCODE(name, VECTOR, 0) {                      \
    const Source64 A(w, I, 0);                   \
    alignas(64) Lanes d;                         \
    FOR_LANES(l) {                               \
      const double a = A.f64(l);                 \
      d[l] = expr;                               \
    }                                            \
    write_vector(w, I, d);                       \
  }
FROM_F64(v_cvt_f32_f64, bits(static_cast<float>(a)))
FROM_F64(v_cvt_i32_f64, to_i32(a))
FROM_F64(v_cvt_u32_f64, to_u32(a))

// ---- Pairs of 16-bit values --------------------------------------------------------------------

static u16 normalized(float a, float scale, float least) {
  return static_cast<u16>(std::nearbyint(std::clamp(std::isnan(a) ? 0.f : a, least, 1.f) * scale));
}
static u16 normalized_signed(float a) {
  return static_cast<u16>(static_cast<i16>(std::nearbyint(std::clamp(std::isnan(a) ? 0.f : a, -1.f, 1.f) * 32767.f)));
}
static u32 join(u32 low, u32 high) { return (low & 0xffff) | high << 16; }
PAIR_OF_F32(v_cvt_pk_bf16_f32, join(f32_to_bf16(a), f32_to_bf16(b)))
PAIR_OF_F32(v_cvt_pk_f16_f32, join(narrow_f16(w, a), narrow_f16(w, b)))
PAIR_OF_F32(v_cvt_pkrtz_f16_f32, join(f32_to_f16_toward_zero(a), f32_to_f16_toward_zero(b)))
PAIR_OF_F32(v_cvt_pknorm_i16_f32, join(normalized_signed(a), normalized_signed(b)))
PAIR_OF_F32(v_cvt_pknorm_u16_f32, join(normalized(a, 65535.f, 0.f), normalized(b, 65535.f, 0.f)))
OPCODE(v_cvt_pk_u8_f32, VECTOR, 0) {
  const FloatSource A(w, I, 0);
  const Source B(w, I, 1), C(w, I, 2);
  alignas(64) Lanes d;
  FOR_LANES(l) d[l] = put_byte(C[l], std::min(to_u32(std::nearbyint(A[l])), 255u), B[l] & 3);
  write_vector(w, I, d);
}

// ---- fp8, bf8, fp4 -----------------------------------------------------------------------------

using Encode = u8 (*)(float, bool);

// Two f32 to two bytes of one half of the result.
template <Encode E>
static void pair_to_bytes(Wave &w, const Inst &I) {
  const FloatSource A(w, I, 0), B(w, I, 1);
  const u32 *old = w.row(I.dst[0]);
  const bool high = bit(I.op_sel, 3), saturate = saturates(w);
  alignas(64) Lanes d;
  FOR_LANES(l)
    d[l] = put_half(old[l], E(A[l], saturate) | static_cast<u32>(E(B[l], saturate)) << 8, high);
  write_vector(w, I, d);
}
OPCODE(v_cvt_pk_fp8_f32, VECTOR, 0) { pair_to_bytes<f32_to_fp8>(w, I); }
OPCODE(v_cvt_pk_bf8_f32, VECTOR, 0) { pair_to_bytes<f32_to_bf8>(w, I); }

static void byte_to_f32(Wave &w, const Inst &I, const float *table) {
  const Source A(w, I, 0);
  // op_sel[1:0] selects the byte with its bits swapped: bit 0 is the word, bit 1 the byte.
  const int k = I.sdwa ? 0 : (I.op_sel & 1) * 2 + (I.op_sel >> 1 & 1);
  alignas(64) Lanes d;
  FOR_LANES(l) d[l] = bits(table[(A[l] >> (8 * k)) & 0xff]);
  write_vector(w, I, d);
}
OPCODE(v_cvt_f32_fp8, VECTOR, 0) { byte_to_f32(w, I, kMini.fp8); }
OPCODE(v_cvt_f32_bf8, VECTOR, 0) { byte_to_f32(w, I, kMini.bf8); }

static void bytes_to_pair(Wave &w, const Inst &I, const float *table) {
  const Source A(w, I, 0);
  const int shift = I.sdwa ? 0 : 16 * (I.op_sel & 1);
  alignas(64) Lanes low, high;
  FOR_LANES(l) {
    const u32 x = A[l] >> shift;
    low[l] = bits(table[x & 0xff]);
    high[l] = bits(table[x >> 8 & 0xff]);
  }
  write_row(w, I, 0, low);
  write_row(w, I, 1, high);
}
OPCODE(v_cvt_pk_f32_fp8, VECTOR, 0) { bytes_to_pair(w, I, kMini.fp8); }
OPCODE(v_cvt_pk_f32_bf8, VECTOR, 0) { bytes_to_pair(w, I, kMini.bf8); }

// Scaled conversions: the scale is the exponent field of an f32; narrowing divides by it.
static float scale_of(u32 x) { return e8m0_to_f32((x >> 23) & 0xff); }
static float divide(float x, float scale) {
  return static_cast<float>(static_cast<double>(x) / scale);
}

struct TwoF32 {
  FloatSource a, b;
  TwoF32(Wave &w, const Inst &I) : a(w, I, 0), b(w, I, 1) {}
  static constexpr int kScale = 2;
  float low(int l) const { return a[l]; }
  float high(int l) const { return b[l]; }
};
template <float (*Convert)(u16)>
struct TwoHalves {
  Source x;
  TwoHalves(Wave &w, const Inst &I) : x(w, I, 0) {}
  static constexpr int kScale = 1;
  float low(int l) const { return Convert(static_cast<u16>(x[l])); }
  float high(int l) const { return Convert(x[l] >> 16); }
};
using TwoF16 = TwoHalves<f16_to_f32>;
using TwoBf16 = TwoHalves<bf16_to_f32>;

template <class Pair, Encode E>
static void scaled_to_bytes(Wave &w, const Inst &I) {
  const Pair x(w, I);
  const Source S(w, I, Pair::kScale);
  const u32 *old = w.row(I.dst[0]);
  const bool high = bit(I.op_sel, 3), saturate = saturates(w);
  alignas(64) Lanes d;
  FOR_LANES(l) {
    const float s = scale_of(S[l]);
    d[l] = put_half(old[l], E(divide(x.low(l), s), saturate) |
                                static_cast<u32>(E(divide(x.high(l), s), saturate)) << 8, high);
  }
  write_vector(w, I, d);
}
OPCODE(v_cvt_scalef32_pk_fp8_f32, VECTOR, 0) { scaled_to_bytes<TwoF32, f32_to_fp8>(w, I); }
OPCODE(v_cvt_scalef32_pk_bf8_f32, VECTOR, 0) { scaled_to_bytes<TwoF32, f32_to_bf8>(w, I); }
OPCODE(v_cvt_scalef32_pk_fp8_f16, VECTOR, 0) { scaled_to_bytes<TwoF16, f32_to_fp8>(w, I); }
OPCODE(v_cvt_scalef32_pk_bf8_f16, VECTOR, 0) { scaled_to_bytes<TwoF16, f32_to_bf8>(w, I); }
OPCODE(v_cvt_scalef32_pk_fp8_bf16, VECTOR, 0) { scaled_to_bytes<TwoBf16, f32_to_fp8>(w, I); }
OPCODE(v_cvt_scalef32_pk_bf8_bf16, VECTOR, 0) { scaled_to_bytes<TwoBf16, f32_to_bf8>(w, I); }

template <class Pair>
static void scaled_to_fp4(Wave &w, const Inst &I) {
  const Pair x(w, I);
  const Source S(w, I, Pair::kScale);
  const u32 *old = w.row(I.dst[0]);
  const int k = I.op_sel >> 2 & 3;
  alignas(64) Lanes d;
  FOR_LANES(l) {
    const float s = scale_of(S[l]);
    d[l] = put_byte(old[l], f32_to_fp4(divide(x.low(l), s)) | f32_to_fp4(divide(x.high(l), s)) << 4, k);
  }
  write_vector(w, I, d);
}
OPCODE(v_cvt_scalef32_pk_fp4_f32, VECTOR, 0) { scaled_to_fp4<TwoF32>(w, I); }
OPCODE(v_cvt_scalef32_pk_fp4_f16, VECTOR, 0) { scaled_to_fp4<TwoF16>(w, I); }
OPCODE(v_cvt_scalef32_pk_fp4_bf16, VECTOR, 0) { scaled_to_fp4<TwoBf16>(w, I); }

enum class To { F32, F16, BF16 };

// Two small values, at `shift` of the source, widened and multiplied by the scale.
template <To T>
static void widen_scaled(Wave &w, const Inst &I, const float *table, int width, int shift) {
  const Source A(w, I, 0), S(w, I, 1);
  const u32 mask = (1u << width) - 1;
  alignas(64) Lanes low, high;
  FOR_LANES(l) {
    const float s = scale_of(S[l]);
    const float a = table[A[l] >> shift & mask] * s, b = table[A[l] >> (shift + width) & mask] * s;
    if constexpr (T == To::F32) {
      low[l] = bits(a);
      high[l] = bits(b);
    } else if constexpr (T == To::F16) {
      low[l] = join(f32_to_f16(a), f32_to_f16(b));
    } else {
      low[l] = join(f32_to_bf16(a), f32_to_bf16(b));
    }
  }
  write_row(w, I, 0, low);
  if (T == To::F32) write_row(w, I, 1, high);
}
#define WIDEN(name, to, table, width, shift) \
  OPCODE(name, VECTOR, 0) { widen_scaled<To::to>(w, I, table, width, shift); }
WIDEN(v_cvt_scalef32_pk_f32_fp8, F32, kMini.fp8, 8, 16 * (I.op_sel & 1))
WIDEN(v_cvt_scalef32_pk_f32_bf8, F32, kMini.bf8, 8, 16 * (I.op_sel & 1))
WIDEN(v_cvt_scalef32_pk_f16_fp8, F16, kMini.fp8, 8, 16 * (I.op_sel & 1))
WIDEN(v_cvt_scalef32_pk_f16_bf8, F16, kMini.bf8, 8, 16 * (I.op_sel & 1))
WIDEN(v_cvt_scalef32_pk_bf16_fp8, BF16, kMini.fp8, 8, 16 * (I.op_sel & 1))
WIDEN(v_cvt_scalef32_pk_bf16_bf8, BF16, kMini.bf8, 8, 16 * (I.op_sel & 1))
WIDEN(v_cvt_scalef32_pk_f32_fp4, F32, kMini.fp4, 4, 8 * (I.op_sel & 3))
WIDEN(v_cvt_scalef32_pk_f16_fp4, F16, kMini.fp4, 4, 8 * (I.op_sel & 3))
WIDEN(v_cvt_scalef32_pk_bf16_fp4, BF16, kMini.fp4, 4, 8 * (I.op_sel & 3))
