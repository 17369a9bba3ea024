// Scalar memory: loads through the scalar cache, and the clocks.
#include "operands.h"

namespace {

void set_known(Wave &w, const Operand &o, int k, bool known) {
  w.s_defined[o.reg + k] = known ? ~0u : 0;
}

void perform_scalar_load(Wave &w, Access &access) {
  const Inst &I = *access.inst;
  const Operand &to = I.dst[0];
  const u64 address = access.address[0];
  const u32 in_range = access.data[0][0];  // bytes; the rest of a buffer load is 0
  u32 value[16] = {};
  w.group->cu->path.read_scalar(address, in_range, reinterpret_cast<u8 *>(value));
  for (u32 k = 0; k < to.count; k++) {
    write_scalar32(w, {SGPR, 0, static_cast<u16>(to.reg + k), 1, 0, 0, 0}, value[k]);
    const bool known = 4 * k >= in_range || w.shard->memory.was_written(address + 4 * k, 4);
    set_known(w, to, k, known || !w.shard->options.poison);
  }
}

// The offset operand(s): an immediate, a register, or both.
i64 offset_of(Wave &w, const Inst &I, const char *what) {
  const Operand &o = I.src[1];
  require_defined(w, o, 1, ~0ull, what);
  return I.offset + (o.kind == SGPR ? static_cast<i64>(w.s[o.reg])
                                    : static_cast<i64>(static_cast<i32>(o.imm)));
}

void issue_scalar(Wave &w, const Inst &I, u64 address, u32 in_range) {
  if (in_range && !w.shard->memory.find(address, in_range))
    fail("out-of-bounds", "scalar load of %u bytes at 0x%llx is in no registered allocation",
         in_range, static_cast<unsigned long long>(address));
  Access *access = w.shard->new_access(w, I);
  access->scalar = true;
  access->address[0] = address;
  access->data[0][0] = in_range;
  access->perform = perform_scalar_load;
  issue(w, access, LGKM);
}

void load(Wave &w, const Inst &I) {
  require_defined(w, I.src[0], 2, ~0ull, "a scalar load's address");
  const u64 address = (scalar64(w, I.src[0]) + offset_of(w, I, "a scalar load's address")) & ~3ull;
  issue_scalar(w, I, address, 4 * I.dst[0].count);
}

void buffer_load(Wave &w, const Inst &I) {
  const Operand &descriptor = I.src[0];
  require_defined(w, descriptor, 4, ~0ull, "a buffer descriptor");
  const u64 base = scalar64(w, descriptor) & 0xffffffffffffull;
  const u32 stride = w.s[descriptor.reg + 1] >> 16 & 0x3fff;
  const u64 size = static_cast<u64>(w.s[descriptor.reg + 2]) * (stride ? stride : 1);
  const u64 offset = static_cast<u64>(offset_of(w, I, "a scalar load's offset")) & ~3ull;
  const u64 left = offset < size ? (size - offset) & ~3ull : 0;
  const u32 wanted = 4 * I.dst[0].count;
  issue_scalar(w, I, base + offset, left < wanted ? static_cast<u32>(left) : wanted);
}

void clock(Wave &w, const Inst &I) {
  write_scalar64(w, I.dst[0], w.shard->executed);
  set_known(w, I.dst[0], 0, true);
  set_known(w, I.dst[0], 1, true);
  Access *access = w.shard->new_access(w, I);
  access->scalar = access->performed = true;
  issue(w, access, LGKM);
}

}  // namespace

#define SCALAR_LOAD(suffix)                                        \
  OPCODE(s_load_##suffix, OWN, MEMORY) { load(w, I); }             \
  OPCODE(s_buffer_load_##suffix, OWN, MEMORY) { buffer_load(w, I); }
SCALAR_LOAD(dword)
SCALAR_LOAD(dwordx2)
SCALAR_LOAD(dwordx4)
SCALAR_LOAD(dwordx8)
SCALAR_LOAD(dwordx16)
// A count of wave-instructions run so far stands for time.
OPCODE(s_memtime, OWN, MEMORY) { clock(w, I); }
OPCODE(s_memrealtime, OWN, MEMORY) { clock(w, I); }
