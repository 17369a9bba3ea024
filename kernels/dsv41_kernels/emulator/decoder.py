"""Turns a code object into instruction records for the C++ core.

The machine code is disassembled by LLVM's own objdump, so no encoding table of ours can disagree
with the assembler; this module only reads its text. The record layouts mirror `instruction.h`.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np

from .codeobject import CodeObject
from .faults import CodeObjectError, MissingToolError

OPERAND = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("reg", "<u2"),
        ("count", "u1"),
        ("sel", "u1"),
        ("pad", "<u2"),
        ("imm", "<u8"),
    ]
)
INSTRUCTION = np.dtype(
    [
        ("opcode", "<u4"),
        ("flags", "<u4"),
        ("pc", "<u4"),
        ("target", "<i4"),
        ("offset", "<i4"),
        ("offset1", "<i4"),
        ("simm", "<u4"),
        ("ndst", "u1"),
        ("nsrc", "u1"),
        ("clamp", "u1"),
        ("omod", "u1"),
        ("op_sel", "u1"),
        ("op_sel_hi", "u1"),
        ("neg_lo", "u1"),
        ("neg_hi", "u1"),
        ("dpp", "u1"),
        ("dpp_arg", "u1"),
        ("row_mask", "u1"),
        ("bank_mask", "u1"),
        ("bound_ctrl", "u1"),
        ("sdwa", "u1"),
        ("dst_sel", "u1"),
        ("dst_unused", "u1"),
        ("quad", "u1", 4),
        ("cbsz", "u1"),
        ("blgp", "u1"),
        ("abid", "u1"),
        ("bitop3", "u1"),
        ("pad", "u1", 4),
        ("dst", OPERAND, 2),
        ("src", OPERAND, 6),
    ]
)

# Operand kinds and flags, as in instruction.h.
NONE, VGPR, AGPR, SGPR, IMMEDIATE, OFF, SPECIAL = range(7)
NEGATE, ABSOLUTE, SIGN_EXTEND = 1, 2, 4
WHOLE = 6
FLAGS = {"sc0": 1, "sc1": 2, "nt": 4, "offen": 8, "idxen": 16, "gds": 32, "lds": 64}

_SPECIAL_SOURCES = {
    "src_scc": 0,
    "scc": 0,
    "src_vccz": 1,
    "vccz": 1,
    "src_execz": 2,
    "execz": 2,
    "src_shared_base": 3,
    "src_shared_limit": 4,
    "src_private_base": 5,
    "src_private_limit": 6,
}
_NAMED_SGPRS = {
    "vcc": (106, 2),
    "vcc_lo": (106, 1),
    "vcc_hi": (107, 1),
    "exec": (126, 2),
    "exec_lo": (126, 1),
    "exec_hi": (127, 1),
    "m0": (124, 1),
    "flat_scratch": (102, 2),
    "flat_scratch_lo": (102, 1),
    "flat_scratch_hi": (103, 1),
    "xnack_mask": (104, 2),
}
_SDWA_SELECT = {
    "BYTE_0": 0,
    "BYTE_1": 1,
    "BYTE_2": 2,
    "BYTE_3": 3,
    "WORD_0": 4,
    "WORD_1": 5,
    "DWORD": WHOLE,
}
_SDWA_UNUSED = {"UNUSED_PAD": 0, "UNUSED_SEXT": 1, "UNUSED_PRESERVE": 2}
_DPP = {
    "quad_perm": 1,
    "row_shl": 2,
    "row_shr": 3,
    "row_ror": 4,
    "wave_shl": 5,
    "wave_rol": 6,
    "wave_shr": 7,
    "wave_ror": 8,
    "row_mirror": 9,
    "row_half_mirror": 10,
    "row_bcast": 11,
    "row_newbcast": 13,
}

_LINE = re.compile(r"^\t(\S+)\s*(.*?)\s*// ([0-9A-F]+): ((?:[0-9A-F]{8} ?)+)")
_REGISTER = re.compile(r"^(v|a|s|ttmp)(?:(\d+)|\[(\d+):(\d+)\])$")
_HEX = re.compile(r"^-?0x[0-9a-f]+$")
_INTEGER = re.compile(r"^-?\d+$")
_FLOAT = re.compile(r"^(-?\d*\.\d+(e[-+]?\d+)?|inf|nan)$")
_SUFFIX = re.compile(r"_(e32|e64|dpp|sdwa|e64_dpp)$")
_NO_OPERANDS = (
    "s_nop s_waitcnt s_sleep s_setprio s_barrier s_endpgm s_sethalt s_trap s_sendmsg "
    "s_code_end s_icache s_dcache s_ttrace v_nop ds_nop s_incperf s_decperf"
).split()
_NO_SCALAR_RESULT = re.compile(r"^s_(cmp|bitcmp|setpc|setreg)")
_TWO_RESULTS = "v_add_co v_addc v_sub_co v_subb v_subrev_co v_div_scale v_mad_u64 v_mad_i64".split()

Operand = tuple[int, int, int, int, int, int, int]


@dataclass(frozen=True)
class Program:
    """Decoded instructions; `text[i]` is the disassembly of `records[i]`."""

    records: np.ndarray
    text: list[str]
    index_of: dict[int, int]
    """Instruction index by its offset from the image's base."""
    unsupported: dict[str, int]
    """Mnemonics the core does not know, with how often each occurs."""


