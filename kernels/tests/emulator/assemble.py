"""Assembles small gfx950 programs into code objects the emulator can launch."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from dsv41_kernels.emulator import LoadedModule

_TEMPLATE = """
.amdgcn_target "amdgcn-amd-amdhsa--gfx950"
.text
.globl kernel
.p2align 8
.type kernel,@function
kernel:
{body}
.Lkernel_end:
.size kernel, .Lkernel_end-kernel
.rodata
.p2align 6
.amdhsa_kernel kernel
  .amdhsa_next_free_vgpr 256
  .amdhsa_accum_offset 128
  .amdhsa_next_free_sgpr 100
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_group_segment_fixed_size {lds}
  .amdhsa_private_segment_fixed_size {scratch}
  .amdhsa_enable_private_segment {has_scratch}
  .amdhsa_kernarg_size {kernarg}
  .amdhsa_float_denorm_mode_32 3
.end_amdhsa_kernel
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.target: amdgcn-amd-amdhsa--gfx950
amdhsa.kernels:
  - .name: kernel
    .symbol: kernel.kd
    .kernarg_segment_size: {kernarg}
    .kernarg_segment_align: 8
    .group_segment_fixed_size: {lds}
    .private_segment_fixed_size: {scratch}
    .wavefront_size: 64
    .vgpr_count: 256
    .agpr_count: 128
    .sgpr_count: 100
    .max_flat_workgroup_size: 512
    .args:
{args}
...
.end_amdgpu_metadata
"""


@cache
def assemble(body: str, arguments: int = 2, lds: int = 0, scratch: int = 0) -> LoadedModule:
    """A module whose one kernel, `kernel`, is `body`.

    Its 64-bit arguments start at s[0:1], the workgroup number is in s2 and the thread number in
    v0. AGPRs a0 to a127 follow VGPRs v0 to v127.
    """
    args = "\n".join(
        f"      - {{.offset: {8 * i}, .size: 8, .value_kind: by_value}}" for i in range(arguments)
    )
    text = _TEMPLATE.format(
        body=body,
        lds=lds,
        scratch=scratch,
        has_scratch=int(scratch > 0),
        kernarg=8 * arguments,
        args=args if args else "      []",
    )
    with TemporaryDirectory() as folder:
        source, obj, out = (Path(folder, name) for name in ("k.s", "k.o", "k.hsaco"))
        source.write_text(text)
        target = ["-triple=amdgcn-amd-amdhsa", "-mcpu=gfx950", "-filetype=obj"]
        done = subprocess.run(
            ["llvm-mc-22", *target, str(source), "-o", str(obj)], capture_output=True, text=True
        )
        if done.returncode:
            raise AssertionError(f"assembly failed:\n{done.stderr}")
        subprocess.run(["ld.lld-22", "-shared", str(obj), "-o", str(out)], check=True)
        return LoadedModule(out.read_bytes())
