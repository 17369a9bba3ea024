"""ctypes binding of the C++ core; the structures mirror `engine/api.h`."""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np

from . import build
from .decoder import INSTRUCTION

u32, u64 = ctypes.c_uint32, ctypes.c_uint64


class Launch(ctypes.Structure):
    _fields_ = [
        ("program", ctypes.c_void_p),
        ("kernarg", u64),
        ("kernarg_size", u32),
        ("entry", u32),
        ("grid", u32 * 3),
        ("block", u32 * 3),
        ("lds", u32),
        ("scratch", u32),
        ("vgprs", u32),
        ("agpr_base", u32),
        ("properties", u32),
        ("rsrc1", u32),
        ("rsrc2", u32),
        ("preload", u32),
        ("device", u32),
        ("groups_per_cu", u32),
    ]


class Range(ctypes.Structure):
    """Memory a kernel may touch; `written`, a byte a byte, is 0 where never written, 0xFF where it
    was; null: all was."""

    _fields_ = [
        ("base", u64),
        ("size", u64),
        ("written", ctypes.c_void_p),
        ("read_only", u32),
        ("uncached", u32),
    ]


class Options(ctypes.Structure):
    _fields_ = [
        ("seed", u64),
        ("budget", u64),
        ("quantum", u32),
        ("devices", u32),
        ("xccs", u32),
        ("cus_per_xcc", u32),
        ("lds_races", u32),
        ("poison", u32),
        ("threads", u32),
    ]


class Result(ctypes.Structure):
    _fields_ = [
        ("instructions", u64),
        ("kind", ctypes.c_char * 32),
        ("message", ctypes.c_char * 16384),
    ]


@cache
def load() -> ctypes.CDLL:
    """The core, built if need be. Raises MissingToolError if it cannot be built."""
    library = ctypes.CDLL(str(build.library()))
    library.emu_instruction_size.restype = u32
    library.emu_mnemonics.restype = ctypes.c_char_p
    library.emu_program.argtypes = [ctypes.c_void_p, u64, u64]
    library.emu_program.restype = ctypes.c_void_p
    library.emu_program_free.argtypes = [ctypes.c_void_p]
    library.emu_run.argtypes = [
        ctypes.POINTER(Launch),
        u32,
        ctypes.POINTER(Range),
        u32,
        ctypes.POINTER(Options),
        ctypes.POINTER(Result),
    ]
    if library.emu_instruction_size() != INSTRUCTION.itemsize:
        raise AssertionError("decoder.INSTRUCTION and instruction.h disagree")
    return library


@cache
def opcodes() -> dict[str, int]:
    """Opcode number by mnemonic (without an encoding suffix), for all the core models."""
    return {name: i for i, name in enumerate(load().emu_mnemonics().decode().split(), 1)}


class Program:
    """Instructions registered with the core, for an image at address `base`."""

    def __init__(self, records: np.ndarray, base: int) -> None:
        records = np.ascontiguousarray(records)
        self._library = load()
        self.handle = self._library.emu_program(records.ctypes.data, len(records), base)

    def __del__(self) -> None:
        self._library.emu_program_free(self.handle)
