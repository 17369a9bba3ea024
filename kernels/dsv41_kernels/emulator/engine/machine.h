// The emulated machine: devices, compute units, workgroups, waves and their outstanding accesses.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api.h"
#include "fault.h"
#include "instruction.h"
#include "memory.h"
#include "random.h"
#include "types.h"

struct Machine;
struct Shard;
struct Wave;
struct Workgroup;

enum Counter : u8 { VM = 1, LGKM = 2 };
enum class Order : u8 {
  FREE,    // may complete before or after others of the wave, unless their addresses meet
  FENCED,  // completes after all issued before it and before all issued after it
};

// A memory operation a wave has issued. It *performs* (touches memory, fills registers) some time
// between issue and wait, and its results may be used once the wait has *retired* it.
struct Access {
  const Inst *inst;
  void (*perform)(Wave &, Access &);
  bool performed;
  bool deferred;  // will perform when the epoch ends
  bool scalar;   // scalar memory: returns out of order
  bool flat;     // counted by both counters
  bool stores;   // writes memory
  bool cache_op;  // buffer_inv or buffer_wbl2
  bool lds_dma;   // a load that goes to LDS; data[0] holds the LDS addresses
  Order order;
  u8 unretired;  // counters still to be waited for
  Scope scope;
  u8 size;       // bytes a lane
  u64 lanes;     // lanes that touch memory
  u64 active;    // lanes that were active at issue
  u64 poisoned;  // lanes whose store data was never written
  u64 low, high;  // all addresses lie in [low, high)
  u64 age;
  u64 address[kLanes];
  u32 data[4][kLanes];
  u8 in_range[kLanes];  // leading bytes the buffer descriptor lets through
};

enum class State : u8 { RUNNING, AT_BARRIER, ENDING, DONE };

struct Wave {
  // Vector registers, rows of 64 lanes: VGPRs, then AGPRs from row agpr_base.
  u32 *v;
  u64 *defined;  // per row: lanes that hold a written value
  u32 *origin;   // per row: pc that brought in a never-written value (kNever: never written)
  u8 *pending;   // per row: loads not yet waited for
  u32 rows, agpr_base;
  u32 s[136], s_defined[136];
  u8 s_pending[136];
  bool scc, scc_defined;
  u32 pc;    // index of the next instruction
  u32 mode;  // MODE register
  State state;
  u32 index;  // within its workgroup
  u32 slot;   // in Shard::runnable, if RUNNING or ENDING
  u32 hold;   // turns to sit out while its memory traffic is under way
  Workgroup *group;
  Shard *shard;
  const Program *program;
  std::vector<Access *> vm, lgkm;
  u64 write_mask;   // lanes the last vector write reached
  u64 dpp_defined;  // definedness of source 0 after DPP
  std::vector<u8> scratch, scratch_written;
  u64 last_load;  // address and pc of the latest load, for deadlock reports
  u32 last_load_pc;
  // State recurrence (see scheduler.cpp).
  u64 seen_progress, quiet, stuck_at;
  std::vector<u64> seen;

  u64 exec() const { return s[EXEC_REG] | static_cast<u64>(s[EXEC_REG + 1]) << 32; }
  void set_exec(u64 x) {
    s[EXEC_REG] = static_cast<u32>(x);
    s[EXEC_REG + 1] = x >> 32;
  }
  u64 vcc() const { return s[VCC_REG] | static_cast<u64>(s[VCC_REG + 1]) << 32; }
  u64 vcc_defined() const { return s_defined[VCC_REG] | static_cast<u64>(s_defined[VCC_REG + 1]) << 32; }
  u32 *row(const Operand &o, int k = 0) { return v + kLanes * row_index(o, k); }
  u32 row_index(const Operand &o, int k = 0) const {
    return o.reg + k + (o.kind == AGPR ? agpr_base : 0);
  }
};

constexpr u32 kNever = ~0u;
constexpr u32 kUnwrittenValue = 0x7fc0dead;  // a NaN as f32 and as bf16 pairs

// Per dword of LDS: bytes written, transfers in flight, and who touched it since the last barrier
// (the phase). Small on purpose: every LDS access reads and writes it.
struct LdsShadow {
  u16 write_phase, read_phase;
  u16 write_at, read_at;  // instruction index of the latest access
  u8 write_wave, read_wave;
  u8 write_bytes, read_bytes;  // masks of bytes touched in the phase
  u8 written;                  // mask of bytes that hold a value
  u8 in_flight;                // LDS-DMA transfers not yet waited for
};

