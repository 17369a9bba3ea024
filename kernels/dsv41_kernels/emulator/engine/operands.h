// Reading sources (with DPP, SDWA, negation and so on) and writing results.
#pragma once
#include "machine.h"
#include "minifloat.h"

u64 dpp_fetch(Wave &w, const Inst &I, const u32 *source, u64 source_defined, u32 *out);
u32 sdwa_extract(u32 x, int select, bool sign_extend);
void write_sdwa(const Inst &I, const u32 *old, u32 *value);
u64 special_source(const Wave &w, const Operand &o);

inline u32 scalar32(const Wave &w, const Operand &o) {
  if (o.kind == SGPR) return w.s[o.reg];
  if (o.kind == IMMEDIATE) return static_cast<u32>(o.imm);
  if (o.kind != SPECIAL) return 0;
  const u64 x = special_source(w, o);
  return static_cast<u32>(o.reg >= SRC_SHARED_BASE ? x >> 32 : x);
}
inline u64 scalar64(const Wave &w, const Operand &o) {
  if (o.kind == SGPR) return w.s[o.reg] | static_cast<u64>(w.s[o.reg + 1]) << 32;
  if (o.kind == IMMEDIATE) return o.imm;
  return o.kind == SPECIAL ? special_source(w, o) : 0;
}
inline void write_scalar32(Wave &w, const Operand &o, u32 x) {
  if (o.kind == SGPR) w.s[o.reg] = x;
}
inline void write_scalar64(Wave &w, const Operand &o, u64 x) {
  if (o.kind != SGPR) return;
  w.s[o.reg] = static_cast<u32>(x);
  w.s[o.reg + 1] = x >> 32;
}

// A 32-bit source, one value a lane. Copies only when the operand is not a plain register.
class Source {
 public:
  Source(Wave &w, const Inst &I, int i) {
    const Operand &o = I.src[i];
    if (o.kind == VGPR || o.kind == AGPR) {
      p_ = w.row(o);
    } else {
      const u32 x = scalar32(w, o);
      FOR_LANES(l) buffer_[l] = x;
      p_ = buffer_;
    }
    if (__builtin_expect(I.dpp != DPP_NONE && i == 0, 0)) {
      const u64 defined = o.kind == VGPR ? w.defined[w.row_index(o)] : ~0ull;
      w.write_mask = w.exec() & dpp_fetch(w, I, p_, defined, buffer_);
      p_ = buffer_;
    }
    if (__builtin_expect(I.sdwa && o.sel < kWholeDword, 0)) {
      const bool extend = o.flags & SIGN_EXTEND;
      FOR_LANES(l) buffer_[l] = sdwa_extract(p_[l], o.sel, extend);
      p_ = buffer_;
    }
  }
  u32 operator[](int l) const { return p_[l]; }

 protected:
  const u32 *p_;
  alignas(64) Lanes buffer_;
};

// A Source read as f32, with the operand's absolute value and negation applied.
class FloatSource : public Source {
 public:
  FloatSource(Wave &w, const Inst &I, int i) : Source(w, I, i) {
    const u8 flags = I.src[i].flags & (NEGATE | ABSOLUTE);
    if (!flags) return;
    const u32 keep = flags & ABSOLUTE ? 0x7fffffff : ~0u;
    const u32 flip = flags & NEGATE ? 0x80000000 : 0;
    FOR_LANES(l) buffer_[l] = (p_[l] & keep) ^ flip;
    p_ = buffer_;
  }
  float operator[](int l) const { return as_f32(p_[l]); }
};

// A 64-bit source.
class Source64 {
 public:
  Source64(Wave &w, const Inst &I, int i) {
    const Operand &o = I.src[i];
    if (o.kind == VGPR || o.kind == AGPR) {
      const u32 *low = w.row(o), *high = w.row(o, 1);
      FOR_LANES(l) x_[l] = low[l] | static_cast<u64>(high[l]) << 32;
    } else {
      const u64 x = scalar64(w, o);
      FOR_LANES(l) x_[l] = x;
    }
    flags_ = o.flags;
  }
  u64 operator[](int l) const { return x_[l]; }
  double f64(int l) const {
    u64 x = x_[l];
    if (flags_ & ABSOLUTE) x &= ~(1ull << 63);
    if (flags_ & NEGATE) x ^= 1ull << 63;
    return as_f64(x);
  }

 private:
  u64 x_[kLanes];
  u8 flags_;
};

// Half `op_sel` of a 16-bit float source, negation and absolute value applied.
inline u16 half_bits(const Inst &I, int i, u32 x) {
  u16 h = static_cast<u16>(bit(I.op_sel, i) ? x >> 16 : x);
  if (I.src[i].flags & ABSOLUTE) h &= 0x7fff;
  if (I.src[i].flags & NEGATE) h ^= 0x8000;
  return h;
}

