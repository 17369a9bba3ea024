"""Reads AMDGPU code objects: loadable image, kernel descriptors, resource use, static residency.

Layout and field meanings: LLVM's "User Guide for AMDGPU Backend", sections "Kernel Descriptor"
and "Code Object V5 Metadata".
"""

from __future__ import annotations

import io
import re
import struct
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .faults import CodeObjectError

_EF_AMDGPU_MACH_GFX950 = 0x4F
_R_AMDGPU_RELATIVE64 = 13

# gfx950 (CDNA4 white paper and LLVM's AMDGPU subtarget): four SIMDs a CU, 512 unified vector
# registers a lane and SIMD in blocks of 8, 800 scalar registers a SIMD in blocks of 16, at most
# 8 waves a SIMD, 160 KiB of LDS a CU in blocks of 1280 bytes, at most 32 workgroups a CU.
SIMDS_PER_CU = 4
VGPRS_PER_SIMD = 512
VGPR_BLOCK = 8
SGPRS_PER_SIMD = 800
SGPR_BLOCK = 16
MAX_WAVES_PER_SIMD = 8
LDS_BYTES_PER_CU = 160 * 1024
LDS_BLOCK = 1280
MAX_WORKGROUPS_PER_CU = 32
WAVE_SIZE = 64


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


@dataclass(frozen=True)
class Residency:
    """How many waves and workgroups of one kernel fit a CU at once, from its static resources."""

    waves_per_simd: int
    workgroups_per_cu: int
    limiter: str
    """What sets the limit: `vgpr`, `sgpr`, `lds`, `waves`, or `workgroups`."""


