// Sets workgroups up on compute units and runs their waves, one random turn at a time.
//
// A deadlock is proved, not guessed: a wave whose whole register state recurs while nothing in
// memory has changed will spin for ever, and once every wave is like that or at a barrier no wave
// can go on.
#include <algorithm>
#include <cstdlib>
#include <map>

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

}  // namespace

Machine::Machine(const LaunchArgs *args, u32 count, const RangeArgs *ranges, u32 range_count,
                 const OptionArgs &chosen)
    : options(chosen), devices(chosen.devices), random(chosen.seed) {
  for (u32 i = 0; i < range_count; i++)
    allocations.add({ranges[i].base, ranges[i].base + ranges[i].size, ranges[i].written,
                     ranges[i].read_only != 0, ranges[i].uncached != 0});
  for (u32 d = 0; d < options.devices; d++) {
    Device &device = devices[d];
    if (options.devices > 1) device.agent = std::make_unique<Cache>(8192, 16, nullptr, &progress);
    for (u32 x = 0; x < options.xccs; x++)  // 4 MiB, 16 ways
      device.l2.push_back(std::make_unique<Cache>(2048, 16, device.agent.get(), &progress));
    device.cus.resize(options.xccs * options.cus_per_xcc);
    for (u32 c = 0; c < device.cus.size(); c++) {
      ComputeUnit &cu = device.cus[c];
      cu.device = d;
      cu.xcc = c % options.xccs;
      cu.index = c / options.xccs;
      Cache *l2 = device.l2[cu.xcc].get();
      cu.l1 = std::make_unique<Cache>(16, 16, l2, &progress);     // 32 KiB
      cu.scalar = std::make_unique<Cache>(32, 4, l2, &progress);  // 16 KiB
      cu.path = {cu.l1.get(), cu.scalar.get(), l2, device.agent.get(), &progress};
    }
  }
  for (u32 i = 0; i < count; i++) {
    auto launch = std::make_unique<Launch>();
    launch->args = args[i];
    launch->program = static_cast<const Program *>(args[i].program);
    launch->next = 0;
    launch->total = static_cast<u64>(args[i].grid[0]) * args[i].grid[1] * args[i].grid[2];
    launch->resident.assign(devices[args[i].device].cus.size(), 0);
    std::memset(launch->packet, 0, sizeof launch->packet);
    auto *halves = reinterpret_cast<u16 *>(launch->packet);
    auto *words = reinterpret_cast<u32 *>(launch->packet);
    for (int k = 0; k < 3; k++) {
      halves[2 + k] = static_cast<u16>(args[i].block[k]);
      words[3 + k] = args[i].grid[k] * args[i].block[k];
    }
    launch->packet[5] = args[i].kernarg;
    const u64 packet = reinterpret_cast<u64>(launch->packet);
    allocations.add({packet, packet + sizeof launch->packet, nullptr, true, false});
    launches.push_back(std::move(launch));
  }
  allocations.sort();
}

static void free_wave(Wave *w) {
  std::free(w->v);
  delete[] w->defined;
  delete[] w->origin;
  delete[] w->pending;
  delete w;
}

Machine::~Machine() {
  std::vector<Workgroup *> groups;
  for (Wave *w : alive) groups.push_back(w->group);
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  for (Workgroup *g : groups) {
    for (Wave *w : g->waves)
      if (w->state != State::DONE) free_wave(w);
    delete g;
  }
  for (Wave *w : free_waves_) free_wave(w);
}

Access *Machine::new_access(Wave &w, const Inst &I) {
  if (free_accesses_.empty()) {
    all_accesses_.push_back(std::make_unique<Access>());
    free_accesses_.push_back(all_accesses_.back().get());
  }
  Access *access = free_accesses_.back();
  free_accesses_.pop_back();
  access->inst = &I;
  access->perform = nullptr;
  access->performed = access->scalar = access->flat = access->stores = false;
  access->cache_op = access->lds_dma = false;
  access->order = Order::FREE;
  access->scope = Scope::WAVE;
  access->size = 0;
  access->lanes = access->active = w.exec();
  access->poisoned = 0;
  access->low = access->high = 0;
  return access;
}

// ---- Starting workgroups --------------------------------------------------------------------------

