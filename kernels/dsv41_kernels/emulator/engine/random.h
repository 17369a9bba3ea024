// xorshift64*: one seeded stream drives the whole schedule, so a run repeats exactly.
#pragma once
#include "types.h"

class Random {
 public:
  explicit Random(u64 seed) : state_((seed + 1) * 0x9e3779b97f4a7c15ull | 1) {
    for (int i = 0; i < 8; i++) next();
  }
  u64 next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1dull >> 16;
  }
  u32 below(u32 n) { return static_cast<u32>((next() & 0xffffffff) * n >> 32); }
  bool one_in(u32 n) { return below(n) == 0; }

 private:
  u64 state_;
};
