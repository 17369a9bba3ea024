// The C interface to Python; core.py holds the same layouts.
#pragma once
#include "types.h"

struct LaunchArgs {
  void *program;
  u64 kernarg;
  u32 kernarg_size, entry, grid[3], block[3];
  u32 lds, scratch, vgprs, agpr_base;
  u32 properties, rsrc1, rsrc2, preload;
  u32 device, groups_per_cu;
};
struct RangeArgs {
  u64 base, size;
  u8 *written;  // one byte a byte, 0 where never written, 0xff where it was; null: all was
  u32 read_only;
  u32 uncached;  // every access goes through to memory, as hipDeviceMallocUncached gives
};
struct OptionArgs {
  u64 seed, budget;
  u32 quantum, devices, xccs, cus_per_xcc, lds_races, poison, threads;
};
struct ResultArgs {
  u64 instructions;
  char kind[32];
  char message[16384];
};