Wave *Machine::new_wave(Workgroup &group, u32 index) {
  const LaunchArgs &args = group.launch->args;
  const Program &program = *group.launch->program;
  const u32 base = std::max(args.agpr_base, program.agprs ? 0u : program.vgprs);
  const u32 rows = (std::max(args.vgprs, std::max(program.vgprs, base + program.agprs)) + 7) & ~7u;
  Wave *w = nullptr;
  if (!free_waves_.empty() && free_waves_.back()->rows == rows) {
    w = free_waves_.back();
    free_waves_.pop_back();
  } else {
    w = new Wave;
    w->rows = rows;
    w->v = static_cast<u32 *>(std::aligned_alloc(64, static_cast<size_t>(rows) * sizeof(Lanes)));
    w->defined = new u64[rows];
    w->origin = new u32[rows];
    w->pending = new u8[rows];
  }
  std::fill_n(w->v, static_cast<size_t>(rows) * kLanes, kUnwrittenValue);
  std::fill_n(w->defined, rows, 0);
  std::fill_n(w->origin, rows, kNever);
  std::fill_n(w->pending, rows, 0);
  std::fill(std::begin(w->s), std::end(w->s), kUnwrittenValue);
  std::fill(std::begin(w->s_defined), std::end(w->s_defined), 0);
  std::fill(std::begin(w->s_pending), std::end(w->s_pending), 0);
  w->agpr_base = base;
  w->scc = w->scc_defined = false;
  w->pc = args.entry;
  w->mode = args.rsrc1 >> 12 & 0xff;
  w->state = State::RUNNING;
  w->index = index;
  w->hold = 0;
  w->group = &group;
  w->machine = this;
  w->program = &program;
  w->scratch.assign(static_cast<size_t>(kLanes) * args.scratch, 0xa5);
  w->scratch_written.assign(w->scratch.size(), 0);
  w->last_load = 0;
  w->seen_progress = w->quiet = 0;
  w->stuck_at = 0;
  w->seen.clear();

  const u32 threads = args.block[0] * args.block[1] * args.block[2];
  u64 exec = 0;
  FOR_LANES(l) {
    const u32 t = index * kLanes + l;
    if (t < threads) exec |= 1ull << l;
    const u32 x = t % args.block[0], y = t / args.block[0] % args.block[1];
    w->v[l] = x | y << 10 | t / args.block[0] / args.block[1] << 20;
  }
  w->defined[0] = ~0ull;
  w->set_exec(exec);
  w->s_defined[EXEC_REG] = w->s_defined[EXEC_REG + 1] = ~0u;

  // User SGPRs in the order of the kernel descriptor's enable bits, then the workgroup ids.
  u32 next = 0;
  const auto put = [&](u32 x) {
    w->s[next] = x;
    w->s_defined[next++] = ~0u;
  };
  const auto put64 = [&](u64 x) {
    put(static_cast<u32>(x));
    put(x >> 32);
  };
  enum { BUFFER = 1, DISPATCH = 2, QUEUE = 4, KERNARG = 8, DISPATCH_ID = 16, FLAT = 32, SIZE = 64 };
  if (args.properties & BUFFER) next += 4;
  if (args.properties & DISPATCH) put64(reinterpret_cast<u64>(group.launch->packet));
  if (args.properties & QUEUE) put64(0);
  if (args.properties & KERNARG) put64(args.kernarg);
  if (args.properties & DISPATCH_ID) put64(0);
  if (args.properties & FLAT) put64(0);
  if (args.properties & SIZE) put(args.scratch);
  const u32 preload = args.preload & 0x7f, preload_offset = args.preload >> 7 & 0x1ff;
  for (u32 i = 0; i < preload; i++) {
    u32 x;
    std::memcpy(&x, reinterpret_cast<void *>(args.kernarg + 4 * (preload_offset + i)), 4);
    put(x);
  }
  next = args.rsrc2 >> 1 & 31;
  for (int i = 0; i < 3; i++)
    if (bit(args.rsrc2, 7 + i)) put(group.id[i]);
  return w;
}

bool Machine::start_group(Launch &launch) {
  Device &device = devices[launch.args.device];
  const u64 id = launch.next;
  // Workgroups go to the dies in turn, and there to the compute unit with the fewest.
  const u32 xcc = static_cast<u32>(id % options.xccs);
  u32 best = ~0u;
  for (u32 c = xcc; c < device.cus.size(); c += options.xccs)
    if (best == ~0u || launch.resident[c] < launch.resident[best]) best = c;
  if (launch.resident[best] >= launch.args.groups_per_cu) return false;
  launch.resident[best]++;
  launch.next++;

  auto *g = new Workgroup;
  g->launch = &launch;
  g->cu = &device.cus[best];
  const u32 *grid = launch.args.grid;
  g->id[0] = static_cast<u32>(id % grid[0]);
  g->id[1] = static_cast<u32>(id / grid[0] % grid[1]);
  g->id[2] = static_cast<u32>(id / grid[0] / grid[1]);
  g->serial = groups_started++;
  g->lds.assign(launch.args.lds, 0xa5);
  g->shadow.assign((launch.args.lds + 3) / 4, LdsShadow{});
  g->epoch = 1;
  g->arrived = 0;
  const u32 threads = launch.args.block[0] * launch.args.block[1] * launch.args.block[2];
  g->alive = (threads + kLanes - 1) / kLanes;
  for (u32 i = 0; i < g->alive; i++) {
    Wave *w = new_wave(*g, i);
    g->waves.push_back(w);
    alive.push_back(w);
    make_runnable(*w);
  }
  peak_waves = std::max<u64>(peak_waves, alive.size());
  progress++;
  return true;
}

void Machine::dispatch() {
  for (auto &launch : launches)
    while (launch->next < launch->total && start_group(*launch)) {
    }
}

