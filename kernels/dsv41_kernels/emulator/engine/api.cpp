// The C interface: opcode names, programs, and one call that runs launches to completion.
#include "api.h"

#include <algorithm>

#include "machine.h"

std::vector<Opcode> &opcodes() {
  static std::vector<Opcode> all;
  return all;
}

namespace {

const std::vector<Opcode> &sorted_opcodes() {
  static const bool sorted = [] {
    std::sort(opcodes().begin(), opcodes().end(),
              [](const Opcode &a, const Opcode &b) { return a.name < b.name; });
    return true;
  }();
  (void)sorted;
  return opcodes();
}

void unsupported(Wave &, const Inst &) {
  fail("unsupported", "this instruction is not modelled");
}

bool is_register(const Operand &o) { return o.kind == VGPR || o.kind == AGPR || o.kind == SGPR; }
RegisterRange range_of(const Operand &o) { return {o.kind, o.count, o.reg}; }

Inst prepare(const Record &record) {
  Inst inst;
  static_cast<Record &>(inst) = record;
  inst.handler = unsupported;
  if (!record.opcode) return inst;
  const Opcode &opcode = sorted_opcodes()[record.opcode - 1];
  inst.handler = opcode.handler;
  inst.flow = opcode.flow;
  inst.traits = opcode.traits;
  for (u32 i = 0; i < inst.nsrc; i++)
    if (is_register(inst.src[i])) inst.read[inst.nread++] = range_of(inst.src[i]);
  for (u32 i = 0; i < inst.ndst; i++)
    if (is_register(inst.dst[i])) inst.write[inst.nwrite++] = range_of(inst.dst[i]);
  if (inst.traits & READS_DST) inst.read[inst.nread++] = range_of(inst.dst[0]);
  if (inst.traits & READS_VCC) inst.read[inst.nread++] = {SGPR, 2, VCC_REG};
  // The DPP network and the destination selects are modelled for 32-bit operands only.
  const bool wide = (inst.ndst && inst.dst[0].count > 1 && inst.dst[0].kind != SGPR) ||
                    (inst.nsrc && inst.src[0].count > 1);
  if (inst.dpp && wide) inst.handler = unsupported;
  return inst;
}

}  // namespace

extern "C" {

u32 emu_instruction_size() { return sizeof(Record); }

const char *emu_mnemonics() {
  static const std::string names = [] {
    std::string all;
    for (const Opcode &opcode : sorted_opcodes()) all += opcode.name + "\n";
    return all;
  }();
  return names.c_str();
}

void *emu_program(const Record *records, u64 count, u64 base) {
  auto *program = new Program;
  program->base = base;
  for (u64 i = 0; i < count; i++) {
    program->code.push_back(prepare(records[i]));
    const auto see = [&](const Operand &o) {
      const u32 end = o.reg + o.count;
      if (o.kind == VGPR) program->vgprs = std::max(program->vgprs, end);
      if (o.kind == AGPR) program->agprs = std::max(program->agprs, end);
    };
    for (const Operand &o : records[i].dst) see(o);
    for (const Operand &o : records[i].src) see(o);
  }
  Inst end{};  // running off the end
  end.handler = [](Wave &, const Inst &) { fail("invalid", "execution ran past the last instruction"); };
  end.pc = count ? records[count - 1].pc + 4 : 0;
  program->code.push_back(end);
  return program;
}

void emu_program_free(void *program) { delete static_cast<Program *>(program); }

void emu_run(const LaunchArgs *launches, u32 count, const RangeArgs *ranges, u32 range_count,
             const OptionArgs *options, ResultArgs *result) {
  result->kind[0] = result->message[0] = 0;
  Machine machine(launches, count, ranges, range_count, *options);
  try {
    machine.run();
  } catch (const Fault &fault) {
    std::snprintf(result->kind, sizeof result->kind, "%s", fault.kind.c_str());
    std::snprintf(result->message, sizeof result->message, "%s", fault.text.c_str());
  }
  result->instructions = machine.executed();
}

}  // extern "C"
