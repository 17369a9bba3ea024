// Vector f32, f64 and scalar-half (f16) arithmetic.
//
// add, mul and fma are IEEE with denormals. Reciprocal, square root, exponential, logarithm, sine
// and cosine are correctly rounded here where the chip is within 1 ulp (sin, cos: more), and treat
// denormal f32 inputs and results as zero, as it does.
#include "operands.h"

template <int N, class F>
static void float_op(Wave &w, const Inst &I, F f) {
  const FloatSource A(w, I, 0);
  alignas(64) Lanes d;
  if constexpr (N == 1) {
    FOR_LANES(l) d[l] = bits(f(A[l]));
  } else if constexpr (N == 2) {
    const FloatSource B(w, I, 1);
    FOR_LANES(l) d[l] = bits(f(A[l], B[l]));
  } else {
    const FloatSource B(w, I, 1), C(w, I, 2);
    FOR_LANES(l) d[l] = bits(f(A[l], B[l], C[l]));
  }
  if (I.omod | I.clamp) FOR_LANES(l) d[l] = bits(modify(I, as_f32(d[l])));
  write_vector(w, I, d);
}
#define F32_1(name, expr) \
  OPCODE(name, VECTOR, 0) { float_op<1>(w, I, [](float a) -> float { return expr; }); }
#define F32_2(name, expr) \
  OPCODE(name, VECTOR, 0) { float_op<2>(w, I, [](float a, float b) -> float { return expr; }); }
#define F32_3(name, expr)                                                                   \
  OPCODE(name, VECTOR, 0) {                                                                 \
    float_op<3>(w, I, [](float a, float b, float c) -> float { return expr; });             \
  }

static float flush(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.f, x) : x; }
static float flushed(double x) { return flush(static_cast<float>(x)); }
static bool special(float x) { return std::isinf(x) || std::isnan(x); }
static float mantissa_of(float x) {
  int exponent;
  return special(x) ? x : std::frexp(x, &exponent);
}
static int exponent_of(double x) {
  int exponent = 0;
  if (!std::isinf(x) && !std::isnan(x)) std::frexp(x, &exponent);
  return exponent;
}
// 1 - 2^-24 is the largest fraction.
static float fraction(float x) { return std::fmin(x - std::floor(x), 0x1.fffffep-1f); }

F32_2(v_add_f32, a + b)
F32_2(v_sub_f32, a - b)
F32_2(v_subrev_f32, b - a)
F32_2(v_mul_f32, a *b)
F32_2(v_mul_legacy_f32, a == 0 || b == 0 ? 0.f : a * b)
F32_2(v_min_f32, min_num(a, b))
F32_2(v_max_f32, max_num(a, b))
F32_3(v_fma_f32, std::fma(a, b, c))
F32_3(v_fmaak_f32, std::fma(a, b, c))
F32_3(v_fmamk_f32, std::fma(a, b, c))
F32_3(v_min3_f32, min_num(min_num(a, b), c))
F32_3(v_max3_f32, max_num(max_num(a, b), c))
F32_3(v_med3_f32, median(a, b, c))
F32_3(v_minimum3_f32, minimum(minimum(a, b), c))
F32_3(v_maximum3_f32, maximum(maximum(a, b), c))
F32_1(v_floor_f32, std::floor(a))
F32_1(v_ceil_f32, std::ceil(a))
F32_1(v_trunc_f32, std::trunc(a))
F32_1(v_rndne_f32, std::nearbyint(a))
F32_1(v_fract_f32, fraction(a))
F32_1(v_frexp_mant_f32, mantissa_of(a))
F32_1(v_rcp_f32, flushed(1.0 / flush(a)))
F32_1(v_rcp_iflag_f32, flushed(1.0 / flush(a)))
F32_1(v_rsq_f32, flushed(1.0 / std::sqrt(static_cast<double>(flush(a)))))
F32_1(v_sqrt_f32, std::sqrt(flush(a)))
F32_1(v_exp_f32, flushed(std::exp2(static_cast<double>(flush(a)))))
F32_1(v_log_f32, flushed(std::log2(static_cast<double>(flush(a)))))
F32_1(v_sin_f32, static_cast<float>(std::sin(2 * M_PI * static_cast<double>(flush(a)))))
F32_1(v_cos_f32, static_cast<float>(std::cos(2 * M_PI * static_cast<double>(flush(a)))))

