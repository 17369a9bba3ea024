// Outstanding memory operations: when they perform, and what a wait guarantees.
//
// vmcnt retires vector memory operations in issue order, lgkmcnt retires LDS operations in issue
// order and scalar loads in none. What has not been waited for may perform at any moment and in
// any order that keeps a wave's own accesses to one address in order; the seed chooses.
#include <algorithm>

#include "machine.h"

namespace {

bool meet(const Access &a, const Access &b) { return a.low < b.high && b.low < a.high; }

bool may_perform(const std::vector<Access *> &queue, size_t i) {
  const Access &access = *queue[i];
  for (size_t j = 0; j < i; j++) {
    const Access &older = *queue[j];
    if (older.performed) continue;
    if (access.order == Order::FENCED || older.order == Order::FENCED) return false;
    if ((access.stores || older.stores) && meet(access, older)) return false;
  }
  return true;
}

bool is_lds(const Access &access) { return !access.scalar && !access.flat; }

// Performs an access, or has it performed when the epoch ends if other shards could see it.
void perform_or_defer(Wave &w, Access &access) {
  if (access.stores && w.group->cu->path.reaches_memory(access.scope)) {
    access.deferred = true;
    w.shard->deferred.push_back({&w, &access});
  } else {
    perform(w, access);
  }
}

// Performs one of queue[0, covered); false if none there can be now.
bool perform_any(Wave &w, std::vector<Access *> &queue, size_t covered, bool in_order) {
  if (!covered) return false;
  const size_t start = in_order ? 0 : w.shard->random.below(static_cast<u32>(covered));
  for (size_t k = 0; k < covered; k++) {
    const size_t i = (start + k) % covered;
    Access &access = *queue[i];
    if (access.performed) continue;
    if (in_order && access.deferred) return false;
    if (access.deferred || !(in_order || may_perform(queue, i))) continue;
    perform_or_defer(w, access);
    return true;
  }
  return false;
}

bool all_performed(const std::vector<Access *> &queue, size_t covered) {
  return std::all_of(queue.begin(), queue.begin() + covered, [](Access *a) { return a->performed; });
}

template <class F>
void each_result(Wave &w, const Inst &I, F f) {
  for (u32 i = 0; i < I.nwrite; i++) {
    const RegisterRange &range = I.write[i];
    for (u32 k = 0; k < range.count; k++) {
      if (range.kind == SGPR)
        f(w.s_pending[range.first + k]);
      else
        f(w.pending[range.first + k + (range.kind == AGPR ? w.agpr_base : 0)]);
    }
  }
}

void retire(Wave &w, Access *access, Counter counter) {
  access->unretired &= ~counter;
  if (access->unretired) return;
  if (access->lds_dma) lds_write_ends(w, *access);
  each_result(w, *access->inst, [](u8 &pending) { pending--; });
  w.shard->recycle(access);
}

void retire_prefix(Wave &w, std::vector<Access *> &queue, size_t covered, Counter counter) {
  for (size_t i = 0; i < covered; i++) retire(w, queue[i], counter);
  queue.erase(queue.begin(), queue.begin() + covered);
}

// Whether to let other waves run between two completions, long enough to act on seeing one only:
// another shard needs a few epochs, each some turns long.
bool interleave(Wave &w, bool stores) {
  Random &random = w.shard->random;
  if (!random.one_in(stores ? 2 : 8)) return false;
  w.hold = random.below(1u << (random.below(6) + (stores ? 4 : 2)));
  return true;
}

bool settle_vm(Wave &w, size_t left) {
  // Cache operations may or may not be counted: assume not, unless everything is waited for.
  size_t covered = w.vm.size();
  for (size_t kept = 0; left && covered; covered--)
    if (!w.vm[covered - 1]->cache_op && kept++ == left) break;
  if (!covered) return true;
  const bool stores =
      std::any_of(w.vm.begin(), w.vm.begin() + covered, [](Access *a) { return a->stores; });
  while (perform_any(w, w.vm, covered, false))
    if (interleave(w, stores)) return false;
  if (!all_performed(w.vm, covered)) return false;
  retire_prefix(w, w.vm, covered, VM);
  return true;
}

bool settle_lgkm(Wave &w, size_t left) {
  if (w.lgkm.size() <= left) return true;
  size_t covered = w.lgkm.size() - left;
  if (left) {
    // Scalar and flat operations may be the ones that have completed, so only LDS operations
    // that must have completed even then are certain.
    const size_t others = std::count_if(w.lgkm.begin(), w.lgkm.end(),
                                        [](Access *a) { return !is_lds(*a); });
    if (others) {
      covered = covered > others ? covered - others : 0;
      for (size_t i = 0; covered && i < w.lgkm.size();) {
        Access *access = w.lgkm[i];
        if (!is_lds(*access)) {
          i++;
          continue;
        }
        if (!access->performed) perform(w, *access);
        retire(w, access, LGKM);
        w.lgkm.erase(w.lgkm.begin() + i);
        covered--;
      }
      return true;
    }
  }
  while (perform_any(w, w.lgkm, covered, true)) {
  }
  if (!all_performed(w.lgkm, covered)) return false;
  retire_prefix(w, w.lgkm, covered, LGKM);
  return true;
}

std::string register_name(u8 kind, u32 number) {
  return (kind == VGPR ? "v" : kind == AGPR ? "a" : "s") + std::to_string(number);
}

[[noreturn]] void fail_pending(Wave &w, u8 kind, u32 number, bool writes) {
  for (auto *queue : {&w.vm, &w.lgkm}) {
    for (const Access *access : *queue) {
      const Inst &load = *access->inst;
      for (u32 i = 0; i < load.nwrite; i++) {
        const RegisterRange &range = load.write[i];
        if (range.kind != kind || number < range.first || number >= range.first + range.count)
          continue;
        fail("missing-wait", "%s %s before the load {0x%x} (pc 0x%x) was waited for (%s)",
             writes ? "overwrites" : "reads", register_name(kind, number).c_str(), load.pc,
             load.pc, queue == &w.vm ? "s_waitcnt vmcnt" : "s_waitcnt lgkmcnt");
      }
    }
  }
  fail("missing-wait", "uses %s before its load was waited for",
       register_name(kind, number).c_str());
}

void check_range(Wave &w, const RegisterRange &range, bool writes) {
  for (u32 k = 0; k < range.count; k++) {
    const u32 number = range.first + k;
    const bool pending = range.kind == SGPR
                             ? w.s_pending[number]
                             : w.pending[number + (range.kind == AGPR ? w.agpr_base : 0)];
    if (pending) fail_pending(w, range.kind, number, writes);
  }
}

}  // namespace

