#include "memory.h"

#include <algorithm>
#include <atomic>

namespace {

// The bytes of a line that an access covers.
void mask_of(u64 address, u32 size, u64 out[2]) {
  const u32 first = address & (kLine - 1), end = first + size;
  const auto below = [](u32 n) { return n >= 64 ? ~0ull : (1ull << n) - 1; };
  out[0] = below(end) & ~below(first);
  out[1] = end > 64 ? below(end - 64) & ~(first > 64 ? below(first - 64) : 0) : 0;
}

// Calls f(first, count) for the runs of set bits.
template <class F>
void each_run(const u64 mask[2], F f) {
  for (int half = 0; half < 2; half++)
    for (u64 left = mask[half]; left;) {
      const int first = std::countr_zero(left), count = std::countr_one(left >> first);
      f(64 * half + first, count);
      left = first + count == 64 ? 0 : left >> (first + count) << (first + count);
    }
}

bool whole(const u64 mask[2]) { return (mask[0] & mask[1]) == ~0ull; }

// Applies f(address, size) to the parts of an access that lie within one line each.
template <class F>
void by_line(u64 address, u32 size, F f) {
  for (u32 done = 0; done < size;) {
    const u32 room = kLine - ((address + done) & (kLine - 1));
    const u32 part = std::min(room, size - done);
    f(address + done, done, part);
    done += part;
  }
}

}  // namespace

Cache::Cache(u32 sets, u32 ways, Cache *below, Memory *memory, u64 *progress)
    : sets_(sets), ways_(ways), below_(below), memory_(memory), progress_(progress) {}

u32 Cache::set_of(u64 line) const {
  const u64 number = line / kLine;
  return static_cast<u32>((number ^ number >> 11 ^ number >> 22) & (sets_ - 1));
}

Cache::Line *Cache::find(u64 line) {
  if (!lines_) return nullptr;
  if (tags_[last_] != line + 1) {
    const size_t set = static_cast<size_t>(set_of(line)) * ways_;
    size_t i = set;
    while (i < set + ways_ && tags_[i] != line + 1) i++;
    if (i == set + ways_) return nullptr;
    last_ = i;
  }
  Line &entry = lines_[last_];
  if (entry.generation != generation_) {  // an invalidate came after: only dirty bytes remain
    entry.generation = generation_;
    entry.valid[0] = entry.dirty[0];
    entry.valid[1] = entry.dirty[1];
  }
  return &entry;
}

Cache::Line *Cache::allocate(u64 line) {
  if (!lines_) {  // most caches of a big machine are never used
    const size_t count = static_cast<size_t>(sets_) * ways_;
    tags_.reset(new u64[count]());
    lines_.reset(new Line[count]);
    data_.reset(new u8[count * kLine]);
  }
  const size_t set = static_cast<size_t>(set_of(line)) * ways_;
  size_t i = set;
  while (i < set + ways_ && tags_[i]) i++;
  if (i == set + ways_) {
    i = set + victim_++ % ways_;
    push_down(lines_[i]);
  }
  tags_[i] = line + 1;
  lines_[i].generation = generation_;
  lines_[i].valid[0] = lines_[i].valid[1] = 0;
  return &lines_[i];
}

void Cache::push_down(Line &entry) {
  if (!(entry.dirty[0] | entry.dirty[1])) return;
  const u8 *from = data(entry);
  const u64 base = tags_[&entry - lines_.get()] - 1;
  each_run(entry.dirty, [&](int first, int count) {
    if (below_)
      below_->write(base + first, from + first, count);
    else
      memory_->write(base + first, from + first, count);
  });
  entry.dirty[0] = entry.dirty[1] = 0;
}

const u8 *Cache::read(u64 line) {
  Line *entry = find(line);
  if (!entry) entry = allocate(line);
  u8 *content = data(*entry);
  if (whole(entry->valid)) return content;
  const u8 *source = below_ ? below_->read(line) : memory_->read(line);
  if (!(entry->valid[0] | entry->valid[1])) {
    std::memcpy(content, source, kLine);
  } else {
    for (u32 i = 0; i < kLine; i++)
      if (!bit(entry->valid[i >> 6], i & 63)) content[i] = source[i];
  }
  entry->valid[0] = entry->valid[1] = ~0ull;
  return content;
}

void Cache::write(u64 address, const u8 *from, u32 size) {
  const u64 line = line_of(address);
  Line *entry = find(line);
  if (!entry) entry = allocate(line);
  u64 mask[2];
  mask_of(address, size, mask);
  u8 *to = data(*entry) + (address - line);
  const bool known = (entry->valid[0] & mask[0]) == mask[0] && (entry->valid[1] & mask[1]) == mask[1];
  if (!known || std::memcmp(to, from, size)) ++*progress_;
  std::memcpy(to, from, size);
  for (int i = 0; i < 2; i++) {
    entry->valid[i] |= mask[i];
    entry->dirty[i] |= mask[i];
  }
  if (!entry->listed) {
    entry->listed = true;
    dirty_.push_back(static_cast<u32>(entry - lines_.get()));
  }
}

void Cache::update(u64 address, const u8 *from, u32 size) {
  const u64 line = line_of(address);
  if (Line *entry = find(line)) std::memcpy(data(*entry) + (address - line), from, size);
}

