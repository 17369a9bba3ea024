// Vector memory: global, flat, scratch and buffer loads, stores, atomics and loads to LDS; cache
// control.
#include <algorithm>

#include "atomics.h"

namespace {

enum class Space { GLOBAL, FLAT, SCRATCH, BUFFER };

[[noreturn]] void fail_bounds(const Wave &w, u64 address, u32 size, int lane, const char *what) {
  const Range *near = w.shard->memory.nearest(address);
  fail("out-of-bounds",
       "%s of %u bytes at 0x%llx (lane %d) is in no registered allocation; the nearest is "
       "[0x%llx, 0x%llx)%s",
       what, size, static_cast<unsigned long long>(address), lane,
       static_cast<unsigned long long>(near->base), static_cast<unsigned long long>(near->end),
       near->read_only ? ", read-only" : "");
}

// Where the operands of an instruction stand.
struct Operands {
  const Operand *address, *base, *offset, *data;
};
template <Space S>
Operands operands(const Inst &I, bool has_data) {
  if (S == Space::BUFFER) {  // vdata, vaddr, srsrc, soffset; a load's vdata is its result
    const int first = has_data ? 1 : 0;
    return {&I.src[first], &I.src[first + 1], &I.src[first + 2], &I.src[0]};
  }
  // vaddr, vdata, saddr
  return {&I.src[0], &I.src[has_data ? 2 : 1], nullptr, &I.src[1]};
}

// Fills the lane addresses; lanes out of a buffer's range get in_range < size and may drop out.
template <Space S>
void compute_addresses(Wave &w, const Inst &I, const Operands &at, Access &access) {
  const u32 size = access.size;
  const u64 exec = access.active;
  const bool vector = at.address->kind == VGPR;
  std::memset(access.in_range, static_cast<int>(size), kLanes);
  if constexpr (S == Space::BUFFER) {
    require_defined(w, *at.base, 4, exec, "a buffer descriptor");
    require_defined(w, *at.offset, 1, exec, "a buffer offset");
    if (vector) require_defined(w, *at.address, at.address->count, exec, "a buffer address");
    const u32 *descriptor = &w.s[at.base->reg];
    const u64 base = (descriptor[0] | static_cast<u64>(descriptor[1]) << 32) & 0xffffffffffffull;
    const u32 stride = descriptor[1] >> 16 & 0x3fff, records = descriptor[2];
    if (descriptor[1] >> 31) fail("unsupported", "swizzled buffer descriptors are not modelled");
    const u64 scalar_offset = scalar32(w, *at.offset);
    const bool indexed = I.flags & IDXEN;
    const u32 *index = indexed ? w.row(*at.address) : nullptr;
    const u32 *offset = I.flags & OFFEN ? w.row(*at.address, indexed ? 1 : 0) : nullptr;
    const u64 limit = static_cast<u64>(records) * (stride && !indexed ? stride : 1);
    each_lane(exec, [&](int l) {
      const u64 within = static_cast<u64>(I.offset) + (offset ? offset[l] : 0);
      const u64 record = index ? index[l] : 0;
      // The scalar offset takes no part in the range check.
      u64 room;
      if (stride && indexed)
        room = record < records && within < stride ? stride - within : 0;
      else if (indexed)
        room = record + within < limit ? limit - record - within : 0;
      else
        room = within < limit ? limit - within : 0;
      const u32 unit = std::min<u32>(size, 4);
      access.in_range[l] = static_cast<u8>(std::min<u64>(room / unit * unit, size));
      access.address[l] = base + stride * record + within + scalar_offset;
    });
  } else if constexpr (S == Space::SCRATCH) {
    if (vector) require_defined(w, *at.address, 1, exec, "a scratch address");
    require_defined(w, *at.base, 1, exec, "a scratch address");
    const u32 base = static_cast<u32>(I.offset) + (at.base->kind == SGPR ? w.s[at.base->reg] : 0);
    const u32 *row = vector ? w.row(*at.address) : nullptr;
    const u32 limit = w.group->launch->args.scratch;
    each_lane(exec, [&](int l) {
      const u32 address = base + (row ? row[l] : 0);
      if (static_cast<u64>(address) + size > limit)
        fail("out-of-bounds", "scratch address 0x%x, %u bytes (lane %d): a lane has %u bytes",
             address, size, l, limit);
      access.address[l] = address;
    });
  } else {
    const i64 offset = I.offset;
    if (at.base->kind == SGPR) {
      require_defined(w, *at.base, 2, exec, "an address");
      const u64 base = scalar64(w, *at.base) + offset;
      if (vector) require_defined(w, *at.address, 1, exec, "an address");
      const u32 *row = vector ? w.row(*at.address) : nullptr;
      each_lane(exec, [&](int l) { access.address[l] = base + (row ? row[l] : 0); });
    } else {
      require_defined(w, *at.address, 2, exec, "an address");
      const u32 *low = w.row(*at.address), *high = w.row(*at.address, 1);
      each_lane(exec, [&](int l) {
        access.address[l] = (low[l] | static_cast<u64>(high[l]) << 32) + offset;
      });
    }
    if (S == Space::FLAT)
      each_lane(exec, [&](int l) {
        if (access.address[l] >> 56)
          fail("unsupported", "flat access to LDS or scratch (0x%llx, lane %d) is not modelled",
               static_cast<unsigned long long>(access.address[l]), l);
      });
  }
}

// Checks every lane against the registered allocations and finds the span of all.
void check_allocations(Wave &w, Access &access, bool writes, const char *what) {
  u64 touched = 0;
  access.low = ~0ull;
  access.high = 0;
  each_lane(access.active, [&](int l) {
    const u32 size = access.in_range[l];
    if (!size) return;
    const u64 address = access.address[l];
    const Range *range = w.shard->memory.find(address, size);
    if (!range || (writes && range->read_only)) fail_bounds(w, address, size, l, what);
    if (range->uncached) access.scope = Scope::SYSTEM;
    access.low = std::min(access.low, address);
    access.high = std::max(access.high, address + size);
    touched |= 1ull << l;
  });
  access.lanes = touched;
}

template <Space S>
Access *new_vector_access(Wave &w, const Inst &I, u32 size, const Operands &at, bool writes,
                          const char *what) {
  Access *access = w.shard->new_access(w, I);
  access->size = static_cast<u8>(size);
  access->scope = scope_of(I.flags);
  access->flat = S == Space::FLAT;
  compute_addresses<S>(w, I, at, *access);
  if (S != Space::SCRATCH) check_allocations(w, *access, writes, what);
  return access;
}
template <Space S>
void queue(Wave &w, Access *access) {
  issue(w, access, S == Space::FLAT ? VM | LGKM : VM);
}

// Reads every lane's bytes and calls f(lane, bytes, all written); out of range reads as 0.
template <class F>
void read_lanes(Wave &w, Access &access, F f) {
  Path &path = w.group->cu->path;
  const u32 size = access.size;
  u64 whole = 0;
  each_lane(access.active, [&](int l) {
    if (access.in_range[l] == size) {
      whole |= 1ull << l;
      return;
    }
    u8 bytes[16] = {};
    if (access.in_range[l]) path.read(access.address[l], access.in_range[l], access.scope, bytes);
    f(l, bytes, true);
  });
  path.load(whole, access.address, size, access.scope, access.inst->flags & NT,
            [&](int l, const u8 *bytes) {
              f(l, bytes, w.shard->memory.was_written(access.address[l], size));
            });
}

// ---- Loads ----------------------------------------------------------------------------------------

void set_defined(Wave &w, const Inst &I, u32 first, int rows, u64 lanes, u64 defined) {
  for (int k = 0; k < rows; k++) {
    w.defined[first + k] = (w.defined[first + k] & ~lanes) | (defined & lanes);
    if (lanes & ~defined) w.origin[first + k] = I.pc;
  }
}

template <int Size, bool Signed, Into Half>
void perform_load(Wave &w, Access &access) {
  const u32 first = w.row_index(access.inst->dst[0]);
  u64 defined = 0;
  read_lanes(w, access, [&](int l, const u8 *bytes, bool written) {
    defined |= static_cast<u64>(written) << l;
    load_lane<Size, Signed, Half>(w, first, l, bytes);
  });
  set_defined(w, *access.inst, first, std::max(1, Size / 4), access.active, defined);
}

template <int Size>
void perform_load_to_lds(Wave &w, Access &access) {
  read_lanes(w, access, [&](int l, const u8 *bytes, bool written) {
    u8 padded[16] = {};
    std::memcpy(padded, bytes, Size);
    lds_deliver(w, *access.inst, access.data[0][l], padded, std::max(Size, 4), written);
  });
}

template <Space S, int Size>
void load_to_lds(Wave &w, const Inst &I) {
  Access *access = new_vector_access<S>(w, I, Size, operands<S>(I, false), false, "load");
  if (w.shard->options.poison && w.s_defined[M0_REG] != ~0u)
    fail("uninitialized", "a load to LDS uses M0, which was never written");
  const u32 base = (w.s[M0_REG] & 0x3ffff) + static_cast<u32>(I.offset);
  FOR_LANES(l) access->data[0][l] = base + static_cast<u32>(l) * std::max(Size, 4);
  access->perform = perform_load_to_lds<Size>;
  access->lds_dma = true;
  lds_write_begins(w, *access);
  queue<S>(w, access);
}

// Scratch is private to the wave, so it can be read and written at issue; only the result waits.
u8 *scratch_at(Wave &w, std::vector<u8> &memory, int l, u64 address) {
  return memory.data() + static_cast<u64>(l) * w.group->launch->args.scratch + address;
}

template <Space S, int Size, bool Signed = false, Into Half = Into::WHOLE>
void load(Wave &w, const Inst &I) {
  if (S == Space::BUFFER && (I.flags & LDS)) return load_to_lds<S, Size>(w, I);
  Access *access = new_vector_access<S>(w, I, Size, operands<S>(I, false), false, "load");
  access->perform = perform_load<Size, Signed, Half>;
  w.last_load = access->lanes ? access->address[lowest(access->lanes)] : 0;
  w.last_load_pc = I.pc;
  if constexpr (S == Space::SCRATCH) {
    const u32 first = w.row_index(I.dst[0]);
    u64 defined = 0;
    each_lane(access->active, [&](int l) {
      const u64 address = access->address[l];
      load_lane<Size, Signed, Half>(w, first, l, scratch_at(w, w.scratch, l, address));
      const u8 *written = scratch_at(w, w.scratch_written, l, address);
      defined |= static_cast<u64>(std::all_of(written, written + Size, [](u8 x) { return x; })) << l;
    });
    set_defined(w, I, first, std::max(1, Size / 4), access->active, defined);
    access->performed = true;
  }
  queue<S>(w, access);
}

// ---- Stores ---------------------------------------------------------------------------------------

void capture(Wave &w, Access &access, const Operand &o, int dwords) {
  for (int k = 0; k < dwords; k++) {
    std::memcpy(access.data[k], w.row(o, k), sizeof(Lanes));
    access.poisoned |= access.active & ~w.defined[w.row_index(o, k)];
  }
}

template <int Size, int Shift>
void store_value(const Access &access, int l, u32 *value) {
  for (int k = 0; k < std::max(1, Size / 4); k++) value[k] = access.data[k][l];
  value[0] >>= Shift;
}

template <int Size, int Shift>
void perform_store(Wave &w, Access &access) {
  Path &path = w.group->cu->path;
  each_lane(access.lanes, [&](int l) {
    u32 value[4];
    store_value<Size, Shift>(access, l, value);
    path.write(access.address[l], reinterpret_cast<u8 *>(value), access.in_range[l], access.scope);
    w.shard->memory.mark_written(access.address[l], access.in_range[l]);
  });
}

template <Space S, int Size, int Shift = 0>
void store(Wave &w, const Inst &I) {
  const Operands at = operands<S>(I, true);
  constexpr int kDwords = Size < 4 ? 1 : Size / 4;
  Access *access = new_vector_access<S>(w, I, Size, at, true, "store");
  capture(w, *access, *at.data, kDwords);
  access->stores = true;
  access->perform = perform_store<Size, Shift>;
  if constexpr (S == Space::SCRATCH) {
    each_lane(access->active, [&](int l) {
      u32 value[4];
      store_value<Size, Shift>(*access, l, value);
      std::memcpy(scratch_at(w, w.scratch, l, access->address[l]), value, Size);
      std::memset(scratch_at(w, w.scratch_written, l, access->address[l]),
                  !bit(access->poisoned, l), Size);
    });
    access->performed = true;
  } else {
    require_defined(w, *at.data, kDwords, access->lanes, "a value stored to memory");
  }
  queue<S>(w, access);
}

// ---- Atomics --------------------------------------------------------------------------------------

template <class T, Rmw Op>
void perform_atomic(Wave &w, Access &access) {
  const Inst &I = *access.inst;
  Path &path = w.group->cu->path;
  constexpr int kDwords = sizeof(T) / 4;
  u64 defined = 0;
  each_lane(access.lanes, [&](int l) {
    const auto operand = [&](int first) {
      T x = access.data[first][l];
      if constexpr (kDwords == 2) x |= static_cast<T>(access.data[first + 1][l]) << 32;
      return x;
    };
    T old;
    const u64 address = access.address[l];
    const bool known = w.shard->memory.was_written(address, sizeof old);
    path.read(address, sizeof old, access.scope, reinterpret_cast<u8 *>(&old));
    if (!known && Op != Rmw::SWAP && w.shard->options.poison)
      fail("uninitialized", "an atomic reads 0x%llx (lane %d), which was never written",
           static_cast<unsigned long long>(address), l);
    defined |= static_cast<u64>(known) << l;
    const T next = apply<T>(Op, old, operand(0), operand(Op == Rmw::CMPSWAP ? kDwords : 0));
    path.write(address, reinterpret_cast<const u8 *>(&next), sizeof next, access.scope);
    w.shard->memory.mark_written(address, sizeof next);
    if (!I.ndst) return;
    for (int k = 0; k < kDwords; k++)
      w.row(I.dst[0], k)[l] = static_cast<u32>(static_cast<u64>(old) >> (32 * k));
  });
  if (I.ndst) set_defined(w, I, w.row_index(I.dst[0]), kDwords, access.lanes, defined);
}

template <Space S, class T, Rmw Op>
void atomic(Wave &w, const Inst &I) {
  const Operands at = operands<S>(I, true);
  constexpr int kDwords = sizeof(T) / 4 * (Op == Rmw::CMPSWAP ? 2 : 1);
  Access *access = new_vector_access<S>(w, I, sizeof(T), at, true, "atomic");
  // Atomics bypass the L1; sc1 alone tells device scope from system scope.
  const bool uncached = access->scope == Scope::SYSTEM && !(I.flags & SC1);
  access->scope = uncached || I.flags & SC1 ? Scope::SYSTEM : Scope::AGENT;
  capture(w, *access, *at.data, kDwords);
  require_defined(w, *at.data, kDwords, access->lanes, "an atomic operand");
  access->stores = true;
  access->perform = perform_atomic<T, Op>;
  queue<S>(w, access);
}

// ---- Cache control --------------------------------------------------------------------------------

void cache_operation(Wave &w, const Inst &I, bool stores, void (*perform)(Wave &, Access &)) {
  Access *access = w.shard->new_access(w, I);
  access->lanes = 0;
  access->scope = scope_of(I.flags);
  access->order = Order::FENCED;
  access->cache_op = true;
  access->stores = stores;
  access->perform = perform;
  issue(w, access, VM);
}

}  // namespace

