// Read-modify-write operations, shared by LDS and global memory.
#pragma once
#include "minifloat.h"
#include "operands.h"

enum class Rmw { ADD, SUB, SMIN, UMIN, SMAX, UMAX, AND, OR, XOR, SWAP, CMPSWAP, INC, DEC, ADD_F,
                 MIN_F, MAX_F, ADD_PK_F16, ADD_PK_BF16 };

template <class T>
T apply(Rmw op, T old, T value, T compare) {
  using S = std::make_signed_t<T>;
  const S so = static_cast<S>(old), sv = static_cast<S>(value);
  switch (op) {
    case Rmw::ADD: return old + value;
    case Rmw::SUB: return old - value;
    case Rmw::SMIN: return so < sv ? old : value;
    case Rmw::UMIN: return old < value ? old : value;
    case Rmw::SMAX: return so > sv ? old : value;
    case Rmw::UMAX: return old > value ? old : value;
    case Rmw::AND: return old & value;
    case Rmw::OR: return old | value;
    case Rmw::XOR: return old ^ value;
    case Rmw::SWAP: return value;
    case Rmw::CMPSWAP: return old == compare ? value : old;
    case Rmw::INC: return old >= value ? 0 : old + 1;
    case Rmw::DEC: return old == 0 || old > value ? value : old - 1;
    default: break;
  }
  if constexpr (sizeof(T) == 8) {
    const double a = as_f64(old), b = as_f64(value);
    if (op == Rmw::ADD_F) return bits(a + b);
    return bits(op == Rmw::MIN_F ? std::fmin(a, b) : std::fmax(a, b));
  } else {
    const float a = as_f32(old), b = as_f32(value);
    if (op == Rmw::ADD_F) return bits(a + b);
    if (op == Rmw::MIN_F) return bits(min_num(a, b));
    if (op == Rmw::MAX_F) return bits(max_num(a, b));
    T r = 0;
    for (int shift = 0; shift < 32; shift += 16) {
      const u16 x = static_cast<u16>(old >> shift), y = static_cast<u16>(value >> shift);
      const u16 sum = op == Rmw::ADD_PK_F16 ? f32_to_f16(f16_to_f32(x) + f16_to_f32(y))
                                            : f32_to_bf16(bf16_to_f32(x) + bf16_to_f32(y));
      r |= static_cast<T>(sum) << shift;
    }
    return r;
  }
}