@dataclass(frozen=True)
class Kernel:
    """One kernel of a code object; register counts are per lane (VGPR, AGPR) or per wave (SGPR)."""

    name: str
    vgpr: int
    """All vector registers allocated, accumulation registers included."""
    agpr: int
    sgpr: int
    lds: int
    """Static LDS in bytes."""
    scratch: int
    """Scratch (private segment) in bytes a lane."""
    vgpr_spills: int
    sgpr_spills: int
    max_workgroup: int
    """Largest flat workgroup size the kernel was compiled for."""
    entry: int
    """Offset of the first instruction from the image's base."""
    code_size: int
    kernarg_size: int
    rsrc1: int
    rsrc2: int
    rsrc3: int
    properties: int
    kernarg_preload: int
    args: tuple[dict[str, Any], ...] = field(repr=False)

    def residency(self, threads: int | None = None, dynamic_lds: int = 0) -> Residency:
        """Static residency on gfx950 for workgroups of `threads` (default: the compiled maximum).

        Raises ValueError if the workgroup cannot be resident at all.
        """
        threads = threads or self.max_workgroup
        waves = -(-threads // WAVE_SIZE)
        vgprs = max(_round_up(self.vgpr, VGPR_BLOCK), VGPR_BLOCK)
        sgprs = max(_round_up(self.sgpr, SGPR_BLOCK), SGPR_BLOCK)
        lds = _round_up(self.lds + dynamic_lds, LDS_BLOCK)
        per_simd = {
            "waves": MAX_WAVES_PER_SIMD,
            "vgpr": VGPRS_PER_SIMD // vgprs,
            "sgpr": SGPRS_PER_SIMD // sgprs,
        }
        # A workgroup's waves are dealt to the SIMDs in turn, so k workgroups need
        # ceil(k * waves / 4) wave slots on the fullest SIMD.
        groups = {what: slots * SIMDS_PER_CU // waves for what, slots in per_simd.items()}
        if lds:
            groups["lds"] = LDS_BYTES_PER_CU // lds
        groups["workgroups"] = MAX_WORKGROUPS_PER_CU
        limiter = min(groups, key=lambda what: groups[what])
        count = groups[limiter]
        if count < 1:
            raise ValueError(
                f"{self.name}: a workgroup of {threads} threads with {self.vgpr} VGPRs, "
                f"{self.sgpr} SGPRs and {self.lds + dynamic_lds} bytes of LDS does not fit a CU "
                f"({limiter}); use fewer threads, registers or LDS"
            )
        return Residency(-(-count * waves // SIMDS_PER_CU), count, limiter)


class CodeObject:
    """A parsed gfx950 code object; raises CodeObjectError if it is not one."""

    def __init__(self, data: bytes) -> None:
        from elftools.elf.elffile import ELFFile

        start = data.find(b"\x7fELF")
        if start < 0:
            raise CodeObjectError("not an ELF file: no gfx950 code object was found")
        self.data = data[start:]
        try:
            self._elf = ELFFile(io.BytesIO(self.data))
        except Exception as error:  # pyelftools raises several kinds
            raise CodeObjectError(f"unreadable ELF file: {error}") from error
        if self._elf["e_machine"] != "EM_AMDGPU":
            raise CodeObjectError(f"ELF machine is {self._elf['e_machine']}, need EM_AMDGPU")
        mach = self._elf["e_flags"] & 0xFF
        if mach != _EF_AMDGPU_MACH_GFX950:
            raise CodeObjectError(
                f"code object is for machine {mach:#x}, need gfx950 (0x4f): set ARCH=gfx950"
            )

    @cached_property
    def _symbols(self) -> dict[str, tuple[int, int]]:
        table: Any = self._elf.get_section_by_name(".dynsym")
        return {s.name: (s["st_value"], s["st_size"]) for s in table.iter_symbols()}

    @cached_property
    def image_size(self) -> int:
        """Bytes the loaded image spans."""
        return int(max(s["p_vaddr"] + s["p_memsz"] for s in self._loads()))

    def _loads(self) -> list[Any]:
        return [s for s in self._elf.iter_segments() if s["p_type"] == "PT_LOAD"]

    def image(self, base: int) -> bytearray:
        """The image as it lies in memory when loaded at address `base`."""
        image = bytearray(self.image_size)
        for segment in self._loads():
            data = segment.data()
            image[segment["p_vaddr"] : segment["p_vaddr"] + len(data)] = data
        relocations: Any = self._elf.get_section_by_name(".rela.dyn")
        for entry in relocations.iter_relocations() if relocations else ():
            if entry["r_info_type"] != _R_AMDGPU_RELATIVE64:
                raise CodeObjectError(f"relocation type {entry['r_info_type']} is not handled")
            struct.pack_into("<Q", image, entry["r_offset"], base + entry["r_addend"])
        return image

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The AMDGPU metadata note, decoded."""
        import msgpack

        segment: Any
        for segment in self._elf.iter_segments():
            if segment["p_type"] != "PT_NOTE":
                continue
            for note in segment.iter_notes():
                if note["n_name"] == "AMDGPU":
                    raw = note["n_desc"]
                    raw = raw if isinstance(raw, bytes) else raw.encode("latin1")
                    found: dict[str, Any] = msgpack.unpackb(raw, strict_map_key=False)
                    return found
        raise CodeObjectError("code object has no AMDGPU metadata note")

    @cached_property
    def kernels(self) -> dict[str, Kernel]:
        """Kernels by name."""
        image = self.image(0)
        found = {}
        for meta in self.metadata["amdhsa.kernels"]:
            name = meta[".name"]
            at = self._symbols[meta.get(".symbol", name + ".kd")][0]
            lds, scratch, kernarg_size, _, entry = struct.unpack_from("<IIIIq", image, at)
            rsrc3, rsrc1, rsrc2, properties, preload = struct.unpack_from("<IIIHH", image, at + 44)
            found[name] = Kernel(
                name=name,
                vgpr=meta[".vgpr_count"],
                agpr=meta.get(".agpr_count", 0),
                sgpr=meta[".sgpr_count"],
                lds=lds,
                scratch=scratch,
                vgpr_spills=meta.get(".vgpr_spill_count", 0),
                sgpr_spills=meta.get(".sgpr_spill_count", 0),
                max_workgroup=meta[".max_flat_workgroup_size"],
                entry=at + entry,
                code_size=self._symbols[name][1],
                kernarg_size=kernarg_size,
                rsrc1=rsrc1,
                rsrc2=rsrc2,
                rsrc3=rsrc3,
                properties=properties,
                kernarg_preload=preload,
                args=tuple(meta.get(".args", ())),
            )
        return found


_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)


def from_mlir(text: str) -> list[CodeObject]:
    """Every gfx950 code object embedded as a string in lowered MLIR (`gpu.binary` objects)."""
    found = []
    for match in _STRING.finditer(text):
        if "\\7FELF" in match.group(1):
            found.append(CodeObject(_unescape(match.group(1))))
    return found


def _unescape(text: str) -> bytes:
    out = bytearray()
    position = 0
    while position < len(text):
        char = text[position]
        if char != "\\":
            out += char.encode()
            position += 1
        elif text[position + 1] in '\\"':
            out += text[position + 1].encode()
            position += 2
        else:
            out.append(int(text[position + 1 : position + 3], 16))
            position += 3
    return bytes(out)
