// Movement between lanes, and between lanes and scalar registers. (Through LDS: lds.cpp.)
#include <algorithm>

#include "operands.h"

namespace {

bool is_vector(const Operand &o) { return o.kind == VGPR || o.kind == AGPR; }

void read_lane(Wave &w, const Inst &I, int lane) {
  const Operand &from = I.src[0], &to = I.dst[0];
  bool known = true;
  u32 value;
  if (is_vector(from)) {
    value = w.row(from)[lane];
    known = bit(w.defined[w.row_index(from)], lane);
  } else {
    value = scalar32(w, from);
    if (from.kind == SGPR) known = w.s_defined[from.reg] == ~0u;
  }
  write_scalar32(w, to, value);
  if (to.kind == SGPR) w.s_defined[to.reg] = known ? ~0u : 0;
}

// Swaps lanes [a, a + n) of x with [b, b + n) of y, definedness included.
void swap_lanes(Wave &w, const Operand &x, int a, const Operand &y, int b, int n) {
  u32 *row_x = w.row(x), *row_y = w.row(y);
  std::swap_ranges(row_x + a, row_x + a + n, row_y + b);
  u64 &dx = w.defined[w.row_index(x)], &dy = w.defined[w.row_index(y)];
  const u64 field = n == 64 ? ~0ull : (1ull << n) - 1;
  const u64 bits_x = dx >> a & field, bits_y = dy >> b & field;
  dx = (dx & ~(field << a)) | bits_y << a;
  dy = (dy & ~(field << b)) | bits_x << b;
}

}  // namespace

OPCODE(v_readfirstlane_b32, OWN, 0) {
  const u64 exec = w.exec();
  read_lane(w, I, exec ? lowest(exec) : 0);
}
OPCODE(v_readlane_b32, OWN, 0) { read_lane(w, I, scalar32(w, I.src[1]) & 63); }
OPCODE(v_writelane_b32, OWN, 0) {
  const int lane = scalar32(w, I.src[1]) & 63;
  const Operand &from = I.src[0];
  w.row(I.dst[0])[lane] = scalar32(w, from);
  const bool known = from.kind != SGPR || w.s_defined[from.reg] == ~0u;
  u64 &defined = w.defined[w.row_index(I.dst[0])];
  defined = (defined & ~(1ull << lane)) | static_cast<u64>(known) << lane;
}
OPCODE(v_swap_b32, OWN, 0) {
  const Operand &x = I.dst[0], &y = I.src[0];
  each_lane(w.exec(), [&](int l) { swap_lanes(w, x, l, y, l, 1); });
}
// These two ignore EXEC: the upper half (or odd rows) of the result trades places with the lower
// half (or even rows) of the source.
OPCODE(v_permlane32_swap_b32, OWN, 0) { swap_lanes(w, I.dst[0], 32, I.src[0], 0, 32); }
OPCODE(v_permlane16_swap_b32, OWN, 0) {
  swap_lanes(w, I.dst[0], 16, I.src[0], 0, 16);
  swap_lanes(w, I.dst[0], 48, I.src[0], 32, 16);
}