void Cache::flush_line(u64 line) {
  if (Line *entry = find(line)) {
    push_down(*entry);
    forget(*entry);
  }
}

void Cache::drop_line(u64 line) {
  if (Line *entry = find(line)) forget(*entry);
}

void Cache::write_back() {
  for (u32 index : dirty_) {
    push_down(lines_[index]);
    lines_[index].listed = false;
  }
  dirty_.clear();
}

Memory::Memory(std::vector<Range> ranges, u32 shard, u64 *progress)
    : ranges_(std::move(ranges)), shard_bit_(static_cast<u8>(1 << shard)), progress_(progress) {
  std::sort(ranges_.begin(), ranges_.end(),
            [](const Range &a, const Range &b) { return a.base < b.base; });
  if (ranges_.empty()) ranges_.push_back({0, 0, nullptr, true, false});
}

const Range *Memory::search(u64 address, u64 size) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                      [](u64 a, const Range &r) { return a < r.base; });
  if (after == ranges_.begin()) return nullptr;
  const Range &candidate = *(after - 1);
  if (address + size > candidate.end) return nullptr;
  last_ = &candidate - ranges_.data();
  return &candidate;
}

const Range *Memory::nearest(u64 address) const {
  const Range *best = nullptr;
  u64 distance = ~0ull;
  for (const Range &range : ranges_) {
    const u64 away = address < range.base ? range.base - address
                     : address >= range.end ? address - range.end
                                            : 0;
    if (away < distance) {
      distance = away;
      best = &range;
    }
  }
  return best;
}

const u8 *Memory::read(u64 line) const {
  if (!held_.empty())
    if (const auto found = held_.find(line); found != held_.end()) return found->second.content;
  return reinterpret_cast<const u8 *>(line);
}

void Memory::write(u64 address, const u8 *data, u32 size) {
  const u64 line = line_of(address);
  const auto [entry, fresh] = held_.try_emplace(line);
  Held &held = entry->second;
  if (fresh) std::memcpy(held.content, reinterpret_cast<const u8 *>(line), kLine);
  u64 mask[2];
  mask_of(address, size, mask);
  for (int i = 0; i < 2; i++) held.mask[i] |= mask[i];
  std::memcpy(held.content + (address - line), data, size);
}

bool Memory::was_written(u64 address, u32 size) const {
  const Range *range = find(address, size);
  if (!range || !range->written) return true;
  u8 *marks = range->written + (address - range->base);
  for (u32 i = 0; i < size; i++)
    if (!(std::atomic_ref(marks[i]).load(std::memory_order_relaxed) & shard_bit_)) return false;
  return true;
}

void Memory::mark_written(u64 address, u32 size) {
  const Range *range = find(address, size);
  if (!range || !range->written || was_written(address, size)) return;
  u8 *marks = range->written + (address - range->base);
  for (u32 i = 0; i < size; i++)
    std::atomic_ref(marks[i]).fetch_or(shard_bit_, std::memory_order_relaxed);
  marked_.push_back({marks, size});
}

void Memory::settle() {
  for (const auto &item : held_) {
    u8 *to = reinterpret_cast<u8 *>(item.first);
    const u8 *content = item.second.content;
    each_run(item.second.mask, [&](int first, int count) {
      if (std::memcmp(to + first, content + first, count) == 0) return;
      std::memcpy(to + first, content + first, count);
      ++*progress_;
    });
  }
  held_.clear();
  for (const auto &[marks, size] : marked_) std::memset(marks, 0xff, size);
  marked_.clear();
}

void Path::settle_line(u64 line, Scope scope) {
  l1->drop_line(line);
  scalar->drop_line(line);
  l2->flush_line(line);
  if (scope == Scope::SYSTEM && agent) agent->flush_line(line);
}

void Path::read(u64 address, u32 size, Scope scope, u8 *out) {
  by_line(address, size, [&](u64 at, u32 done, u32 part) {
    const u64 line = line_of(at);
    const u8 *content;
    if (scope < Scope::AGENT) {
      content = l1->read(line);
    } else {
      settle_line(line, scope);
      content = agent && scope == Scope::AGENT ? agent->read(line)
                                               : memory->read(line);
    }
    std::memcpy(out + done, content + (at - line), part);
  });
}

void Path::read_scalar(u64 address, u32 size, u8 *out) {
  by_line(address, size, [&](u64 at, u32 done, u32 part) {
    std::memcpy(out + done, scalar->read(line_of(at)) + (at & (kLine - 1)), part);
  });
}

void Path::write(u64 address, const u8 *data, u32 size, Scope scope) {
  by_line(address, size, [&](u64 at, u32 done, u32 part) {
    if (scope < Scope::AGENT) {
      l1->update(at, data + done, part);
      l2->write(at, data + done, part);
      return;
    }
    settle_line(line_of(at), scope);
    if (agent && scope == Scope::AGENT)
      agent->write(at, data + done, part);
    else
      memory->write(at, data + done, part);
  });
}

void Path::invalidate(Scope scope) {
  if (scope < Scope::AGENT) return;  // a workgroup's waves share their L1
  l1->invalidate();
  l2->invalidate();
  if (scope == Scope::SYSTEM && agent) agent->invalidate();
}

void Path::write_back(Scope scope) {
  if (scope < Scope::AGENT) return;
  l2->write_back();
  if (scope == Scope::SYSTEM && agent) agent->write_back();
}
