// The instruction record as decoded in Python (decoder.py holds the same layout) and what the
// engine adds to it.
#pragma once
#include <string>
#include <vector>

#include "types.h"

enum OperandKind : u8 { NO_OPERAND, VGPR, AGPR, SGPR, IMMEDIATE, OFF, SPECIAL };
enum OperandFlag : u8 { NEGATE = 1, ABSOLUTE = 2, SIGN_EXTEND = 4 };
enum SpecialSource : u16 {
  SRC_SCC, SRC_VCCZ, SRC_EXECZ, SRC_SHARED_BASE, SRC_SHARED_LIMIT, SRC_PRIVATE_BASE,
  SRC_PRIVATE_LIMIT,
};
enum InstructionFlag : u32 { SC0 = 1, SC1 = 2, NT = 4, OFFEN = 8, IDXEN = 16, GDS = 32, LDS = 64 };
enum DppControl : u8 {
  DPP_NONE, DPP_QUAD, DPP_ROW_SHL, DPP_ROW_SHR, DPP_ROW_ROR, DPP_WAVE_SHL, DPP_WAVE_ROL,
  DPP_WAVE_SHR, DPP_WAVE_ROR, DPP_MIRROR, DPP_HALF_MIRROR, DPP_BCAST15, DPP_BCAST31, DPP_NEWBCAST,
};
constexpr u8 kWholeDword = 6;  // SDWA select
enum { VCC_REG = 106, M0_REG = 124, EXEC_REG = 126 };

#pragma pack(push, 1)
struct Operand {
  u8 kind, flags;
  u16 reg;
  u8 count, sel;
  u16 pad;
  u64 imm;
};
struct Record {
  u32 opcode, flags, pc;
  i32 target, offset, offset1;
  u32 simm;
  u8 ndst, nsrc, clamp, omod, op_sel, op_sel_hi, neg_lo, neg_hi;
  u8 dpp, dpp_arg, row_mask, bank_mask, bound_ctrl, sdwa, dst_sel, dst_unused;
  u8 quad[4], cbsz, blgp, abid, bitop3, pad[4];
  Operand dst[2], src[6];
};
#pragma pack(pop)

struct Wave;
struct Inst;
using Handler = void (*)(Wave &, const Inst &);

// How an instruction carries "never written" from its sources to its results.
enum class Flow : u8 {
  OWN,      // the handler does it, or there is nothing to do
  VECTOR,   // lane by lane, from every source to every vector result
  SELECT,   // v_cndmask: only the chosen source counts
  COMPARE,  // lane by lane into the bits of a scalar pair
  SCALAR,   // all or nothing
  BITWISE,  // bit by bit
  AND,      // as BITWISE, but a known zero decides the bit; likewise the next three
  AND_NOT,
  OR,
  OR_NOT,
};
enum Trait : u8 {
  READS_DST = 1,  // the old result is a source (fmac, dot2c)
  READS_SCC = 2,
  WRITES_SCC = 4,
  WRITES_EXEC = 8,  // besides its operands
  READS_VCC = 16,   // besides its operands
  MEMORY = 32,      // results arrive at a wait
};

struct Opcode {
  std::string name;
  Handler handler;
  Flow flow;
  u8 traits;
};
std::vector<Opcode> &opcodes();  // unsorted until the first program is made

struct RegisterOpcode {
  RegisterOpcode(const char *name, Flow flow, int traits, Handler handler) {
    opcodes().push_back({name, handler, flow, static_cast<u8>(traits)});
  }
};

// OPCODE(name, flow, traits) { body using w (the wave) and I (the instruction) }
#define OPCODE(name, flow, traits)                                                  \
  static void op_##name(Wave &w, const Inst &I);                                    \
  static const RegisterOpcode register_##name(#name, Flow::flow, traits, op_##name); \
  static void op_##name([[maybe_unused]] Wave &w, [[maybe_unused]] const Inst &I)

struct RegisterRange {
  u8 kind;
  u8 count;
  u16 first;
};

struct Inst : Record {
  Handler handler = nullptr;
  Flow flow = Flow::OWN;
  u8 traits = 0;
  u8 nread = 0, nwrite = 0;
  RegisterRange read[8], write[3];
};

struct Program {
  u64 base = 0;
  std::vector<Inst> code;
  u32 vgprs = 0, agprs = 0;  // highest register used, plus one
};