def decode(code: CodeObject, opcodes: dict[str, int]) -> Program:
    """Decodes every instruction of `code`; unknown mnemonics get opcode 0, a fault when reached.

    Raises MissingToolError without llvm-objdump-22, CodeObjectError on text it cannot read.
    """
    objdump = shutil.which("llvm-objdump-22")
    if not objdump:
        raise MissingToolError("llvm-objdump-22 is not installed; run: apt-get install llvm-22")
    with tempfile.NamedTemporaryFile(suffix=".hsaco") as file:
        file.write(code.data)
        file.flush()
        listing = subprocess.run(
            [objdump, "-d", file.name], capture_output=True, text=True, check=True
        ).stdout
    rows = [
        (m.group(1), m.group(2), int(m.group(3), 16), [int(x, 16) for x in m.group(4).split()])
        for m in map(_LINE.match, listing.splitlines())
        if m
    ]
    index_of = {pc: i for i, (_, _, pc, _) in enumerate(rows)}
    records = np.zeros(len(rows), INSTRUCTION)
    unsupported: dict[str, int] = {}
    text = []
    for row, (mnemonic, operands, pc, encoding) in zip(records, rows, strict=True):
        text.append(f"{mnemonic} {operands}".strip())
        base = _SUFFIX.sub("", mnemonic)
        opcode = opcodes.get(base, 0)
        row["pc"] = pc
        row["opcode"] = opcode
        if not opcode:
            unsupported[base] = unsupported.get(base, 0) + 1
            continue
        try:
            fields = _decode_one(mnemonic, base, operands, pc, encoding, index_of)
        except (ValueError, KeyError, IndexError) as error:
            raise CodeObjectError(f"cannot decode {text[-1]!r} at {pc:#x}: {error}") from error
        for name, value in fields.items():
            if name in ("dst", "src"):
                for i, operand in enumerate(value):
                    row[name][i] = operand
            else:
                row[name] = value
    return Program(records, text, index_of, unsupported)


def _split(text: str, separator: str) -> list[str]:
    """Splits on `separator` outside brackets, dropping blanks."""
    parts, depth, current = [], 0, ""
    for char in text:
        depth += (char in "[(") - (char in "])")
        if char == separator and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    parts.append(current.strip())
    return [part for part in parts if part]


def _float_bits(value: float, kind: str) -> int:
    if kind == "f16":
        return int(np.float16(value).view(np.uint16))
    if kind == "f64":
        return int.from_bytes(struct.pack("<d", value), "little")
    return int.from_bytes(struct.pack("<f", value), "little")