OPCODE(buffer_inv, OWN, MEMORY) {
  cache_operation(w, I, false, [](Wave &wave, Access &access) {
    wave.group->cu->path.invalidate(access.scope);
  });
}
OPCODE(buffer_wbl2, OWN, MEMORY) {
  cache_operation(w, I, true, [](Wave &wave, Access &access) {
    wave.group->cu->path.write_back(access.scope);
  });
}

#define OP(name, call) \
  OPCODE(name, OWN, MEMORY) { call(w, I); }
#define LOADS_AND_STORES(p, S)                                              \
  OP(p##_load_ubyte, (load<Space::S, 1>))                                   \
  OP(p##_load_sbyte, (load<Space::S, 1, true>))                             \
  OP(p##_load_ushort, (load<Space::S, 2>))                                  \
  OP(p##_load_sshort, (load<Space::S, 2, true>))                            \
  OP(p##_load_dword, (load<Space::S, 4>))                                   \
  OP(p##_load_dwordx2, (load<Space::S, 8>))                                 \
  OP(p##_load_dwordx3, (load<Space::S, 12>))                                \
  OP(p##_load_dwordx4, (load<Space::S, 16>))                                \
  OP(p##_load_ubyte_d16, (load<Space::S, 1, false, Into::LOW>))             \
  OP(p##_load_ubyte_d16_hi, (load<Space::S, 1, false, Into::HIGH>))         \
  OP(p##_load_sbyte_d16, (load<Space::S, 1, true, Into::LOW>))              \
  OP(p##_load_sbyte_d16_hi, (load<Space::S, 1, true, Into::HIGH>))          \
  OP(p##_load_short_d16, (load<Space::S, 2, false, Into::LOW>))             \
  OP(p##_load_short_d16_hi, (load<Space::S, 2, false, Into::HIGH>))         \
  OP(p##_store_byte, (store<Space::S, 1>))                                  \
  OP(p##_store_byte_d16_hi, (store<Space::S, 1, 16>))                       \
  OP(p##_store_short, (store<Space::S, 2>))                                 \
  OP(p##_store_short_d16_hi, (store<Space::S, 2, 16>))                      \
  OP(p##_store_dword, (store<Space::S, 4>))                                 \
  OP(p##_store_dwordx2, (store<Space::S, 8>))                               \
  OP(p##_store_dwordx3, (store<Space::S, 12>))                              \
  OP(p##_store_dwordx4, (store<Space::S, 16>))
LOADS_AND_STORES(global, GLOBAL)
LOADS_AND_STORES(flat, FLAT)
LOADS_AND_STORES(scratch, SCRATCH)
LOADS_AND_STORES(buffer, BUFFER)
OP(global_load_lds_ubyte, (load_to_lds<Space::GLOBAL, 1>))
OP(global_load_lds_ushort, (load_to_lds<Space::GLOBAL, 2>))
OP(global_load_lds_dword, (load_to_lds<Space::GLOBAL, 4>))
OP(global_load_lds_dwordx3, (load_to_lds<Space::GLOBAL, 12>))
OP(global_load_lds_dwordx4, (load_to_lds<Space::GLOBAL, 16>))

#define ATOMIC(p, S, name, rmw)                                     \
  OP(p##_atomic_##name, (atomic<Space::S, u32, Rmw::rmw>))          \
  OP(p##_atomic_##name##_x2, (atomic<Space::S, u64, Rmw::rmw>))
#define ATOMICS(p, S)                                               \
  ATOMIC(p, S, add, ADD)                                            \
  ATOMIC(p, S, sub, SUB)                                            \
  ATOMIC(p, S, smin, SMIN)                                          \
  ATOMIC(p, S, umin, UMIN)                                          \
  ATOMIC(p, S, smax, SMAX)                                          \
  ATOMIC(p, S, umax, UMAX)                                          \
  ATOMIC(p, S, and, AND)                                            \
  ATOMIC(p, S, or, OR)                                              \
  ATOMIC(p, S, xor, XOR)                                            \
  ATOMIC(p, S, swap, SWAP)                                          \
  ATOMIC(p, S, cmpswap, CMPSWAP)                                    \
  ATOMIC(p, S, inc, INC)                                            \
  ATOMIC(p, S, dec, DEC)                                            \
  OP(p##_atomic_add_f32, (atomic<Space::S, u32, Rmw::ADD_F>))       \
  OP(p##_atomic_pk_add_f16, (atomic<Space::S, u32, Rmw::ADD_PK_F16>))   \
  OP(p##_atomic_pk_add_bf16, (atomic<Space::S, u32, Rmw::ADD_PK_BF16>)) \
  OP(p##_atomic_add_f64, (atomic<Space::S, u64, Rmw::ADD_F>))       \
  OP(p##_atomic_min_f64, (atomic<Space::S, u64, Rmw::MIN_F>))       \
  OP(p##_atomic_max_f64, (atomic<Space::S, u64, Rmw::MAX_F>))
ATOMICS(global, GLOBAL)
ATOMICS(flat, FLAT)
ATOMICS(buffer, BUFFER)
