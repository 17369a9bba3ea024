// Conversions between f32 and the storage formats: f16, bf16, fp8 (e4m3fn), bf8 (e5m2),
// fp6 (e2m3), bf6 (e3m2), fp4 (e2m1), and e8m0 scales. Rounding is to nearest even.
#pragma once
#include "types.h"

inline float f16_to_f32(u16 h) { return static_cast<float>(std::bit_cast<_Float16>(h)); }
inline u16 f32_to_f16(float f) { return std::bit_cast<u16>(static_cast<_Float16>(f)); }
inline u16 f64_to_f16(double f) { return std::bit_cast<u16>(static_cast<_Float16>(f)); }
inline float bf16_to_f32(u16 h) { return as_f32(static_cast<u32>(h) << 16); }
inline u16 f32_to_bf16(float f) {
  const u32 x = bits(f);
  if ((x & 0x7fffffff) > 0x7f800000) return (x >> 16) | 0x40;
  return (x + 0x7fff + ((x >> 16) & 1)) >> 16;
}
u16 f32_to_f16_toward_zero(float f);

struct MiniTables {
  float fp8[256], bf8[256], fp6[64], bf6[64], fp4[16];
  MiniTables();
};
extern const MiniTables kMini;

// `saturate`: what MODE.FP16_OVFL asks for, the largest finite value instead of NaN or infinity.
u8 f32_to_fp8(float f, bool saturate);
u8 f32_to_bf8(float f, bool saturate);
u8 f32_to_fp4(float f);  // always saturates

inline float e8m0_to_f32(u32 code) {
  return code == 255 ? NAN : std::ldexp(1.f, static_cast<int>(code) - 127);
}
