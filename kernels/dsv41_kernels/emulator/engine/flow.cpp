// Follows never-written values: through registers lane by lane (scalars bit by bit), to the point
// where one decides an address, a branch, which lanes run, or what a store leaves in memory.
#include "machine.h"

namespace {

u64 scalar_defined(const Wave &w, u32 first, u32 count) {
  for (u32 k = 0; k < count; k++)
    if (w.s_defined[first + k] != ~0u) return 0;
  return ~0ull;
}

u64 operand_defined(Wave &w, const Operand &o) {
  u64 defined = ~0ull;
  if (o.kind == VGPR || o.kind == AGPR) {
    for (u32 k = 0; k < o.count; k++) defined &= w.defined[w.row_index(o, k)];
  } else if (o.kind == SGPR) {
    defined = scalar_defined(w, o.reg, o.count);
  } else if (o.kind == SPECIAL && o.reg == SRC_SCC) {
    defined = w.scc_defined ? ~0ull : 0;
  }
  return defined;
}

u32 origin_of(Wave &w, const Inst &I, u64 lanes) {
  for (u32 i = 0; i < I.nread; i++) {
    const RegisterRange &range = I.read[i];
    if (range.kind == SGPR) continue;
    for (u32 k = 0; k < range.count; k++) {
      const u32 row = range.first + k + (range.kind == AGPR ? w.agpr_base : 0);
      if (lanes & ~w.defined[row]) return w.origin[row];
    }
  }
  return I.pc;
}

void set_pair(Wave &w, const Operand &o, u64 defined) {
  w.s_defined[o.reg] = static_cast<u32>(defined);
  if (o.count > 1) w.s_defined[o.reg + 1] = defined >> 32;
}

u64 pair_defined(const Wave &w, const Operand &o) {
  if (o.kind != SGPR) return ~0ull;
  return w.s_defined[o.reg] | (o.count > 1 ? static_cast<u64>(w.s_defined[o.reg + 1]) << 32
                                           : ~0ull << 32);
}

void write_vector(Wave &w, const Inst &I, u64 defined, u64 mask) {
  for (u32 i = 0; i < I.nwrite; i++) {
    const RegisterRange &range = I.write[i];
    if (range.kind == SGPR) continue;
    for (u32 k = 0; k < range.count; k++) {
      const u32 row = range.first + k + (range.kind == AGPR ? w.agpr_base : 0);
      if (mask & ~defined) w.origin[row] = origin_of(w, I, mask & ~defined);
      w.defined[row] = (w.defined[row] & ~mask) | (defined & mask);
    }
  }
}

void track_vector(Wave &w, const Inst &I, u64 exec) {
  u64 defined = ~0ull;
  for (u32 i = 0; i < I.nsrc; i++) {
    // A trailing scalar pair of a carry instruction holds one bit a lane.
    if (i == 2 && I.ndst == 2 && I.src[i].kind == SGPR && I.src[i].count == 2)
      defined &= pair_defined(w, I.src[i]);
    else
      defined &= I.dpp && i == 0 ? w.dpp_defined : operand_defined(w, I.src[i]);
  }
  if (I.traits & READS_DST) defined &= operand_defined(w, I.dst[0]);
  if (I.traits & READS_VCC) defined &= w.vcc_defined();
  write_vector(w, I, defined, w.write_mask);
  if (I.ndst == 2) set_pair(w, I.dst[1], defined | ~exec);
}

void track_select(Wave &w, const Inst &I) {
  u64 value = w.vcc(), known = w.vcc_defined();
  if (I.nsrc > 2) {
    const Operand &o = I.src[2];
    known = pair_defined(w, o);
    value = o.kind == SGPR ? w.s[o.reg] | static_cast<u64>(w.s[o.reg + 1]) << 32 : o.imm;
  }
  const u64 when_clear = I.dpp ? w.dpp_defined : operand_defined(w, I.src[0]);
  const u64 when_set = operand_defined(w, I.src[1]);
  write_vector(w, I, known & ((value & when_set) | (~value & when_clear)), w.write_mask);
}

u64 value_of(const Wave &w, const Operand &o) {
  if (o.kind == SGPR)
    return w.s[o.reg] | (o.count > 1 ? static_cast<u64>(w.s[o.reg + 1]) << 32 : 0);
  return o.imm;
}

void track_scalar(Wave &w, const Inst &I) {
  u64 defined;
  if (I.flow == Flow::SCALAR) {
    defined = ~0ull;
    for (u32 i = 0; i < I.nsrc; i++) defined &= operand_defined(w, I.src[i]);
    if (I.traits & READS_DST) defined &= operand_defined(w, I.dst[0]);
    if ((I.traits & READS_SCC) && !w.scc_defined) defined = 0;
  } else {
    const bool saves = I.traits & WRITES_EXEC;  // the second source is EXEC
    const u64 da = pair_defined(w, I.src[0]);
    const u64 db = saves || I.nsrc < 2 ? ~0ull : pair_defined(w, I.src[1]);
    u64 a = value_of(w, I.src[0]), b = saves ? w.exec() : I.nsrc < 2 ? 0 : value_of(w, I.src[1]);
    // Which source decides a bit alone: a 0 of an AND, a 1 of an OR; "_NOT" inverts source b.
    if (I.flow == Flow::OR || I.flow == Flow::OR_NOT) a = ~a;
    if (I.flow == Flow::OR || I.flow == Flow::AND_NOT) b = ~b;
    defined = da & db;
    if (I.flow != Flow::BITWISE) defined |= (da & ~a) | (db & ~b);
    if (saves && defined != ~0ull)
      fail("uninitialized", "a never-written value decides which lanes run");
  }
  bool all = defined == ~0ull;
  if (I.ndst) {
    const Operand &o = I.dst[0];
    const bool one_word = o.count == 1;
    if (one_word) all = static_cast<u32>(defined) == ~0u;
    if (I.traits & WRITES_EXEC) {
      set_pair(w, o, ~0ull);
    } else if (o.kind == SGPR) {
      if (!all && o.reg + o.count > EXEC_REG && o.reg <= EXEC_REG + 1)
        fail("uninitialized", "a never-written value decides which lanes run");
      for (u32 k = 0; k < o.count; k++)
        w.s_defined[o.reg + k] = static_cast<u32>(k ? defined >> 32 : defined);
    }
  }
  if (I.traits & WRITES_SCC) w.scc_defined = all;
}

}  // namespace

