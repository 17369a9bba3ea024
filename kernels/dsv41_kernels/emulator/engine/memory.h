// Global memory: the registered allocations, and caches that do not keep each other coherent.
//
// A compute unit has a write-through L1 and a scalar L1; each die (XCC) has a write-back L2; with
// several devices each also has an agent level. Plain loads may hit stale lines at any level,
// plain stores stay in the die's L2. sc0/sc1 choose the level an access goes through to, and
// buffer_wbl2 / buffer_inv move or drop what lies above that level, as LLVM's memory model for
// gfx942 promises and no better: nothing becomes visible that a program has not asked for, except
// by the eviction of a full cache.
#pragma once
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "api.h"
#include "types.h"

enum class Scope : u8 { WAVE, WORKGROUP, AGENT, SYSTEM };
inline Scope scope_of(u32 sc_bits) { return static_cast<Scope>(sc_bits & 3); }

constexpr u64 kLine = 128;
inline u64 line_of(u64 address) { return address & ~(kLine - 1); }

struct Range {
  u64 base, end;
  // Per byte, a bit for each shard that may take it as written; 0: never written. Null: all is.
  u8 *written;
  bool read_only, uncached;
};

// Memory as one shard sees it. What the shard writes within an epoch, by evictions and the like, is
// held here until settle(), so that shards may run side by side and still give one result.
class Memory {
 public:
  Memory(std::vector<Range> ranges, u32 shard, u64 *progress);
  // The allocation that holds [address, address + size), or null.
  const Range *find(u64 address, u64 size) const {
    const Range &last = ranges_[last_];
    if (address >= last.base && address + size <= last.end) return &last;
    return search(address, size);
  }
  const Range *nearest(u64 address) const;

  const u8 *read(u64 line) const;  // a whole line
  void write(u64 address, const u8 *data, u32 size);  // within one line
  bool was_written(u64 address, u32 size) const;
  void mark_written(u64 address, u32 size);
  void settle();

 private:
  struct Held {
    u64 mask[2] = {0, 0};
    u8 content[kLine];
  };
  const Range *search(u64 address, u64 size) const;

  std::vector<Range> ranges_;
  mutable size_t last_ = 0;
  u8 shard_bit_;
  u64 *progress_;
  std::unordered_map<u64, Held> held_;
  std::vector<std::pair<u8 *, u32>> marked_;
};

class Cache {
 public:
  // `below` is the next level, or null for memory itself. `progress` counts changes of content.
  Cache(u32 sets, u32 ways, Cache *below, Memory *memory, u64 *progress);
  const u8 *read(u64 line);                       // a whole valid line, filled if need be
  void write(u64 address, const u8 *data, u32 size);  // within one line; leaves it dirty
  void update(u64 address, const u8 *data, u32 size);  // only if the line is here; never dirty
  void flush_line(u64 line);  // write its dirty bytes to the level below and forget the line
  void drop_line(u64 line);   // forget the line (a cache that holds nothing dirty)
  void write_back();          // write all dirty bytes below; the lines stay, clean
  void invalidate() { generation_++; }  // forget all clean bytes

 private:
  struct Line {
    u64 generation = 0;
    u64 valid[2] = {0, 0}, dirty[2] = {0, 0};
    bool listed = false;  // in dirty_
  };
  Line *find(u64 line);
  Line *allocate(u64 line);
  void forget(Line &entry) { tags_[&entry - lines_.get()] = 0; }
  void push_down(Line &entry);
  u8 *data(const Line &entry) { return data_.get() + (&entry - lines_.get()) * kLine; }
  u32 set_of(u64 line) const;

  u32 sets_, ways_, victim_ = 0;
  u64 generation_ = 1;
  Cache *below_;
  Memory *memory_;
  u64 *progress_;
  size_t last_ = 0;  // the line found last
  std::unique_ptr<u64[]> tags_;  // line address + 1; 0: unused
  std::unique_ptr<Line[]> lines_;
  std::unique_ptr<u8[]> data_;
  std::vector<u32> dirty_;
};

// One compute unit's way to memory.
struct Path {
  Cache *l1, *scalar, *l2, *agent;  // agent: null with a single device
  Memory *memory;

  // Calls f(lane, pointer to `size` bytes) for each lane, reading at `scope`.
  template <class F>
  void load(u64 lanes, const u64 *address, u32 size, Scope scope, bool stream, F f);
  void read(u64 address, u32 size, Scope scope, u8 *out);
  void read_scalar(u64 address, u32 size, u8 *out);
  void write(u64 address, const u8 *data, u32 size, Scope scope);
  void invalidate(Scope scope);
  void write_back(Scope scope);
  // Whether a write at this scope leaves the shard (see machine.h).
  bool reaches_memory(Scope scope) const { return scope >= (agent ? Scope::SYSTEM : Scope::AGENT); }

 private:
  void settle_line(u64 line, Scope scope);
};

template <class F>
void Path::load(u64 lanes, const u64 *address, u32 size, Scope scope, bool stream, F f) {
  if (scope >= Scope::AGENT) {
    each_lane(lanes, [&](int l) {
      u8 bytes[16];
      read(address[l], size, scope, bytes);
      f(l, bytes);
    });
    return;
  }
  Cache &cache = stream ? *l2 : *l1;
  u64 line = 1;
  const u8 *content = nullptr;
  each_lane(lanes, [&](int l) {
    const u64 at = address[l];
    if ((at & (kLine - 1)) + size > kLine) {
      u8 bytes[16];
      read(at, size, scope, bytes);
      line = 1;
      f(l, bytes);
      return;
    }
    if (line_of(at) != line) content = cache.read(line = line_of(at));
    f(l, content + (at - line));
  });
}
