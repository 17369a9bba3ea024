// Runs the machine in epochs, each shard's waves one random turn at a time.
//
// Within an epoch shards run side by side and memory stands still: what leaves a shard (stores,
// atomics and write-backs at a scope that reaches memory) is performed when the epoch ends, one
// shard after another. So a seed gives the same run on any number of host threads, and a wave that
// has waited for such a store knows that all others can see it.
#include <algorithm>
#include <atomic>
#include <thread>

#include "machine.h"

namespace {

constexpr u64 kWorthSharing = 8192;  // wave-instructions an epoch

// Threads that take shards through an epoch along with the caller, who waits for the shards and not
// for the threads: one that got no core in time has nothing left to do.
class Team {
 public:
  Team(std::vector<std::unique_ptr<Shard>> &shards, u32 helpers)
      : shards_(shards), count_(static_cast<u32>(shards.size())), next_(count_) {
    for (u32 i = 0; i < helpers; i++)
      threads_.emplace_back([this] {
        for (u32 seen = 0; !stop_; seen = epoch_) {
          take_shards();
          epoch_.wait(seen);
        }
      });
  }
  ~Team() {
    stop_ = true;
    epoch_++;
    epoch_.notify_all();
    for (std::thread &thread : threads_) thread.join();
  }
  void run_epoch() {
    done_ = 0;
    next_ = 0;
    epoch_++;
    epoch_.notify_all();
    take_shards();
    for (u32 done; (done = done_) < count_;) done_.wait(done);
  }

 private:
  void take_shards() {
    for (u32 i; (i = next_++) < count_;) {
      shards_[i]->run_epoch();
      if (++done_ == count_) done_.notify_all();
    }
  }

  std::vector<std::unique_ptr<Shard>> &shards_;
  const u32 count_;
  std::atomic<u32> next_, done_ = 0, epoch_ = 0;
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

void Machine::run() {
  for (auto &shard : shards) shard->dispatch();
  Team team(shards, std::min<u32>(options.threads, shards.size()) - 1);
  bool share = false;
  do {
    const u64 before = executed();
    if (share)
      team.run_epoch();
    else
      for (auto &shard : shards) shard->run_epoch();
    share = executed() - before > kWorthSharing;
  } while (end_epoch());
  // The end of a kernel makes everything it wrote visible to the host.
  for (Device &device : devices) {
    for (auto &l2 : device.l2) l2->write_back();
    if (device.agent) device.agent->write_back();
  }
  for (auto &shard : shards) shard->memory.settle();
}

u64 Machine::executed() const {
  u64 sum = 0;
  for (const auto &shard : shards) sum += shard->executed;
  return sum;
}

// Lets the shards see what the others did. False once all waves have ended.
bool Machine::end_epoch() {
  for (auto &shard : shards)
    if (shard->fault) throw *shard->fault;
  for (auto &shard : shards) shard->memory.settle();
  const u32 count = static_cast<u32>(shards.size()), first = random.below(count);
  for (u32 k = 0; k < count; k++) shards[(first + k) % count]->perform_deferred();

  bool changed = false, ended = true;
  for (auto &shard : shards) {
    changed |= shard->progress != shard->progress_before;
    ended &= shard->alive.empty();
  }
  if (ended) return false;
  if (changed)
    for (auto &shard : shards) shard->progress_before = ++shard->progress;
  else
    watch_for_deadlock();
  if (executed() > options.budget)
    throw Fault{"budget", "more than " + std::to_string(options.budget) + " wave-instructions ran"};
  return true;
}

void Shard::run_epoch() try {
  // The length varies so that shards meet in many ways; with nothing left to do but wait for other
  // shards it ends sooner.
  const u64 end = executed + (static_cast<u64>(options.quantum) << random.below(6));
  u64 noticed = progress;
  if (runnable.empty() && !alive.empty())
    complete_one(*alive[random.below(static_cast<u32>(alive.size()))]);
  for (u64 idle = 0; !runnable.empty() && executed < end && idle < 4 * runnable.size() + 4; idle++) {
    turn(*runnable[random.below(static_cast<u32>(runnable.size()))]);
    if (progress != noticed) idle = 0;
    noticed = progress;
  }
} catch (Fault &raised) {
  raised.text += where();
  fault = raised;
}

void Shard::perform_deferred() try {
  for (const auto &[w, access] : deferred) {
    perform(*w, *access);
    memory.settle();
  }
  deferred.clear();
} catch (Fault &raised) {
  raised.text += where();
  throw;
}

Access *Shard::new_access(Wave &w, const Inst &I) {
  if (free_accesses_.empty()) {
    all_accesses_.push_back(std::make_unique<Access>());
    free_accesses_.push_back(all_accesses_.back().get());
  }
  Access *access = free_accesses_.back();
  free_accesses_.pop_back();
  access->inst = &I;
  access->perform = nullptr;
  access->performed = access->deferred = access->scalar = access->flat = access->stores = false;
  access->cache_op = access->lds_dma = false;
  access->order = Order::FREE;
  access->scope = Scope::WAVE;
  access->size = 0;
  access->lanes = access->active = w.exec();
  access->poisoned = 0;
  access->low = access->high = 0;
  return access;
}

void Shard::make_runnable(Wave &w) {
  w.slot = static_cast<u32>(runnable.size());
  runnable.push_back(&w);
}

void Shard::park(Wave &w) {
  runnable.back()->slot = w.slot;
  runnable[w.slot] = runnable.back();
  runnable.pop_back();
}

void Shard::release_barrier(Workgroup &g) {
  if (!g.arrived || g.arrived != g.alive) return;
  g.arrived = 0;
  if (++g.phase == 0) {  // the counter wrapped: forget who touched what
    for (LdsShadow &h : g.shadow) h.write_phase = h.read_phase = 0;
    g.phase = 1;
  }
  progress++;
  for (Wave *w : g.waves) {
    if (w->state != State::AT_BARRIER) continue;
    w->state = State::RUNNING;
    make_runnable(*w);
  }
}

void Shard::finish(Wave &w) {
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
  launch.resident[g->cu - machine.devices[launch.args.device].cus.data()]--;
  delete g;
  dispatch();
}

// Lets a random wave's memory traffic make headway, whatever the wave itself is doing.
void Shard::complete_something(Wave &w) {
  if (random.one_in(8)) complete_one(w);
  if (random.one_in(16)) complete_one(*alive[random.below(static_cast<u32>(alive.size()))]);
}

void Shard::turn(Wave &w) {
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
    watch(w, ran);
  }
}
