#include "operands.h"

u64 special_source(const Wave &w, const Operand &o) {
  constexpr u64 kShared = 0x0100000000000000ull, kPrivate = 0x0200000000000000ull;
  switch (o.reg) {
    case SRC_SCC: return w.scc;
    case SRC_VCCZ: return w.vcc() == 0;
    case SRC_EXECZ: return w.exec() == 0;
    case SRC_SHARED_BASE: return kShared;
    case SRC_SHARED_LIMIT: return kShared | 0xffffffff;
    case SRC_PRIVATE_BASE: return kPrivate;
    default: return kPrivate | 0xffffffff;
  }
}

// Fetches source 0 through the DPP network; returns the lanes whose result may be written.
u64 dpp_fetch(Wave &w, const Inst &I, const u32 *source, u64 source_defined, u32 *out) {
  alignas(64) Lanes copy;
  std::memcpy(copy, source, sizeof copy);
  const u64 exec = w.exec();
  const int n = I.dpp_arg;
  u64 writable = 0, defined = 0;
  FOR_LANES(l) {
    const int row = l >> 4, x = l & 15;
    int from = l;
    bool valid = true;
    switch (I.dpp) {
      case DPP_QUAD: from = (l & ~3) | I.quad[l & 3]; break;
      case DPP_ROW_SHL: from = l + n; valid = x + n < 16; break;
      case DPP_ROW_SHR: from = l - n; valid = x >= n; break;
      case DPP_ROW_ROR: from = (l & ~15) | ((x - n) & 15); break;
      case DPP_WAVE_SHL: from = l + 1; valid = l < 63; break;
      case DPP_WAVE_ROL: from = (l + 1) & 63; break;
      case DPP_WAVE_SHR: from = l - 1; valid = l > 0; break;
      case DPP_WAVE_ROR: from = (l - 1) & 63; break;
      case DPP_MIRROR: from = (l & ~15) | (15 - x); break;
      case DPP_HALF_MIRROR: from = (l & ~7) | (7 - (l & 7)); break;
      case DPP_BCAST15: from = row * 16 - 1; valid = row > 0; break;
      case DPP_BCAST31: from = 31; valid = l >= 32; break;
      case DPP_NEWBCAST: from = (l & ~15) | n; break;
    }
    const bool enabled = bit(I.row_mask, row) && bit(I.bank_mask, x >> 2);
    valid = valid && bit(exec, from & 63);
    out[l] = valid ? copy[from] : 0;
    if (!valid || bit(source_defined, from & 63)) defined |= 1ull << l;
    if (enabled && (valid || I.bound_ctrl)) writable |= 1ull << l;
  }
  w.dpp_defined = defined;
  return writable;
}

u32 sdwa_extract(u32 x, int select, bool sign_extend) {
  if (select < 4) {
    x = (x >> (8 * select)) & 0xff;
    return sign_extend ? static_cast<u32>(static_cast<i8>(x)) : x;
  }
  x = select == 4 ? x & 0xffff : x >> 16;
  return sign_extend ? static_cast<u32>(static_cast<i16>(x)) : x;
}

void write_sdwa(const Inst &I, const u32 *old, u32 *value) {
  const bool byte = I.dst_sel < 4;
  const int shift = byte ? 8 * I.dst_sel : I.dst_sel == 5 ? 16 : 0;
  const u32 field = byte ? 0xff : 0xffff, mask = field << shift;
  const u32 above = ~(mask | ((1u << shift) - 1));
  FOR_LANES(l) {
    const u32 placed = (value[l] << shift) & mask;
    const bool negative = (value[l] & field) >> (byte ? 7 : 15);
    u32 rest = 0;
    if (I.dst_unused == 1 && negative) rest = above;
    if (I.dst_unused == 2) rest = old[l] & ~mask;
    value[l] = placed | rest;
  }
}