OPCODE(v_fmac_f32, VECTOR, READS_DST) {
  const u32 *sum = w.row(I.dst[0]);
  const FloatSource A(w, I, 0), B(w, I, 1);
  alignas(64) Lanes d;
  FOR_LANES(l) d[l] = bits(std::fma(A[l], B[l], as_f32(sum[l])));
  if (I.omod | I.clamp) FOR_LANES(l) d[l] = bits(modify(I, as_f32(d[l])));
  write_vector(w, I, d);
}
OPCODE(v_ldexp_f32, VECTOR, 0) {
  const FloatSource A(w, I, 0);
  const Source B(w, I, 1);
  alignas(64) Lanes d;
  FOR_LANES(l) d[l] = bits(modify(I, std::ldexp(A[l], static_cast<i32>(B[l]))));
  write_vector(w, I, d);
}
OPCODE(v_frexp_exp_i32_f32, VECTOR, 0) {
  const FloatSource A(w, I, 0);
  alignas(64) Lanes d;
  FOR_LANES(l) d[l] = static_cast<u32>(exponent_of(A[l]));
  write_vector(w, I, d);
}

// ---- f32 division steps, as the ISA manual defines them -------------------------------------------

static int biased_exponent(float x) { return (bits(x) >> 23) & 0xff; }
static bool denormal(float x) { return biased_exponent(x) == 0 && x != 0; }

OPCODE(v_div_scale_f32, VECTOR, 0) {
  const FloatSource A(w, I, 0), B(w, I, 1), C(w, I, 2);
  alignas(64) Lanes d;
  u64 scaled = 0;
  FOR_LANES(l) {
    const float value = A[l], divisor = B[l], dividend = C[l];
    float r = value;
    bool post = false;
    if (divisor == 0 || dividend == 0) {
      r = NAN;
      post = true;
    } else if (biased_exponent(dividend) - biased_exponent(divisor) >= 96) {
      post = true;
      if (value == divisor) r = std::ldexp(value, 64);
    } else if (denormal(divisor)) {
      r = std::ldexp(value, 64);
    } else if (denormal(1.f / divisor) && denormal(dividend / divisor)) {
      // The manual says 2^64 here, which overflows; 2^-64 is what gives the right quotient.
      post = true;
      if (value == divisor) r = std::ldexp(value, -64);
    } else if (denormal(1.f / divisor)) {
      r = std::ldexp(value, -64);
    } else if (denormal(dividend / divisor)) {
      post = true;
      if (value == dividend) r = std::ldexp(value, 64);
    } else if (biased_exponent(dividend) <= 23) {
      r = std::ldexp(value, 64);
    }
    d[l] = bits(r);
    scaled |= static_cast<u64>(post) << l;
  }
  write_vector(w, I, d);
  write_scalar64(w, I.dst[1], scaled & w.exec());
}
OPCODE(v_div_fmas_f32, VECTOR, READS_VCC) {
  const FloatSource A(w, I, 0), B(w, I, 1), C(w, I, 2);
  const u64 scaled = w.vcc();
  alignas(64) Lanes d;
  FOR_LANES(l) {
    float r = std::fma(A[l], B[l], C[l]);
    if (bit(scaled, l)) r = std::ldexp(r, biased_exponent(C[l]) > 127 ? 64 : -64);
    d[l] = bits(r);
  }
  write_vector(w, I, d);
}
static float fix_quotient(float quotient, float divisor, float dividend) {
  const bool negative = std::signbit(divisor) != std::signbit(dividend);
  const float infinity = negative ? -INFINITY : INFINITY, zero = negative ? -0.f : 0.f;
  if (std::isnan(dividend)) return dividend;
  if (std::isnan(divisor)) return divisor;
  if (divisor == 0 && dividend == 0) return -NAN;
  if (std::isinf(divisor) && std::isinf(dividend)) return -NAN;
  if (divisor == 0 || std::isinf(dividend)) return infinity;
  if (std::isinf(divisor) || dividend == 0) return zero;
  if (biased_exponent(dividend) - biased_exponent(divisor) < -150) return zero;
  if (std::isnan(quotient)) return infinity;
  return negative ? -std::fabs(quotient) : std::fabs(quotient);
}
F32_3(v_div_fixup_f32, fix_quotient(a, b, c))