inline void store_row(u32 *to, const u32 *from, u64 mask) {
  if (mask == ~0ull) {
    std::memcpy(to, from, sizeof(Lanes));
    return;
  }
  FOR_LANES(l) to[l] = bit(mask, l) ? from[l] : to[l];
}

// Writes dword k of result 0 in the lanes that execute.
inline void write_row(Wave &w, const Inst &I, int k, const u32 *value) {
  store_row(w.row(I.dst[0], k), value, w.write_mask);
}
inline void write_vector(Wave &w, const Inst &I, u32 *value) {
  u32 *to = w.row(I.dst[0]);
  if (__builtin_expect(I.sdwa && I.dst_sel < kWholeDword, 0)) write_sdwa(I, to, value);
  store_row(to, value, w.write_mask);
}
inline void write_vector64(Wave &w, const Inst &I, const u64 *value) {
  alignas(64) Lanes low, high;
  FOR_LANES(l) {
    low[l] = static_cast<u32>(value[l]);
    high[l] = value[l] >> 32;
  }
  write_row(w, I, 0, low);
  write_row(w, I, 1, high);
}

// Output modifier and clamp of a float result.
inline float modify(const Inst &I, float x) {
  if (I.omod == 1) x *= 2;
  if (I.omod == 2) x *= 4;
  if (I.omod == 3) x *= 0.5f;
  if (I.clamp) x = std::isnan(x) ? 0.f : x < 0 ? 0.f : x > 1 ? 1.f : x;
  return x;
}

constexpr u32 kModeFp16Overflow = 1u << 23;
inline bool saturates(const Wave &w) { return w.mode & kModeFp16Overflow; }

inline u32 put_half(u32 old, u32 value, bool high) {
  return high ? (old & 0xffff) | value << 16 : (old & 0xffff0000) | (value & 0xffff);
}

enum class Into { WHOLE, LOW, HIGH };  // d16 loads fill one half

// A lane's loaded value into its registers.
template <int Size, bool Signed, Into Half>
void load_lane(Wave &w, u32 first, int l, const u8 *bytes) {
  if constexpr (Size >= 4) {
    for (int k = 0; k < Size / 4; k++) std::memcpy(&w.v[(first + k) * kLanes + l], bytes + 4 * k, 4);
  } else {
    u32 x = 0;
    std::memcpy(&x, bytes, Size);
    if (Signed)
      x = Size == 1 ? static_cast<u32>(static_cast<i8>(x)) : static_cast<u32>(static_cast<i16>(x));
    u32 &to = w.v[first * kLanes + l];
    to = Half == Into::WHOLE ? x : put_half(to, x & 0xffff, Half == Into::HIGH);
  }
}
inline u32 put_byte(u32 old, u32 value, int k) {
  return (old & ~(0xffu << (8 * k))) | (value & 0xff) << (8 * k);
}

// min and max as IEEE 754-2008 minNum/maxNum with -0 < +0; minimum and maximum keep NaN.
inline float min_num(float a, float b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  return a < b || (a == b && std::signbit(a)) ? a : b;
}
inline float max_num(float a, float b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  return a > b || (a == b && !std::signbit(a)) ? a : b;
}
inline float minimum(float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : min_num(a, b); }
inline float maximum(float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : max_num(a, b); }
inline float median(float a, float b, float c) {
  if (std::isnan(a) || std::isnan(b) || std::isnan(c)) return min_num(min_num(a, b), c);
  const float largest = max_num(max_num(a, b), c);
  return largest == a ? max_num(b, c) : largest == b ? max_num(a, c) : max_num(a, b);
}

inline u32 bit_field(u32 a, u32 offset, u32 width) {
  if (width == 0) return 0;
  return width >= 32 ? a >> offset : (a >> offset) & ((1u << width) - 1);
}
inline i32 signed_bit_field(u32 a, u32 offset, u32 width) {
  if (width == 0) return 0;
  if (offset + width >= 32) return static_cast<i32>(a) >> offset;
  return static_cast<i32>(a << (32 - offset - width)) >> (32 - width);
}
inline u32 reverse_bits(u32 x) {
  u32 r = 0;
  for (int i = 0; i < 32; i++) r |= ((x >> i) & 1) << (31 - i);
  return r;
}
inline i32 first_bit_signed(u32 a) {  // leading bits equal to the sign, or -1 if all are
  const u32 x = static_cast<i32>(a) < 0 ? ~a : a;
  return x ? std::countl_zero(x) : -1;
}