def _operand(text: str, kind: str) -> Operand:
    """One operand; `kind` is how a literal is read: f16, f32, f64, i64 or u64."""
    flags = 0
    while True:
        if text.startswith("-") and not re.match(r"^-[\d.]", text):
            flags, text = flags ^ NEGATE, text[1:]
        elif text.startswith("|") and text.endswith("|"):
            flags, text = flags | ABSOLUTE, text[1:-1]
        elif text.startswith("neg("):
            flags, text = flags ^ NEGATE, text[4:-1]
        elif text.startswith("abs("):
            flags, text = flags | ABSOLUTE, text[4:-1]
        elif text.startswith("sext("):
            flags, text = flags | SIGN_EXTEND, text[5:-1]
        elif text.startswith("lit("):
            text = text[4:-1]
        else:
            break

    def immediate(value: int) -> Operand:
        return (IMMEDIATE, flags, 0, 1, WHOLE, 0, value & 0xFFFFFFFFFFFFFFFF)

    if match := _REGISTER.match(text):
        file, single, first, last = match.groups()
        low = int(single if single is not None else first)
        count = 1 if single is not None else int(last) - low + 1
        if file == "ttmp":
            return (SGPR, flags, 108 + low, count, WHOLE, 0, 0)
        return ({"v": VGPR, "a": AGPR, "s": SGPR}[file], flags, low, count, WHOLE, 0, 0)
    if text in _NAMED_SGPRS:
        return (SGPR, flags, *_NAMED_SGPRS[text], WHOLE, 0, 0)
    if text in _SPECIAL_SOURCES:
        return (SPECIAL, flags, _SPECIAL_SOURCES[text], 1, WHOLE, 0, 0)
    if text == "off":
        return (OFF, flags, 0, 0, WHOLE, 0, 0)
    if text == "null":
        return immediate(0)
    if _HEX.match(text):
        value = int(text, 16)
        if kind == "f64" and abs(value) <= 0xFFFFFFFF:
            value = (value & 0xFFFFFFFF) << 32
        elif kind == "i64" and 1 << 31 <= value < 1 << 32:
            value -= 1 << 32
        return immediate(value)
    if _INTEGER.match(text):
        return immediate(int(text))
    if _FLOAT.match(text):
        return immediate(_float_bits(float(text), kind))
    raise ValueError(f"operand {text!r}")


def _literal_kind(base: str) -> str:
    if "f64" in base:
        return "f64"
    half = base.endswith("_f16") and not base.startswith(
        ("v_cvt_f16_f32", "v_fma_mix", "v_cvt_f16_u16", "v_cvt_f16_i16", "v_mfma", "v_dot2")
    )
    if half or base.startswith(("v_cvt_f32_f16", "v_cvt_u16_f16", "v_cvt_i16_f16")):
        return "f16"
    if base.endswith("64"):
        return "i64" if base.endswith("i64") else "u64"
    return "f32"


def _modifier(fields: dict[str, Any], selects: dict[int, int], text: str, first: int) -> None:
    name, _, value = text.partition(":")
    if name in FLAGS:
        fields["flags"] = fields.get("flags", 0) | FLAGS[name]
    elif name == "clamp":
        fields["clamp"] = 1
    elif name == "mul":
        fields["omod"] = {"2": 1, "4": 2}[value]
    elif name == "div":
        fields["omod"] = 3
    elif name == "offset" and value.startswith("swizzle"):
        fields["offset"] = first & 0xFFFF
    elif name in ("offset", "offset0"):
        fields["offset"] = int(value, 0)
    elif name in ("offset1", "row_mask", "bank_mask", "cbsz", "blgp", "abid", "bitop3"):
        fields[name] = int(value, 0)
    elif name in _DPP:
        fields["dpp"] = _DPP[name]
        if name == "quad_perm":
            fields["quad"] = [int(x) for x in value.strip("[]").split(",")]
        elif name == "row_bcast":
            fields["dpp"] = 11 if value == "15" else 12
        elif value:
            fields["dpp_arg"] = int(value, 0)
    elif name == "bound_ctrl":
        fields["bound_ctrl"] = 1
    elif name == "dst_sel":
        fields["dst_sel"] = _SDWA_SELECT[value]
    elif name == "dst_unused":
        fields["dst_unused"] = _SDWA_UNUSED[value]
    elif name in ("src0_sel", "src1_sel"):
        selects[int(name[3])] = _SDWA_SELECT[value]
    elif name not in ("op_sel", "op_sel_hi", "neg_lo", "neg_hi"):  # taken from the encoding
        raise ValueError(f"modifier {text!r}")


def _encoded_selects(base: str, encoding: list[int]) -> dict[str, int]:
    """op_sel and neg bits of VOP3/VOP3P, straight from the encoding."""
    first = encoding[0]
    if base.startswith("v_mfma_scale"):
        # A leading v_mfma_ld_scale pair: the scale operands' op_sel sit in the first half.
        return {"op_sel": (first >> 11) & 3, "op_sel_hi": (encoding[1] >> 27) & 3}
    if base.startswith(("v_mfma", "v_smfmac", "v_accvgpr")):
        return {}
    if (first >> 23) == 0b110100111:
        return {
            "op_sel": (first >> 11) & 7,
            "op_sel_hi": (encoding[1] >> 27) & 3 | ((first >> 14) & 1) << 2,
            "neg_hi": (first >> 8) & 7,
            "neg_lo": (encoding[1] >> 29) & 7,
        }
    is_vop3 = (first >> 26) == 0b110100
    if is_vop3 and not base.startswith((*_TWO_RESULTS, "v_bitop3")):
        return {"op_sel": (first >> 11) & 15}
    return {}