// ---- f64 ------------------------------------------------------------------------------------------

#define F64_2(name, expr)                               \
  OPCODE(name, VECTOR, 0) {                             \
    const Source64 A(w, I, 0), B(w, I, 1);              \
    u64 d[kLanes];                                      \
    FOR_LANES(l) {                                      \
      const double a = A.f64(l), b = B.f64(l);          \
      d[l] = bits(static_cast<double>(expr));           \
    }                                                   \
    write_vector64(w, I, d);                            \
  }
F64_2(v_add_f64, a + b)
F64_2(v_mul_f64, a *b)
F64_2(v_min_f64, std::fmin(a, b))
F64_2(v_max_f64, std::fmax(a, b))
OPCODE(v_fma_f64, VECTOR, 0) {
  const Source64 A(w, I, 0), B(w, I, 1), C(w, I, 2);
  u64 d[kLanes];
  FOR_LANES(l) d[l] = bits(std::fma(A.f64(l), B.f64(l), C.f64(l)));
  write_vector64(w, I, d);
}
OPCODE(v_fmac_f64, VECTOR, READS_DST) {
  const Source64 A(w, I, 0), B(w, I, 1);
  const u32 *low = w.row(I.dst[0]), *high = w.row(I.dst[0], 1);
  u64 d[kLanes];
  FOR_LANES(l) {
    const double sum = as_f64(low[l] | static_cast<u64>(high[l]) << 32);
    d[l] = bits(std::fma(A.f64(l), B.f64(l), sum));
  }
  write_vector64(w, I, d);
}

// ---- f16 ------------------------------------------------------------------------------------------

// f works in f64, which rounds every f16 sum, product and fma exactly once in the end.
template <int N, class F>
static void half_op(Wave &w, const Inst &I, F f) {
  alignas(64) Lanes d;
  const Source A(w, I, 0);
  const Source B(w, I, N > 1 ? 1 : 0), C(w, I, N > 2 ? 2 : 0);
  const u32 *old = w.row(I.dst[0]);
  const bool high = bit(I.op_sel, 3);
  FOR_LANES(l) {
    const double a = f16_to_f32(half_bits(I, 0, A[l]));
    const double b = N > 1 ? f16_to_f32(half_bits(I, 1, B[l])) : 0;
    const double c = N > 2 ? f16_to_f32(half_bits(I, 2, C[l])) : 0;
    double r = f(a, b, c);
    if (I.omod | I.clamp) r = modify(I, static_cast<float>(r));
    const u16 h = f64_to_f16(r);
    d[l] = high ? (old[l] & 0xffff) | static_cast<u32>(h) << 16 : h;
  }
  write_vector(w, I, d);
}
#define F16(name, count, expr)                                                            \
  OPCODE(name, VECTOR, 0) {                                                               \
    half_op<count>(w, I, []([[maybe_unused]] double a, [[maybe_unused]] double b,         \
                            [[maybe_unused]] double c) -> double { return expr; });       \
  }