void track(Wave &w, const Inst &I, u64 exec) {
  switch (I.flow) {
    case Flow::OWN: break;
    case Flow::VECTOR: track_vector(w, I, exec); break;
    case Flow::SELECT: track_select(w, I); break;
    case Flow::COMPARE: {
      u64 defined = ~0ull;
      for (u32 i = 0; i < I.nsrc; i++)
        defined &= I.dpp && i == 0 ? w.dpp_defined : operand_defined(w, I.src[i]);
      set_pair(w, I.dst[0], defined | ~exec);
      if ((I.traits & WRITES_EXEC) && (~defined & exec))
        fail("uninitialized", "a never-written value decides which lanes run");
      break;
    }
    default: track_scalar(w, I);
  }
}

void fail_undefined(Wave &w, const Operand &o, int k, u64 lanes, const char *use) {
  const int lane = lanes ? lowest(lanes) : 0;
  if (o.kind == SGPR)
    fail("uninitialized", "%s depends on s%u, which was never written", use, o.reg + k);
  const char file = o.kind == AGPR ? 'a' : 'v';
  const u32 origin = w.origin[w.row_index(o, k)];
  if (origin == kNever)
    fail("uninitialized", "%s depends on %c%u lane %d, which was never written", use, file,
         o.reg + k, lane);
  fail("uninitialized", "%s depends on %c%u lane %d, whose never-written value came in with {0x%x} (pc 0x%x)",
       use, file, o.reg + k, lane, origin, origin);
}

void require_defined(Wave &w, const Operand &o, int count, u64 lanes, const char *use) {
  if (!w.shard->options.poison) return;
  for (int k = 0; k < count; k++) {
    if (o.kind == VGPR || o.kind == AGPR) {
      const u64 missing = lanes & ~w.defined[w.row_index(o, k)];
      if (missing) fail_undefined(w, o, k, missing, use);
    } else if (o.kind == SGPR && w.s_defined[o.reg + k] != ~0u) {
      fail_undefined(w, o, k, lanes, use);
    }
  }
}
