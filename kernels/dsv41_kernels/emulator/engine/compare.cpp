// Vector compares: one bit a lane into a scalar pair; v_cmpx also into EXEC.
#include "operands.h"

namespace {

enum Test { F, LT, EQ, LE, GT, LG, GE, O, U, NGE, NLG, NGT, NLE, NEQ, NLT, TRU };

template <Test C, class T>
bool holds(T a, T b) {
  switch (C) {
    case F: return false;
    case LT: return a < b;
    case EQ: return a == b;
    case LE: return a <= b;
    case GT: return a > b;
    case LG: return a < b || a > b;
    case GE: return a >= b;
    case O: return a == a && b == b;
    case U: return a != a || b != b;
    case NGE: return !(a >= b);
    case NLG: return !(a < b || a > b);
    case NGT: return !(a > b);
    case NLE: return !(a <= b);
    case NEQ: return !(a == b);
    case NLT: return !(a < b);
    case TRU: return true;
  }
}

struct Half {};  // f16, compared as f32

void deliver(Wave &w, const Inst &I, u64 mask, bool to_exec) {
  mask &= w.exec();
  write_scalar64(w, I.dst[0], mask);
  if (to_exec) w.set_exec(mask);
}

template <Test C, class T, bool ToExec>
void compare(Wave &w, const Inst &I) {
  u64 mask = 0;
  if constexpr (std::is_same_v<T, double> || sizeof(T) == 8) {
    const Source64 A(w, I, 0), B(w, I, 1);
    FOR_LANES(l) {
      if constexpr (std::is_same_v<T, double>)
        mask |= static_cast<u64>(holds<C>(A.f64(l), B.f64(l))) << l;
      else
        mask |= static_cast<u64>(holds<C>(static_cast<T>(A[l]), static_cast<T>(B[l]))) << l;
    }
  } else if constexpr (std::is_same_v<T, float>) {
    const FloatSource A(w, I, 0), B(w, I, 1);
    FOR_LANES(l) mask |= static_cast<u64>(holds<C>(A[l], B[l])) << l;
  } else {
    const Source A(w, I, 0), B(w, I, 1);
    FOR_LANES(l) {
      if constexpr (std::is_same_v<T, Half>)
        mask |= static_cast<u64>(holds<C>(f16_to_f32(half_bits(I, 0, A[l])),
                                          f16_to_f32(half_bits(I, 1, B[l])))) << l;
      else
        mask |= static_cast<u64>(holds<C>(static_cast<T>(A[l]), static_cast<T>(B[l]))) << l;
    }
  }
  deliver(w, I, mask, ToExec);
}

template <Test C, class T>
void add(const char *test, const char *type) {
  const std::string suffix = std::string(test) + "_" + type;
  RegisterOpcode(("v_cmp_" + suffix).c_str(), Flow::COMPARE, 0, compare<C, T, false>);
  RegisterOpcode(("v_cmpx_" + suffix).c_str(), Flow::COMPARE, WRITES_EXEC, compare<C, T, true>);
}

template <class T>
void add_ordered(const char *type) {
  add<F, T>("f", type);
  add<LT, T>("lt", type);
  add<EQ, T>("eq", type);
  add<LE, T>("le", type);
  add<GT, T>("gt", type);
  add<GE, T>("ge", type);
}
template <class T>
void add_float(const char *type) {
  add_ordered<T>(type);
  add<LG, T>("lg", type);
  add<O, T>("o", type);
  add<U, T>("u", type);
  add<NGE, T>("nge", type);
  add<NLG, T>("nlg", type);
  add<NGT, T>("ngt", type);
  add<NLE, T>("nle", type);
  add<NEQ, T>("neq", type);
  add<NLT, T>("nlt", type);
  add<TRU, T>("tru", type);
}
template <class T>
void add_integer(const char *type) {
  add_ordered<T>(type);
  add<NEQ, T>("ne", type);
  add<TRU, T>("t", type);
}

const struct AddAll {
  AddAll() {
    add_float<float>("f32");
    add_float<double>("f64");
    add_float<Half>("f16");
    add_integer<i16>("i16");
    add_integer<u16>("u16");
    add_integer<i32>("i32");
    add_integer<u32>("u32");
    add_integer<i64>("i64");
    add_integer<u64>("u64");
  }
} add_all;

// The ten classes, bit by bit: signalling NaN, quiet NaN, -inf, -normal, -denormal, -0, +0,
// +denormal, +normal, +inf.
bool in_class(float f, u32 classes) {
  const u32 x = bits(f), mantissa = x & 0x7fffff;
  const int exponent = (x >> 23) & 255;
  const bool negative = x >> 31;
  int c;
  if (exponent == 255)
    c = mantissa ? (mantissa >> 22 ? 1 : 0) : negative ? 2 : 9;
  else if (exponent)
    c = negative ? 3 : 8;
  else
    c = mantissa ? (negative ? 4 : 7) : negative ? 5 : 6;
  return bit(classes, c);
}

}  // namespace

OPCODE(v_cmp_class_f32, COMPARE, 0) {
  const FloatSource A(w, I, 0);
  const Source B(w, I, 1);
  u64 mask = 0;
  FOR_LANES(l) mask |= static_cast<u64>(in_class(A[l], B[l])) << l;
  deliver(w, I, mask, false);
}
