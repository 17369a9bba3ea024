// LDS: reads, writes, atomics, transposed reads, and the permutes that use its crossbar.
//
// Operations are queued at issue, with addresses and data captured, and touch LDS when they
// perform. Shadow state per dword says which bytes were ever written, whether an LDS-DMA into it is
// in flight, and which wave touched it since the last barrier.
#include <algorithm>

#include "atomics.h"

namespace {

enum class Touch { READ, WRITE, ATOMIC };
constexpr u8 kSeveral = 0xff;      // more than one wave
constexpr u8 kAllBytes = 0xf, kAtomic = 0x80;

u16 index_of(const Wave &w, const Inst &I) {
  return static_cast<u16>(std::min<std::ptrdiff_t>(&I - w.program->code.data(), 0xffff));
}

[[noreturn]] void fail_race(Wave &w, const Inst &I, u32 address, const char *what, u16 at, u8 wave) {
  const u32 pc = w.program->code[at].pc;
  fail("race",
       "LDS 0x%x: {0x%x} (pc 0x%x) and the %s by wave %u at {0x%x} (pc 0x%x) have no barrier "
       "between them, or one of them was not waited for before the barrier",
       address, I.pc, I.pc, what, wave, pc, pc);
}

// Records an access to some bytes (mask) of one dword, and finds races with other waves.
void note(Wave &w, const Inst &I, u32 dword, u8 mask, Touch touch, bool same_value) {
  Workgroup &g = *w.group;
  LdsShadow &h = g.shadow[dword];
  const u8 me = static_cast<u8>(w.index);
  const bool written_now = h.write_phase == g.phase, read_now = h.read_phase == g.phase;
  if (w.shard->options.lds_races) {
    const bool foreign_write = written_now && h.write_wave != me && h.write_wave != kSeveral;
    const bool both_atomic = touch == Touch::ATOMIC && (h.write_bytes & kAtomic);
    if (foreign_write && (h.write_bytes & mask) && !both_atomic && !same_value)
      fail_race(w, I, dword * 4, "write", h.write_at, h.write_wave);
    const bool foreign_read = read_now && h.read_wave != me && h.read_wave != kSeveral;
    if (touch != Touch::READ && foreign_read && (h.read_bytes & mask) && !same_value)
      fail_race(w, I, dword * 4, "read", h.read_at, h.read_wave);
  }
  if (touch == Touch::READ) {
    h.read_wave = read_now && h.read_wave != me ? kSeveral : me;
    h.read_bytes = read_now ? h.read_bytes | mask : mask;
    h.read_phase = g.phase;
    h.read_at = index_of(w, I);
  } else {
    h.write_wave = written_now && h.write_wave != me ? kSeveral : me;
    h.write_bytes = (written_now ? h.write_bytes : 0) | mask | (touch == Touch::ATOMIC ? kAtomic : 0);
    h.write_phase = g.phase;
    h.write_at = index_of(w, I);
  }
}

template <class F>
void each_dword(u32 address, u32 size, F f) {
  for (u32 at = address; at < address + size;) {
    const u32 first = at & 3, count = std::min(4 - first, address + size - at);
    f(at / 4, static_cast<u8>(((1u << count) - 1) << first), at - address);
    at += count;
  }
}

// Whether no other wave wrote this dword since the barrier, nor will a load to LDS.
bool unwritten(const LdsShadow &h, u16 phase, u8 me) {
  return !h.in_flight && (h.write_phase != phase || h.write_wave == me);
}

// Whether all bytes were ever written.
bool check_read(Wave &w, const Inst &I, u32 address, u32 size) {
  bool written = true;
  each_dword(address, size, [&](u32 dword, u8 mask, u32) {
    const LdsShadow &h = w.group->shadow[dword];
    if (h.in_flight)
      fail("missing-wait",
           "reads LDS 0x%x while a load to LDS is in flight there: that load must be waited for "
           "(s_waitcnt vmcnt) and a barrier passed before this read is issued, or this read must be "
           "waited for (s_waitcnt lgkmcnt) before that load is", address);
    written = written && (h.written & mask) == mask;
    note(w, I, dword, mask, Touch::READ, false);
  });
  return written;
}

template <int Size>
bool touch_read(Wave &w, const Inst &I, u32 address) {
  if ((address | Size) & 3) return check_read(w, I, address, Size);
  const u16 phase = w.group->phase;
  const u8 me = static_cast<u8>(w.index);
  LdsShadow *shadow = &w.group->shadow[address / 4];
  bool usual = true;
  for (int k = 0; k < Size / 4; k++)
    usual = usual && shadow[k].written == kAllBytes && unwritten(shadow[k], phase, me);
  if (!usual) return check_read(w, I, address, Size);
  for (int k = 0; k < Size / 4; k++) {
    const bool others = shadow[k].read_phase == phase && shadow[k].read_wave != me;
    shadow[k].read_phase = phase;
    shadow[k].read_wave = others ? kSeveral : me;
    shadow[k].read_bytes = kAllBytes;
    shadow[k].read_at = index_of(w, I);
  }
  return true;
}

void check_write(Wave &w, const Inst &I, u32 address, const u8 *from, u32 size, Touch touch,
                 bool defined, bool is_dma = false) {
  u8 *to = w.group->lds.data() + address;
  const bool same = std::memcmp(to, from, size) == 0;
  each_dword(address, size, [&](u32 dword, u8 mask, u32) {
    LdsShadow &h = w.group->shadow[dword];
    if (h.in_flight && !is_dma)
      fail("missing-wait", "writes LDS 0x%x while a load to LDS is in flight there", address);
    note(w, I, dword, mask, touch, same && (h.written & mask) == mask && touch == Touch::WRITE);
    if (defined)
      h.written |= mask;
    else
      h.written &= ~mask;
  });
  if (same) return;
  std::memcpy(to, from, size);
  w.shard->progress++;
}

template <int Size>
void touch_write(Wave &w, const Inst &I, u32 address, const u32 *value, bool defined) {
  const u8 *from = reinterpret_cast<const u8 *>(value);
  if (!defined || ((address | Size) & 3))
    return check_write(w, I, address, from, Size, Touch::WRITE, defined);
  const u16 phase = w.group->phase;
  const u8 me = static_cast<u8>(w.index);
  LdsShadow *shadow = &w.group->shadow[address / 4];
  bool usual = true;
  for (int k = 0; k < Size / 4; k++)
    usual = usual && unwritten(shadow[k], phase, me) &&
            (shadow[k].read_phase != phase || shadow[k].read_wave == me);
  if (!usual) return check_write(w, I, address, from, Size, Touch::WRITE, defined);
  u8 *to = w.group->lds.data() + address;
  for (int k = 0; k < Size / 4; k++) {
    shadow[k].write_phase = phase;
    shadow[k].write_wave = me;
    shadow[k].write_bytes = shadow[k].written = kAllBytes;
    shadow[k].write_at = index_of(w, I);
    u32 before;
    std::memcpy(&before, to + 4 * k, 4);
    w.shard->progress += before != value[k];
  }
  std::memcpy(to, value, Size);
}

void check_bounds(Wave &w, u64 address, u32 size) {
  const size_t limit = w.group->lds.size();
  if (address + size > limit)
    fail("out-of-bounds", "LDS address 0x%llx, %u bytes: the workgroup has %zu bytes",
         static_cast<unsigned long long>(address), size, limit);
}

Access *new_lds_access(Wave &w, const Inst &I, u32 size) {
  Access *access = w.shard->new_access(w, I);
  access->size = static_cast<u8>(size);
  return access;
}

// Lane addresses from the address operand, plus the instruction's offset.
Access *addressed(Wave &w, const Inst &I, u32 size, const Operand &from, u32 offset) {
  Access *access = new_lds_access(w, I, size);
  require_defined(w, from, 1, access->lanes, "an LDS address");
  const u32 *row = w.row(from);
  each_lane(access->lanes, [&](int l) {
    access->address[l] = static_cast<u32>(row[l] + offset);
    check_bounds(w, access->address[l], size);
  });
  return access;
}

void set_defined(Wave &w, const Inst &I, u32 row, u64 lanes, u64 defined) {
  w.defined[row] = (w.defined[row] & ~lanes) | (defined & lanes);
  if (lanes & ~defined) w.origin[row] = I.pc;
}

void capture(Wave &w, Access &access, const Operand &o, int first, int dwords) {
  u64 defined = ~0ull;
  for (int k = 0; k < dwords; k++) {
    std::memcpy(access.data[first + k], w.row(o, k), sizeof(Lanes));
    defined &= w.defined[w.row_index(o, k)];
  }
  access.poisoned |= access.lanes & ~defined;
}

// ---- Reads ----------------------------------------------------------------------------------------

template <int Size, bool Signed, Into Half>
void perform_read(Wave &w, Access &access) {
  const Inst &I = *access.inst;
  const u32 first = w.row_index(I.dst[0]);
  u64 defined = 0;
  each_lane(access.lanes, [&](int l) {
    const u32 address = static_cast<u32>(access.address[l]);
    if (touch_read<Size>(w, I, address)) defined |= 1ull << l;
    load_lane<Size, Signed, Half>(w, first, l, w.group->lds.data() + address);
  });
  for (int k = 0; k < std::max(1, Size / 4); k++)
    set_defined(w, I, first + k, access.lanes, defined);
}

template <int Size, bool Signed = false, Into Half = Into::WHOLE>
void read(Wave &w, const Inst &I) {
  Access *access = addressed(w, I, Size, I.src[0], static_cast<u32>(I.offset));
  access->perform = perform_read<Size, Signed, Half>;
  issue(w, access, LGKM);
}

template <int Size, int Stride>
void perform_read2(Wave &w, Access &access) {
  const Inst &I = *access.inst;
  const u32 first = w.row_index(I.dst[0]);
  for (int h = 0; h < 2; h++) {
    const u32 offset = static_cast<u32>(h ? I.offset1 : I.offset) * Size * Stride;
    u64 defined = 0;
    each_lane(access.lanes, [&](int l) {
      const u32 address = static_cast<u32>(access.address[l]) + offset;
      if (touch_read<Size>(w, I, address)) defined |= 1ull << l;
      for (int k = 0; k < Size / 4; k++)
        std::memcpy(&w.v[(first + h * Size / 4 + k) * kLanes + l],
                    w.group->lds.data() + address + 4 * k, 4);
    });
    for (int k = 0; k < Size / 4; k++)
      set_defined(w, I, first + h * Size / 4 + k, access.lanes, defined);
  }
}

// The lane addresses of a two-address instruction, without the offsets, both in bounds.
template <int Size, int Stride>
Access *addressed2(Wave &w, const Inst &I) {
  Access *access = addressed(w, I, 0, I.src[0], 0);
  each_lane(access->lanes, [&](int l) {
    for (i32 offset : {I.offset, I.offset1})
      check_bounds(w, access->address[l] + static_cast<u32>(offset) * Size * Stride, Size);
  });
  return access;
}

template <int Size, int Stride>
void read2(Wave &w, const Inst &I) {
  Access *access = addressed2<Size, Stride>(w, I);
  access->perform = perform_read2<Size, Stride>;
  issue(w, access, LGKM);
}

// Each group of 16 lanes reads a block of 16 x (64 / Bits) values and transposes it: lane i gets
// column i.
template <int Bits>
void perform_transposed(Wave &w, Access &access) {
  const Inst &I = *access.inst;
  constexpr int kPerLane = 64 / Bits;
  u64 raw[kLanes] = {}, known = 0;
  each_lane(access.lanes, [&](int l) {
    const u32 address = static_cast<u32>(access.address[l]);
    if (touch_read<8>(w, I, address)) known |= 1ull << l;
    std::memcpy(&raw[l], w.group->lds.data() + address, 8);
  });
  u32 *low = w.row(I.dst[0]), *high = w.row(I.dst[0], 1);
  u64 defined = 0;
  each_lane(access.lanes, [&](int l) {
    u64 value = 0;
    bool all = true;
    for (int k = 0; k < kPerLane; k++) {
      const int index = k * 16 + (l & 15), from = (l & ~15) + index / kPerLane;
      value |= (raw[from] >> (index % kPerLane * Bits) & ((1ull << Bits) - 1)) << (k * Bits);
      all = all && bit(known, from);
    }
    low[l] = static_cast<u32>(value);
    high[l] = value >> 32;
    if (all) defined |= 1ull << l;
  });
  for (int k = 0; k < 2; k++)
    set_defined(w, I, w.row_index(I.dst[0], k), access.lanes, defined);
}
template <int Bits>
void read_transposed(Wave &w, const Inst &I) {
  Access *access = addressed(w, I, 8, I.src[0], static_cast<u32>(I.offset));
  access->perform = perform_transposed<Bits>;
  issue(w, access, LGKM);
}

// ---- Writes ---------------------------------------------------------------------------------------

template <int Size, int Shift>
void perform_write(Wave &w, Access &access) {
  each_lane(access.lanes, [&](int l) {
    u32 value[4];
    for (int k = 0; k < std::max(1, Size / 4); k++) value[k] = access.data[k][l];
    value[0] >>= Shift;
    touch_write<Size>(w, *access.inst, static_cast<u32>(access.address[l]), value,
                      !bit(access.poisoned, l));
  });
}
template <int Size, int Shift = 0>
void write(Wave &w, const Inst &I) {
  Access *access = addressed(w, I, Size, I.src[0], static_cast<u32>(I.offset));
  capture(w, *access, I.src[1], 0, std::max(1, Size / 4));
  access->perform = perform_write<Size, Shift>;
  access->stores = true;
  issue(w, access, LGKM);
}

template <int Size, int Stride>
void perform_write2(Wave &w, Access &access) {
  const Inst &I = *access.inst;
  for (int h = 0; h < 2; h++) {
    const u32 offset = static_cast<u32>(h ? I.offset1 : I.offset) * Size * Stride;
    each_lane(access.lanes, [&](int l) {
      u32 value[2];
      for (int k = 0; k < Size / 4; k++) value[k] = access.data[h * 2 + k][l];
      touch_write<Size>(w, I, static_cast<u32>(access.address[l]) + offset, value,
                        !bit(access.poisoned, l));
    });
  }
}
template <int Size, int Stride>
void write2(Wave &w, const Inst &I) {
  Access *access = addressed2<Size, Stride>(w, I);
  capture(w, *access, I.src[1], 0, Size / 4);
  capture(w, *access, I.src[2], 2, Size / 4);
  access->perform = perform_write2<Size, Stride>;
  access->stores = true;
  issue(w, access, LGKM);
}

// ---- Atomics --------------------------------------------------------------------------------------

template <class T, Rmw Op>
void perform_atomic(Wave &w, Access &access) {
  const Inst &I = *access.inst;
  constexpr int kDwords = sizeof(T) / 4;
  u64 defined = 0;
  each_lane(access.lanes, [&](int l) {
    const u32 address = static_cast<u32>(access.address[l]);
    const auto operand = [&](int first) {
      T x = access.data[first][l];
      if constexpr (kDwords == 2) x |= static_cast<T>(access.data[first + 1][l]) << 32;
      return x;
    };
    // ds_cmpst: the first data operand is what to compare with, the second what to store.
    const T value = operand(Op == Rmw::CMPSWAP ? 2 : 0);
    T old;
    std::memcpy(&old, w.group->lds.data() + address, sizeof old);
    bool known = true;
    each_dword(address, sizeof(T), [&](u32 dword, u8 mask, u32) {
      known = known && (w.group->shadow[dword].written & mask) == mask;
    });
    if (Op == Rmw::SWAP || known) defined |= static_cast<u64>(known) << l;
    const T next = apply<T>(Op, old, value, operand(0));
    check_write(w, I, address, reinterpret_cast<const u8 *>(&next), sizeof next, Touch::ATOMIC,
                (known || Op == Rmw::SWAP) && !bit(access.poisoned, l));
    if (!I.ndst) return;
    for (int k = 0; k < kDwords; k++)
      w.row(I.dst[0], k)[l] = static_cast<u32>(static_cast<u64>(old) >> (32 * k));
  });
  for (int k = 0; I.ndst && k < kDwords; k++)
    set_defined(w, I, w.row_index(I.dst[0], k), access.lanes, defined);
}
template <class T, Rmw Op>
void atomic(Wave &w, const Inst &I) {
  Access *access = addressed(w, I, sizeof(T), I.src[0], static_cast<u32>(I.offset));
  capture(w, *access, I.src[1], 0, sizeof(T) / 4);
  if (Op == Rmw::CMPSWAP) capture(w, *access, I.src[2], 2, sizeof(T) / 4);
  access->perform = perform_atomic<T, Op>;
  access->stores = true;
  issue(w, access, LGKM);
}

// ---- Crossbar: results arrive with lgkmcnt, LDS memory is not touched --------------------------------

void nothing(Wave &, Access &) {}

template <class F>
void permute(Wave &w, const Inst &I, F fill) {
  alignas(64) Lanes result;
  u64 defined = 0;
  fill(result, defined);
  const u64 exec = w.exec();
  store_row(w.row(I.dst[0]), result, exec);
  set_defined(w, I, w.row_index(I.dst[0]), exec, defined);
  Access *access = new_lds_access(w, I, 0);
  access->perform = nothing;
  issue(w, access, LGKM);
}

}  // namespace

