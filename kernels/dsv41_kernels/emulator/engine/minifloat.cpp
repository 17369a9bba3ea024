#include "minifloat.h"

namespace {

float decode(int x, int exponent_bits, int mantissa_bits, int bias, bool top_is_nan, bool has_inf) {
  const int top = (1 << exponent_bits) - 1, mantissa_mask = (1 << mantissa_bits) - 1;
  const int exponent = (x >> mantissa_bits) & top, mantissa = x & mantissa_mask;
  const bool negative = (x >> (exponent_bits + mantissa_bits)) & 1;
  const float fraction = mantissa / static_cast<float>(1 << mantissa_bits);
  float value;
  if (has_inf && exponent == top)
    value = mantissa ? NAN : INFINITY;
  else if (top_is_nan && exponent == top && mantissa == mantissa_mask)
    value = NAN;
  else if (exponent)
    value = std::ldexp(1 + fraction, exponent - bias);
  else
    value = std::ldexp(fraction, 1 - bias);
  return negative ? -value : value;
}

// Magnitude bits of |f| rounded to nearest even, or `overflow` when that exceeds `largest`.
u32 encode(float f, int mantissa_bits, int bias, double largest, u32 overflow) {
  const double magnitude = std::fabs(static_cast<double>(f));
  if (magnitude == 0) return 0;
  int exponent;
  std::frexp(magnitude, &exponent);
  exponent = std::max(exponent - 1, 1 - bias);
  const double rounded =
      std::ldexp(std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent)),
                 exponent - mantissa_bits);
  if (rounded > largest) return overflow;
  if (rounded == 0) return 0;
  std::frexp(rounded, &exponent);
  exponent -= 1;
  if (exponent < 1 - bias) return static_cast<u32>(std::ldexp(rounded, mantissa_bits - (1 - bias)));
  const u32 significand = static_cast<u32>(std::ldexp(rounded, mantissa_bits - exponent));
  return static_cast<u32>(exponent + bias) << mantissa_bits |
         (significand & ((1u << mantissa_bits) - 1));
}

}  // namespace

MiniTables::MiniTables() {
  for (int i = 0; i < 256; i++) {
    fp8[i] = decode(i, 4, 3, 7, true, false);
    bf8[i] = decode(i, 5, 2, 15, false, true);
  }
  for (int i = 0; i < 64; i++) {
    fp6[i] = decode(i, 2, 3, 1, false, false);
    bf6[i] = decode(i, 3, 2, 3, false, false);
  }
  for (int i = 0; i < 16; i++) fp4[i] = decode(i, 2, 1, 1, false, false);
}
const MiniTables kMini;

u8 f32_to_fp8(float f, bool saturate) {
  const u32 sign = std::signbit(f) ? 0x80 : 0;
  if (std::isnan(f)) return sign | 0x7f;
  return sign | encode(f, 3, 7, 448, saturate ? 0x7e : 0x7f);
}

u8 f32_to_bf8(float f, bool saturate) {
  const u32 sign = std::signbit(f) ? 0x80 : 0;
  if (std::isnan(f)) return sign | 0x7f;
  if (std::isinf(f)) return sign | 0x7c;
  return sign | encode(f, 2, 15, 57344, saturate ? 0x7b : 0x7c);
}

u8 f32_to_fp4(float f) {
  if (std::isnan(f)) return 7;
  return (std::signbit(f) ? 8 : 0) | encode(f, 1, 1, 6, 7);
}

u16 f32_to_f16_toward_zero(float f) {
  const u16 h = f32_to_f16(f);
  const bool away = !std::isnan(f) && std::fabs(f16_to_f32(h)) > std::fabs(f);
  return away && !std::isinf(f) ? h - 1 : h;
}
