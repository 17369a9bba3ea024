// Integer names, bit casts and the 64-lane vector that the whole engine uses.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using i8 = int8_t;
using i16 = int16_t;
using i32 = int32_t;
using i64 = int64_t;

constexpr int kLanes = 64;
using Lanes = u32[kLanes];

#define FOR_LANES(l) for (int l = 0; l < kLanes; l++)

inline float as_f32(u32 x) { return std::bit_cast<float>(x); }
inline u32 bits(float x) { return std::bit_cast<u32>(x); }
inline double as_f64(u64 x) { return std::bit_cast<double>(x); }
inline u64 bits(double x) { return std::bit_cast<u64>(x); }
inline bool bit(u64 mask, int i) { return (mask >> i) & 1; }
inline int lowest(u64 mask) { return std::countr_zero(mask); }

template <class F>
inline void each_lane(u64 mask, F f) {
  for (; mask; mask &= mask - 1) f(std::countr_zero(mask));
}