// ---- Running ----------------------------------------------------------------------------------------

void Machine::make_runnable(Wave &w) {
  w.slot = static_cast<u32>(runnable.size());
  runnable.push_back(&w);
}

void Machine::park(Wave &w) {
  runnable.back()->slot = w.slot;
  runnable[w.slot] = runnable.back();
  runnable.pop_back();
}

void Machine::release_barrier(Workgroup &g) {
  if (!g.arrived || g.arrived != g.alive) return;
  g.arrived = 0;
  if (++g.epoch == 0) {  // the counter wrapped: forget who touched what
    for (LdsShadow &h : g.shadow) h.write_epoch = h.read_epoch = 0;
    g.epoch = 1;
  }
  progress++;
  for (Wave *w : g.waves) {
    if (w->state != State::AT_BARRIER) continue;
    w->state = State::RUNNING;
    make_runnable(*w);
  }
}

void Machine::finish(Wave &w) {
  w.state = State::DONE;
  park(w);
  alive.erase(std::find(alive.begin(), alive.end(), &w));
  free_waves_.push_back(&w);
  progress++;
  Workgroup *g = w.group;
  g->alive--;
  release_barrier(*g);
  if (g->alive) return;
  Launch &launch = *g->launch;
  launch.resident[g->cu - devices[launch.args.device].cus.data()]--;
  delete g;
  dispatch();
}

// Lets a random wave's memory traffic make headway, whatever the wave itself is doing.
void Machine::complete_something(Wave &w) {
  if (random.one_in(8)) complete_one(w);
  if (random.one_in(16)) complete_one(*alive[random.below(static_cast<u32>(alive.size()))]);
}

void Machine::turn(Wave &w) {
  if (w.hold) {
    w.hold--;
    return;
  }
  complete_something(w);
  if (w.state == State::ENDING) {
    if (wait_for(w, 0, 0)) finish(w);
    return;
  }
  const Inst *code = w.program->code.data();
  const bool poison = options.poison;
  const u32 quantum = 1 + random.below(options.quantum);
  current_wave = &w;
  u32 ran = 0;
  while (ran < quantum) {
    const u32 at = w.pc;
    const Inst &I = code[at];
    current = &I;
    if (!w.vm.empty() || !w.lgkm.empty()) check_pending(w, I);
    w.pc++;
    ran++;
    if (poison && I.flow >= Flow::SCALAR) track(w, I, 0);
    const u64 exec = w.exec();
    w.write_mask = exec;
    I.handler(w, I);
    if (poison && I.flow < Flow::SCALAR && I.flow != Flow::OWN) track(w, I, exec);
    if (w.state != State::RUNNING || w.pc == at) break;
  }
  executed += ran;
  if (w.state == State::AT_BARRIER) {
    park(w);
    w.group->arrived++;
    release_barrier(*w.group);
  } else if (w.state == State::RUNNING) {
    watch_for_deadlock(w, ran);
  }
}

void Machine::run() {
  dispatch();
  while (!alive.empty()) {
    if (runnable.empty()) report_deadlock();
    turn(*runnable[random.below(static_cast<u32>(runnable.size()))]);
    if (executed > options.budget)
      fail("budget", "more than %llu wave-instructions ran",
           static_cast<unsigned long long>(options.budget));
  }
  // The end of a kernel makes everything it wrote visible to the host.
  for (Device &device : devices) {
    for (auto &l2 : device.l2) l2->write_back();
    if (device.agent) device.agent->write_back();
  }
}

// ---- Deadlock ---------------------------------------------------------------------------------------

void Machine::watch_for_deadlock(Wave &w, u64 ran) {
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
  for (const Wave *other : runnable)
    if (other->stuck_at != progress) return;
  // Stores still on their way could wake somebody up: let them land first.
  for (Wave *other : alive)
    while (complete_one(*other)) {
    }
  if (w.stuck_at == progress) report_deadlock();
}

std::string Machine::describe(const Wave &w) const {
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

void Machine::report_deadlock() {
  current = nullptr;
  std::string text = "no wave can go on:";
  size_t shown = 0;
  for (const Wave *w : alive) {
    if (shown++ == 32) {
      text += "\n  ... and " + std::to_string(alive.size() - 32) + " more waves";
      break;
    }
    text += "\n  " + describe(*w);
  }
  for (const auto &launch : launches)
    if (launch->next < launch->total)
      text += "\n  " + std::to_string(launch->total - launch->next) +
              " workgroups have not started: no room until a resident one ends";
  throw Fault{"deadlock", text};
}

std::string Machine::where() const {
  if (!current || !current_wave) return "";
  char text[192];
  const Workgroup &g = *current_wave->group;
  std::snprintf(text, sizeof text, " [at {0x%x}, pc 0x%x, wave %u of workgroup (%u,%u,%u), device %u]",
                current->pc, current->pc, current_wave->index, g.id[0], g.id[1], g.id[2],
                g.cu->device);
  return text;
}
