#include "memory.h"

#include <algorithm>

namespace {

void mask_of(u64 address, u32 size, u64 out[2]) {
  const u32 first = address & (kLine - 1);
  out[0] = out[1] = 0;
  for (u32 i = first; i < first + size; i++) out[i >> 6] |= 1ull << (i & 63);
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

void write_memory(u64 address, const u8 *data, u32 size, u64 *progress) {
  u8 *to = reinterpret_cast<u8 *>(address);
  if (std::memcmp(to, data, size) == 0) return;
  std::memcpy(to, data, size);
  ++*progress;
}

}  // namespace

Cache::Cache(u32 sets, u32 ways, Cache *below, u64 *progress)
    : sets_(sets), ways_(ways), below_(below), progress_(progress) {}

u32 Cache::set_of(u64 line) const {
  const u64 number = line / kLine;
  return static_cast<u32>((number ^ number >> 11 ^ number >> 22) & (sets_ - 1));
}

Cache::Line *Cache::find(u64 line) {
  if (!lines_) return nullptr;
  Line *set = &lines_[static_cast<u64>(set_of(line)) * ways_];
  for (u32 i = 0; i < ways_; i++) {
    if (set[i].tag != line + 1) continue;
    if (set[i].generation != generation_) {  // an invalidate came after: only dirty bytes remain
      set[i].generation = generation_;
      set[i].valid[0] = set[i].dirty[0];
      set[i].valid[1] = set[i].dirty[1];
    }
    return &set[i];
  }
  return nullptr;
}

Cache::Line *Cache::allocate(u64 line) {
  if (!lines_) {  // most caches of a big machine are never used
    lines_.reset(new Line[sets_ * ways_]);
    data_.reset(new u8[static_cast<u64>(sets_) * ways_ * kLine]);
  }
  Line *set = &lines_[static_cast<u64>(set_of(line)) * ways_];
  Line *chosen = nullptr;
  for (u32 i = 0; i < ways_ && !chosen; i++)
    if (!set[i].tag) chosen = &set[i];
  if (!chosen) {
    chosen = &set[victim_++ % ways_];
    push_down(*chosen);
  }
  chosen->tag = line + 1;
  chosen->generation = generation_;
  chosen->valid[0] = chosen->valid[1] = 0;
  return chosen;
}

void Cache::push_down(Line &entry) {
  if (!(entry.dirty[0] | entry.dirty[1])) return;
  const u8 *from = data(entry);
  const u64 base = entry.tag - 1;
  for (u32 i = 0; i < kLine;) {
    if (!bit(entry.dirty[i >> 6], i & 63)) {
      i++;
      continue;
    }
    u32 end = i;
    while (end < kLine && bit(entry.dirty[end >> 6], end & 63)) end++;
    if (below_)
      below_->write(base + i, from + i, end - i);
    else
      write_memory(base + i, from + i, end - i, progress_);
    i = end;
  }
  entry.dirty[0] = entry.dirty[1] = 0;
}

const u8 *Cache::read(u64 line) {
  Line *entry = find(line);
  if (!entry) entry = allocate(line);
  u8 *content = data(*entry);
  if (whole(entry->valid)) return content;
  const u8 *source = below_ ? below_->read(line) : reinterpret_cast<const u8 *>(line);
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
    entry->tag = 0;
  }
}

void Cache::drop_line(u64 line) {
  if (Line *entry = find(line)) entry->tag = 0;
}

void Cache::write_back() {
  for (u32 index : dirty_) {
    push_down(lines_[index]);
    lines_[index].listed = false;
  }
  dirty_.clear();
}

void Allocations::sort() {
  std::sort(ranges_.begin(), ranges_.end(),
            [](const Range &a, const Range &b) { return a.base < b.base; });
  if (ranges_.empty()) ranges_.push_back({0, 0, nullptr, true, false});
}

const Range *Allocations::search(u64 address, u64 size) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                      [](u64 a, const Range &r) { return a < r.base; });
  if (after == ranges_.begin()) return nullptr;
  const Range &candidate = *(after - 1);
  if (address + size > candidate.end) return nullptr;
  last_ = &candidate - ranges_.data();
  return &candidate;
}

const Range *Allocations::nearest(u64 address) const {
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
                                               : reinterpret_cast<const u8 *>(line);
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
      write_memory(at, data + done, part, progress);
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