struct ComputeUnit {
  std::unique_ptr<Cache> l1, scalar;
  Path path;
  u32 device, xcc, index;
};

struct Launch {
  LaunchArgs args;
  const Program *program;
  std::vector<u64> next;  // per die: the workgroup it starts next
  u64 total;
  std::vector<u32> resident;  // workgroups per compute unit of the device
  u64 packet[8];              // HSA dispatch packet
};

struct Workgroup {
  Launch *launch;
  ComputeUnit *cu;
  u32 id[3];
  std::vector<u8> lds;
  std::vector<LdsShadow> shadow;
  u16 phase;  // barriers passed, from 1
  std::vector<Wave *> waves;
  u32 alive, arrived;
};

struct Device {
  std::unique_ptr<Cache> agent;
  std::vector<std::unique_ptr<Cache>> l2;
  std::vector<ComputeUnit> cus;
};

// The part of the machine that one host thread runs at a time: a die, or a whole device where there
// are several. Within an epoch it changes nothing that another shard can see (see scheduler.cpp).
struct Shard {
  Machine &machine;
  const OptionArgs &options;
  u32 index;
  Random random;
  u64 progress = 1, progress_before = 0;  // counts everything a waiting wave could notice
  Memory memory;
  std::vector<Wave *> runnable, alive;
  std::vector<std::pair<Wave *, Access *>> deferred;  // performed when the epoch ends
  u64 executed = 0;  // wave-instructions
  const Inst *current = nullptr;
  Wave *current_wave = nullptr;
  std::optional<Fault> fault;

  Shard(Machine &machine, u32 index, const std::vector<Range> &ranges);
  ~Shard();
  void dispatch();
  void run_epoch();
  void perform_deferred();
  bool can_go_on() const;  // some wave is not known to be stuck
  bool land_everything();  // completes all outstanding accesses; whether anything changed
  std::string where() const;

  Access *new_access(Wave &w, const Inst &I);
  void recycle(Access *access) { free_accesses_.push_back(access); }

 private:
  bool start_group(Launch &launch, u32 xcc);
  Wave *new_wave(Workgroup &group, u32 index);
  void turn(Wave &w);
  void complete_something(Wave &w);
  void finish(Wave &w);
  void release_barrier(Workgroup &group);
  void park(Wave &w);
  void make_runnable(Wave &w);
  void watch(Wave &w, u64 ran);  // notes whether it spins for ever

  std::vector<Access *> free_accesses_;
  std::vector<Wave *> free_waves_;
  std::vector<std::unique_ptr<Access>> all_accesses_;
};

struct Machine {
  OptionArgs options;
  std::vector<std::unique_ptr<Launch>> launches;
  std::vector<std::unique_ptr<Shard>> shards;
  std::vector<Device> devices;
  Random random;

  Machine(const LaunchArgs *launches, u32 count, const RangeArgs *ranges, u32 range_count,
          const OptionArgs &options);
  void run();
  u64 executed() const;
  Shard &shard_of(u32 device, u32 xcc) { return *shards[devices.size() > 1 ? device : xcc]; }

 private:
  bool end_epoch();
  void watch_for_deadlock();
  [[noreturn]] void report_deadlock() const;
};

// wait.cpp
void issue(Wave &w, Access *access, u8 counters);  // queues it and marks its results pending
bool wait_for(Wave &w, u32 vm_left, u32 lgkm_left);  // false: not done yet, run others first
bool complete_one(Wave &w);                           // performs one outstanding access, if any
void perform(Wave &w, Access &access);
void check_pending(Wave &w, const Inst &I);
// lds.cpp
void lds_write_begins(Wave &w, const Access &access);   // an LDS-DMA was issued
void lds_write_ends(Wave &w, const Access &access);     // ... and has been waited for
void lds_deliver(Wave &w, const Inst &I, u32 address, const u8 *from, u32 size, bool defined);
// flow.cpp
void track(Wave &w, const Inst &I, u64 exec_before);
[[noreturn]] void fail_undefined(Wave &w, const Operand &o, int k, u64 lanes, const char *use);
void require_defined(Wave &w, const Operand &o, int count, u64 lanes, const char *use);