void lds_write_begins(Wave &w, const Access &access) {
  each_lane(access.active, [&](int l) {
    const u32 address = access.data[0][l];
    check_bounds(w, address, std::max<u32>(access.size, 4));
    each_dword(address, std::max<u32>(access.size, 4), [&](u32 dword, u8 mask, u32) {
      note(w, *access.inst, dword, mask, Touch::WRITE, false);
      w.group->shadow[dword].in_flight++;
    });
  });
}
void lds_write_ends(Wave &w, const Access &access) {
  each_lane(access.active, [&](int l) {
    each_dword(access.data[0][l], std::max<u32>(access.size, 4),
               [&](u32 dword, u8, u32) { w.group->shadow[dword].in_flight--; });
  });
}
void lds_deliver(Wave &w, const Inst &I, u32 address, const u8 *from, u32 size, bool defined) {
  check_write(w, I, address, from, size, Touch::WRITE, defined, true);
}

#define READ(name, ...) \
  OPCODE(name, OWN, MEMORY) { read<__VA_ARGS__>(w, I); }
READ(ds_read_b32, 4)
READ(ds_read_b64, 8)
READ(ds_read_b96, 12)
READ(ds_read_b128, 16)
READ(ds_read_u8, 1)
READ(ds_read_i8, 1, true)
READ(ds_read_u16, 2)
READ(ds_read_i16, 2, true)
READ(ds_read_u8_d16, 1, false, Into::LOW)
READ(ds_read_u8_d16_hi, 1, false, Into::HIGH)
READ(ds_read_i8_d16, 1, true, Into::LOW)
READ(ds_read_i8_d16_hi, 1, true, Into::HIGH)
READ(ds_read_u16_d16, 2, false, Into::LOW)
READ(ds_read_u16_d16_hi, 2, false, Into::HIGH)
OPCODE(ds_read2_b32, OWN, MEMORY) { read2<4, 1>(w, I); }
OPCODE(ds_read2_b64, OWN, MEMORY) { read2<8, 1>(w, I); }
OPCODE(ds_read2st64_b32, OWN, MEMORY) { read2<4, 64>(w, I); }
OPCODE(ds_read2st64_b64, OWN, MEMORY) { read2<8, 64>(w, I); }
OPCODE(ds_read_b64_tr_b16, OWN, MEMORY) { read_transposed<16>(w, I); }
OPCODE(ds_read_b64_tr_b8, OWN, MEMORY) { read_transposed<8>(w, I); }
OPCODE(ds_read_b64_tr_b4, OWN, MEMORY) { read_transposed<4>(w, I); }

