// Proves that no wave can ever go on, and says where each waits.
//
// A wave whose whole register state recurs while nothing in memory has changed will spin for ever;
// once every wave is like that or at a barrier, all is over.
#include <algorithm>

#include "machine.h"

namespace {

constexpr u64 kQuietBeforeWatching = 2048;  // wave-instructions without progress

u64 hash_words(u64 hash, const u32 *words, size_t count) {
  for (size_t i = 0; i + 1 < count; i += 2) {
    hash ^= words[i] | static_cast<u64>(words[i + 1]) << 32;
    hash *= 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  }
  return hash;
}

u64 hash_state(const Wave &w) {
  u64 hash = w.pc * 2 + w.scc;
  hash = hash_words(hash, w.s, 128);
  hash = hash_words(hash, w.v, static_cast<size_t>(w.rows) * kLanes);
  for (const auto *queue : {&w.vm, &w.lgkm})
    for (const Access *access : *queue) hash = hash * 31 + access->inst->pc + access->performed;
  return hash;
}

std::string describe(const Wave &w) {
  char text[256];
  const u32 at = w.pc ? w.pc - (w.state == State::AT_BARRIER) : 0;
  const u32 pc = w.program->code[at].pc;
  std::snprintf(text, sizeof text, "wave %u of workgroup (%u,%u,%u) on device %u", w.index,
                w.group->id[0], w.group->id[1], w.group->id[2], w.group->cu->device);
  std::string result = text;
  if (w.state == State::AT_BARRIER) {
    std::snprintf(text, sizeof text, " waits at barrier {0x%x} (pc 0x%x)", pc, pc);
    return result + text;
  }
  std::snprintf(text, sizeof text, " spins at {0x%x} (pc 0x%x)", pc, pc);
  result += text;
  if (w.last_load) {
    std::snprintf(text, sizeof text, ", last load {0x%x} of 0x%llx", w.last_load_pc,
                  static_cast<unsigned long long>(w.last_load));
    result += text;
  }
  return result;
}

}  // namespace

void Shard::watch(Wave &w, u64 ran) {
  if (w.seen_progress != progress) {
    w.seen_progress = progress;
    w.quiet = 0;
    w.seen.clear();
    return;
  }
  w.quiet += ran;
  if (w.quiet < kQuietBeforeWatching || w.stuck_at == progress) return;
  const u64 hash = hash_state(w);
  if (std::find(w.seen.begin(), w.seen.end(), hash) == w.seen.end()) {
    if (w.seen.size() == 64) w.seen.erase(w.seen.begin(), w.seen.begin() + 32);
    w.seen.push_back(hash);
    return;
  }
  w.stuck_at = progress;
}

bool Shard::can_go_on() const {
  return std::any_of(runnable.begin(), runnable.end(),
                     [&](const Wave *w) { return w->stuck_at != progress; });
}

bool Shard::land_everything() {
  const u64 before = progress;
  for (bool more = true; more;) {
    more = false;
    for (Wave *w : alive)
      while (complete_one(*w)) more = true;
    perform_deferred();
    memory.settle();
  }
  return progress != before;
}

void Machine::watch_for_deadlock() {
  for (const auto &shard : shards)
    if (shard->can_go_on()) return;
  // Stores still on their way could wake somebody up: let them land first.
  bool landed = false;
  for (auto &shard : shards) landed |= shard->land_everything();
  if (!landed) report_deadlock();
}

void Machine::report_deadlock() const {
  std::string text = "no wave can go on:";
  size_t shown = 0;
  for (const auto &shard : shards)
    for (const Wave *w : shard->alive)
      if (shown++ < 32) text += "\n  " + describe(*w);
  if (shown > 32) text += "\n  ... and " + std::to_string(shown - 32) + " more waves";
  for (const auto &launch : launches) {
    u64 left = 0;
    for (u64 next : launch->next)
      if (next < launch->total) left += (launch->total - next + options.xccs - 1) / options.xccs;
    if (left)
      text += "\n  " + std::to_string(left) +
              " workgroups have not started: no room until a resident one ends";
  }
  throw Fault{"deadlock", text};
}

std::string Shard::where() const {
  if (!current || !current_wave) return "";
  char text[192];
  const Workgroup &g = *current_wave->group;
  std::snprintf(text, sizeof text, " [at {0x%x}, pc 0x%x, wave %u of workgroup (%u,%u,%u), device %u]",
                current->pc, current->pc, current_wave->index, g.id[0], g.id[1], g.id[2],
                g.cu->device);
  return text;
}