def _result_count(base: str, operands: int, flags: int) -> int:
    """How many leading operands an instruction writes."""
    if base.startswith("s_"):
        return 0 if _NO_SCALAR_RESULT.match(base) else 1
    if base.startswith("v_"):
        return 2 if base.startswith(tuple(_TWO_RESULTS)) else 1
    if base.startswith("ds_"):
        return int(any(word in base for word in ("read", "_rtn_", "permute", "swizzle")))
    if base.startswith("buffer_"):
        return int("_load_" in base and not flags & FLAGS["lds"])
    if "load_lds" in base or "_store_" in base:
        return 0
    if "_atomic_" in base:
        return int(operands == (3 if base.startswith("flat") else 4))
    return 1


def _returned(base: str, data: Operand) -> Operand:
    """The result of a returning buffer atomic: its data registers, less what cmpswap compares."""
    registers = data[3] // 2 if "cmpswap" in base else data[3]
    return (*data[:3], registers, *data[4:])


def _decode_one(
    mnemonic: str, base: str, text: str, pc: int, encoding: list[int], index_of: dict[int, int]
) -> dict[str, Any]:
    first = encoding[0]
    fields: dict[str, Any] = {}
    if base.startswith("s_"):
        fields["simm"] = first & 0xFFFF
    if base.startswith(("s_branch", "s_cbranch")):
        jump = (first & 0xFFFF ^ 0x8000) - 0x8000
        fields["target"] = index_of.get(pc + 4 + 4 * jump, -1)
        return fields
    if base.startswith("s_getreg"):
        text = text.split(",")[0]  # the register's number is in simm
    elif base.startswith("s_setreg"):
        text = text.rsplit(",", 1)[1]
    elif base.startswith(tuple(_NO_OPERANDS)):
        return fields
    if base.startswith(("buffer_wb", "buffer_inv")):
        for word in text.split():
            _modifier(fields, {}, word, first)
        return fields

    tokens = _split(text, ",")
    modifiers: list[str] = []
    if tokens:
        words = _split(tokens[-1], " ")
        tokens[-1], modifiers = words[0], words[1:]
        if ":" in tokens[-1] and not _REGISTER.match(tokens[-1]):
            modifiers.insert(0, tokens.pop())
    selects: dict[int, int] = {}
    for modifier in modifiers:
        _modifier(fields, selects, modifier, first)
    if base.startswith("v_"):
        fields |= _encoded_selects(base, encoding)
    if base == "v_bitop3_b16":
        fields["op_sel"] = 0
    if mnemonic.endswith("dpp"):
        fields.setdefault("row_mask", 15)
        fields.setdefault("bank_mask", 15)
    if mnemonic.endswith("_sdwa"):
        fields["sdwa"] = 1
        fields.setdefault("dst_sel", WHOLE)

    kind = _literal_kind(base)
    operands = []
    for i, token in enumerate(tokens):
        this = kind
        if base.startswith("v_fma_mix") and i > 0:
            this = "f16" if fields.get("op_sel_hi", 0) >> (i - 1) & 1 else "f32"
        elif base == "v_ldexp_f16" and i == 2:
            this = "f32"
        operands.append(_operand(token, this))
    if base.startswith("s_cmpk") or base in (
        "s_movk_i32",
        "s_addk_i32",
        "s_mulk_i32",
        "s_cmovk_i32",
    ):
        operands[1] = (IMMEDIATE, 0, 0, 1, WHOLE, 0, first & 0xFFFF)
    count = _result_count(base, len(operands), fields.get("flags", 0))
    if base.startswith("flat_"):
        operands.append((OFF, 0, 0, 0, WHOLE, 0, 0))
    sources = operands[count:]
    for i, select in selects.items():
        sources[i] = (*sources[i][:4], select, *sources[i][5:])
    results = operands[:count]
    if base.startswith("buffer_atomic") and fields.get("flags", 0) & FLAGS["sc0"]:
        results = [_returned(base, operands[0])]
        count = 1
    fields["dst"], fields["src"] = results, sources
    fields["ndst"], fields["nsrc"] = count, len(sources)
    return fields