static double min_half(double a, double b) {
  return min_num(static_cast<float>(a), static_cast<float>(b));
}
static double max_half(double a, double b) {
  return max_num(static_cast<float>(a), static_cast<float>(b));
}
F16(v_add_f16, 2, a + b)
F16(v_sub_f16, 2, a - b)
F16(v_subrev_f16, 2, b - a)
F16(v_mul_f16, 2, a *b)
F16(v_min_f16, 2, min_half(a, b))
F16(v_max_f16, 2, max_half(a, b))
F16(v_fma_f16, 3, a *b + c)
F16(v_min3_f16, 3, min_half(min_half(a, b), c))
F16(v_max3_f16, 3, max_half(max_half(a, b), c))
F16(v_med3_f16, 3, median(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c)))
F16(v_rcp_f16, 1, 1 / a)
F16(v_sqrt_f16, 1, std::sqrt(a))
F16(v_rsq_f16, 1, 1 / std::sqrt(a))
F16(v_exp_f16, 1, std::exp2(a))
F16(v_log_f16, 1, std::log2(a))
F16(v_floor_f16, 1, std::floor(a))
F16(v_ceil_f16, 1, std::ceil(a))
F16(v_trunc_f16, 1, std::trunc(a))
F16(v_rndne_f16, 1, std::nearbyint(a))
OPCODE(v_ldexp_f16, VECTOR, 0) {
  const Source A(w, I, 0), B(w, I, 1);
  alignas(64) Lanes d;
  FOR_LANES(l)
    d[l] = f64_to_f16(std::ldexp(static_cast<double>(f16_to_f32(half_bits(I, 0, A[l]))),
                                 static_cast<i16>(B[l])));
  write_vector(w, I, d);
}
OPCODE(v_pack_b32_f16, VECTOR, 0) {
  const Source A(w, I, 0), B(w, I, 1);
  alignas(64) Lanes d;
  FOR_LANES(l)
    d[l] = half_bits(I, 0, A[l]) | static_cast<u32>(half_bits(I, 1, B[l])) << 16;
  write_vector(w, I, d);
}

// Mixed precision: op_sel_hi makes a source f16, op_sel then chooses its half.
static float mixed_source(const Inst &I, int i, u32 x) {
  float f = bit(I.op_sel_hi, i) ? f16_to_f32(static_cast<u16>(bit(I.op_sel, i) ? x >> 16 : x))
                                : as_f32(x);
  // VOP3P: neg_hi is the absolute value, neg_lo the negation.
  if (bit(I.neg_hi, i) || (I.src[i].flags & ABSOLUTE)) f = std::fabs(f);
  if (bit(I.neg_lo, i) || (I.src[i].flags & NEGATE)) f = -f;
  return f;
}
template <class F>
static void mixed_fma(Wave &w, const Inst &I, F place) {
  const Source A(w, I, 0), B(w, I, 1), C(w, I, 2);
  const u32 *old = w.row(I.dst[0]);
  alignas(64) Lanes d;
  FOR_LANES(l) {
    const float r = std::fma(mixed_source(I, 0, A[l]), mixed_source(I, 1, B[l]),
                             mixed_source(I, 2, C[l]));
    d[l] = place(modify(I, r), old[l]);
  }
  write_vector(w, I, d);
}
OPCODE(v_fma_mix_f32, VECTOR, 0) {
  mixed_fma(w, I, [](float r, u32) { return bits(r); });
}
OPCODE(v_fma_mixlo_f16, VECTOR, 0) {
  mixed_fma(w, I, [](float r, u32 old) { return put_half(old, f32_to_f16(r), false); });
}
OPCODE(v_fma_mixhi_f16, VECTOR, 0) {
  mixed_fma(w, I, [](float r, u32 old) { return put_half(old, f32_to_f16(r), true); });
}

// ---- Dot products -----------------------------------------------------------------------------------

template <float (*Convert)(u16)>
static void dot2(Wave &w, const Inst &I) {
  const Source A(w, I, 0), B(w, I, 1);
  const bool accumulates = I.nsrc < 3;  // v_dot2c: the sum is the old result
  const FloatSource C(w, I, accumulates ? 1 : 2);
  const u32 *old = w.row(I.dst[0]);
  alignas(64) Lanes d;
  FOR_LANES(l) {
    const double low = static_cast<double>(Convert(static_cast<u16>(A[l]))) *
                       Convert(static_cast<u16>(B[l]));
    const double high = static_cast<double>(Convert(A[l] >> 16)) * Convert(B[l] >> 16);
    const float sum = accumulates ? as_f32(old[l]) : C[l];
    d[l] = bits(static_cast<float>(low + high + sum));
  }
  write_vector(w, I, d);
}
OPCODE(v_dot2_f32_f16, VECTOR, 0) { dot2<f16_to_f32>(w, I); }
OPCODE(v_dot2_f32_bf16, VECTOR, 0) { dot2<bf16_to_f32>(w, I); }
OPCODE(v_dot2c_f32_f16, VECTOR, READS_DST) { dot2<f16_to_f32>(w, I); }
OPCODE(v_dot2c_f32_bf16, VECTOR, READS_DST) { dot2<bf16_to_f32>(w, I); }