#define WRITE(name, ...) \
  OPCODE(name, OWN, MEMORY) { write<__VA_ARGS__>(w, I); }
WRITE(ds_write_b32, 4)
WRITE(ds_write_b64, 8)
WRITE(ds_write_b96, 12)
WRITE(ds_write_b128, 16)
WRITE(ds_write_b8, 1)
WRITE(ds_write_b16, 2)
WRITE(ds_write_b8_d16_hi, 1, 16)
WRITE(ds_write_b16_d16_hi, 2, 16)
OPCODE(ds_write2_b32, OWN, MEMORY) { write2<4, 1>(w, I); }
OPCODE(ds_write2_b64, OWN, MEMORY) { write2<8, 1>(w, I); }
OPCODE(ds_write2st64_b32, OWN, MEMORY) { write2<4, 64>(w, I); }
OPCODE(ds_write2st64_b64, OWN, MEMORY) { write2<8, 64>(w, I); }

#define ATOMIC(op, type, T, rmw)                                                     \
  OPCODE(ds_##op##_##type, OWN, MEMORY) { atomic<T, Rmw::rmw>(w, I); }               \
  OPCODE(ds_##op##_rtn_##type, OWN, MEMORY) { atomic<T, Rmw::rmw>(w, I); }
#define ATOMIC_BOTH(op, type32, type64, rmw) \
  ATOMIC(op, type32, u32, rmw)               \
  ATOMIC(op, type64, u64, rmw)
ATOMIC_BOTH(add, u32, u64, ADD)
ATOMIC_BOTH(sub, u32, u64, SUB)
ATOMIC_BOTH(inc, u32, u64, INC)
ATOMIC_BOTH(dec, u32, u64, DEC)
ATOMIC_BOTH(min, i32, i64, SMIN)
ATOMIC_BOTH(max, i32, i64, SMAX)
ATOMIC_BOTH(min, u32, u64, UMIN)
ATOMIC_BOTH(max, u32, u64, UMAX)
ATOMIC_BOTH(and, b32, b64, AND)
ATOMIC_BOTH(or, b32, b64, OR)
ATOMIC_BOTH(xor, b32, b64, XOR)
ATOMIC_BOTH(cmpst, b32, b64, CMPSWAP)
ATOMIC_BOTH(add, f32, f64, ADD_F)
ATOMIC_BOTH(min, f32, f64, MIN_F)
ATOMIC_BOTH(max, f32, f64, MAX_F)
ATOMIC(pk_add, f16, u32, ADD_PK_F16)
ATOMIC(pk_add, bf16, u32, ADD_PK_BF16)
OPCODE(ds_wrxchg_rtn_b32, OWN, MEMORY) { atomic<u32, Rmw::SWAP>(w, I); }
OPCODE(ds_wrxchg_rtn_b64, OWN, MEMORY) { atomic<u64, Rmw::SWAP>(w, I); }

OPCODE(ds_bpermute_b32, OWN, MEMORY) {
  permute(w, I, [&](u32 *result, u64 &defined) {
    const u32 *address = w.row(I.src[0]), *value = w.row(I.src[1]);
    const u64 exec = w.exec(), known = w.defined[w.row_index(I.src[1])] | ~exec;
    const u64 selects = w.defined[w.row_index(I.src[0])];
    FOR_LANES(l) {
      const int from = (address[l] + static_cast<u32>(I.offset)) >> 2 & 63;
      result[l] = bit(exec, from) ? value[from] : 0;
      defined |= static_cast<u64>(bit(known, from) && bit(selects, l)) << l;
    }
  });
}
OPCODE(ds_permute_b32, OWN, MEMORY) {
  require_defined(w, I.src[0], 1, w.exec(), "a lane number");
  permute(w, I, [&](u32 *result, u64 &defined) {
    const u32 *address = w.row(I.src[0]), *value = w.row(I.src[1]);
    const u64 known = w.defined[w.row_index(I.src[1])];
    std::memset(result, 0, sizeof(Lanes));
    defined = ~0ull;
    each_lane(w.exec(), [&](int l) {
      const int to = (address[l] + static_cast<u32>(I.offset)) >> 2 & 63;
      result[to] = value[l];
      defined = (defined & ~(1ull << to)) | static_cast<u64>(bit(known, l)) << to;
    });
  });
}
OPCODE(ds_swizzle_b32, OWN, MEMORY) {
  permute(w, I, [&](u32 *result, u64 &defined) {
    const u32 *value = w.row(I.src[0]);
    const u32 o = static_cast<u32>(I.offset);
    const u64 exec = w.exec(), known = w.defined[w.row_index(I.src[0])] | ~exec;
    FOR_LANES(l) {
      int from;
      if (o & 0x8000)  // quad permute
        from = (l & ~3) | (o >> (2 * (l & 3)) & 3);
      else
        from = (l & 32) | ((((l & 31) & (o & 31)) | (o >> 5 & 31)) ^ (o >> 10 & 31));
      result[l] = bit(exec, from) ? value[from] : 0;
      defined |= static_cast<u64>(bit(known, from)) << l;
    }
  });
}