void perform(Wave &w, Access &access) {
  w.shard->current = access.inst;
  w.shard->current_wave = &w;
  access.performed = true;
  access.perform(w, access);
}

void issue(Wave &w, Access *access, u8 counters) {
  access->unretired = counters;
  each_result(w, *access->inst, [&](u8 &pending) {
    if (pending++) access->order = Order::FENCED;
  });
  if (counters & VM) w.vm.push_back(access);
  if (counters & LGKM) w.lgkm.push_back(access);
  if (access->performed) return;
  if (!is_lds(*access) || (counters & VM)) {
    if (!w.shard->random.one_in(4)) return;
    if (access->scalar || may_perform(w.vm, w.vm.size() - 1)) perform_or_defer(w, *access);
  }
}

bool wait_for(Wave &w, u32 vm_left, u32 lgkm_left) {
  return settle_lgkm(w, lgkm_left) && settle_vm(w, vm_left);
}

bool complete_one(Wave &w) {
  if (perform_any(w, w.vm, w.vm.size(), false)) return true;
  // LDS operations not waited for stay outstanding past a barrier: that is the hazard to show.
  if (w.state == State::AT_BARRIER) return false;
  return perform_any(w, w.lgkm, w.lgkm.size(), true);
}

void check_pending(Wave &w, const Inst &I) {
  for (u32 i = 0; i < I.nread; i++) check_range(w, I.read[i], false);
  if (I.traits & MEMORY) return;  // results of one counter arrive in order
  for (u32 i = 0; i < I.nwrite; i++) check_range(w, I.write[i], true);
}
