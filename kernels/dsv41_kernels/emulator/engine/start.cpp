// Builds the machine and places workgroups on it.
#include <algorithm>
#include <cstdlib>

#include "machine.h"

Machine::Machine(const LaunchArgs *args, u32 count, const RangeArgs *range_args, u32 range_count,
                 const OptionArgs &chosen)
    : options(chosen), devices(chosen.devices), random(chosen.seed) {
  std::vector<Range> ranges;
  for (u32 i = 0; i < range_count; i++) {
    const RangeArgs &range = range_args[i];
    ranges.push_back({range.base, range.base + range.size, range.written, range.read_only != 0,
                      range.uncached != 0});
  }
  for (u32 i = 0; i < count; i++) {
    auto launch = std::make_unique<Launch>();
    launch->args = args[i];
    launch->program = static_cast<const Program *>(args[i].program);
    for (u32 x = 0; x < options.xccs; x++) launch->next.push_back(x);
    launch->total = static_cast<u64>(args[i].grid[0]) * args[i].grid[1] * args[i].grid[2];
    launch->resident.assign(static_cast<u64>(options.xccs) * options.cus_per_xcc, 0);
    std::memset(launch->packet, 0, sizeof launch->packet);
    auto *halves = reinterpret_cast<u16 *>(launch->packet);
    auto *words = reinterpret_cast<u32 *>(launch->packet);
    for (int k = 0; k < 3; k++) {
      halves[2 + k] = static_cast<u16>(args[i].block[k]);
      words[3 + k] = args[i].grid[k] * args[i].block[k];
    }
    launch->packet[5] = args[i].kernarg;
    const u64 packet = reinterpret_cast<u64>(launch->packet);
    ranges.push_back({packet, packet + sizeof launch->packet, nullptr, true, false});
    launches.push_back(std::move(launch));
  }
  const u32 shard_count = options.devices > 1 ? options.devices : options.xccs;
  for (u32 i = 0; i < shard_count; i++)
    shards.push_back(std::make_unique<Shard>(*this, i, ranges));
  for (u32 d = 0; d < options.devices; d++) {
    Device &device = devices[d];
    if (options.devices > 1) {
      Shard &shard = shard_of(d, 0);
      device.agent = std::make_unique<Cache>(8192, 16, nullptr, &shard.memory, &shard.progress);
    }
    const auto cache = [&](u32 xcc, u32 sets, u32 ways, Cache *below) {
      Shard &shard = shard_of(d, xcc);
      return std::make_unique<Cache>(sets, ways, below, &shard.memory, &shard.progress);
    };
    for (u32 x = 0; x < options.xccs; x++)
      device.l2.push_back(cache(x, 2048, 16, device.agent.get()));  // 4 MiB
    device.cus.resize(static_cast<u64>(options.xccs) * options.cus_per_xcc);
    for (u32 c = 0; c < device.cus.size(); c++) {
      ComputeUnit &cu = device.cus[c];
      cu.device = d;
      cu.xcc = c % options.xccs;
      cu.index = c / options.xccs;
      Cache *l2 = device.l2[cu.xcc].get();
      cu.l1 = cache(cu.xcc, 16, 16, l2);     // 32 KiB
      cu.scalar = cache(cu.xcc, 32, 4, l2);  // 16 KiB
      cu.path = {cu.l1.get(), cu.scalar.get(), l2, device.agent.get(),
                 &shard_of(d, cu.xcc).memory};
    }
  }
}

Shard::Shard(Machine &owner, u32 number, const std::vector<Range> &ranges)
    : machine(owner),
      options(owner.options),
      index(number),
      random(owner.options.seed + (static_cast<u64>(number + 1) << 40)),
      memory(ranges, number, &progress) {}

static void free_wave(Wave *w) {
  std::free(w->v);
  delete[] w->defined;
  delete[] w->origin;
  delete[] w->pending;
  delete w;
}

Shard::~Shard() {
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

Wave *Shard::new_wave(Workgroup &group, u32 index) {
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
  w->shard = this;
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

bool Shard::start_group(Launch &launch, u32 xcc) {
  Device &device = machine.devices[launch.args.device];
  const u64 id = launch.next[xcc];
  u32 best = xcc;  // the compute unit with the fewest workgroups
  for (u32 c = xcc; c < device.cus.size(); c += options.xccs)
    if (launch.resident[c] < launch.resident[best]) best = c;
  if (launch.resident[best] >= launch.args.groups_per_cu) return false;
  launch.resident[best]++;
  launch.next[xcc] += options.xccs;  // workgroups go to the dies in turn

  auto *g = new Workgroup;
  g->launch = &launch;
  g->cu = &device.cus[best];
  const u32 *grid = launch.args.grid;
  g->id[0] = static_cast<u32>(id % grid[0]);
  g->id[1] = static_cast<u32>(id / grid[0] % grid[1]);
  g->id[2] = static_cast<u32>(id / grid[0] / grid[1]);
  g->lds.assign(launch.args.lds, 0xa5);
  g->shadow.assign((launch.args.lds + 3) / 4, LdsShadow{});
  g->phase = 1;
  g->arrived = 0;
  const u32 threads = launch.args.block[0] * launch.args.block[1] * launch.args.block[2];
  g->alive = (threads + kLanes - 1) / kLanes;
  for (u32 i = 0; i < g->alive; i++) {
    Wave *w = new_wave(*g, i);
    g->waves.push_back(w);
    alive.push_back(w);
    make_runnable(*w);
  }
  progress++;
  return true;
}

void Shard::dispatch() {
  for (auto &launch : machine.launches)
    for (u32 x = 0; x < options.xccs; x++) {
      if (&machine.shard_of(launch->args.device, x) != this) continue;
      while (launch->next[x] < launch->total && start_group(*launch, x)) {
      }
    }
}
