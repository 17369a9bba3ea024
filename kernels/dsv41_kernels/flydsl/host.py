"""Host side of the gfx950 mega-mHC: checks, packed fn, work space, launch."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import kept
from ..configs import override
from ..emulator import current
from ..kept import Packs
from ..reference.interface import (
    GROUP,
    RELEASED,
    STREAMS,
    MhcOutputs,
    MhcParams,
    check_seam,
    empty_outputs,
)
from .policy import BLOCK_TOKENS, CHUNK, MhcConfig, choose

ARCH = "gfx950"


class _Scratch(NamedTuple):
    """Work space of one stream.

    Attributes:
        exchange: float32, per token block the sums of every split and the norm's rstd.
        state: int32 [blocks], zero between launches (the last workgroup to leave resets it).
    """

    exchange: Tensor
    state: Tensor


_scratch: dict[tuple[torch.device, int], _Scratch] = {}
# Work space that was outgrown: captured graphs may still hold its address.
_outgrown: list[_Scratch] = []
_Variant = tuple[torch.device, int, str, str, MhcConfig]
"""Device, H, form, output and configuration: what a compiled kernel is good for."""

_compiled: dict[_Variant, Any] = {}


def pack_fn(fn: Tensor) -> Tensor:
    """fn as bf16 hi + lo, in the order in which the kernel's MFMAs take it.

    Args:
        fn: float32 [24, 4H], H a multiple of 32.

    Returns:
        bf16 [H/32, 4 (stream), 3 (part), 64 (lane), 8]. Lane ``n + 16 k`` of a part holds columns
        ``8k`` to ``8k + 7`` of its row n; the parts are rows 0-15 hi, rows 0-15 lo, and rows 16-23
        hi followed by the same lo.
    """
    hi = fn.to(torch.bfloat16)
    lo = (fn - hi.float()).to(torch.bfloat16)
    parts = torch.stack((hi[:16], lo[:16], torch.cat((hi[16:], lo[16:]))))
    hidden = fn.shape[1] // STREAMS
    by_lane = parts.view(3, 16, STREAMS, hidden // CHUNK, 4, 8).permute(3, 2, 0, 4, 1, 5)
    return by_lane.reshape(hidden // CHUNK, STREAMS, 3, 64, 8).contiguous()


_packed = Packs(pack_fn)


def _scratch_for(device: torch.device, blocks: int, floats: int) -> _Scratch:
    """Work space of the current stream for ``blocks`` token blocks of ``floats`` each."""
    key = (device, kept.stream_handle(device))
    with kept.LOCK:
        held = _scratch.get(key)
        need = blocks * floats
        if held is None or held.state.numel() < blocks or held.exchange.numel() < need:
            kept.need_eager(device, "work space")
            if held is not None:
                _outgrown.append(held)
                blocks = max(blocks, held.state.numel())
                need = max(need, held.exchange.numel())
            held = _Scratch(
                exchange=torch.empty(need, device=device),
                state=torch.zeros(blocks, dtype=torch.int32, device=device),
            )
            _scratch[key] = held
    return held


@functools.cache
def _gpu_cus(device: torch.device) -> int:
    properties = torch.cuda.get_device_properties(device)
    arch = getattr(properties, "gcnArchName", properties.name).split(":")[0]
    if arch != ARCH:
        raise ValueError(f"the FlyDSL mega_mhc is built for {ARCH}, {device} is {arch}")
    return int(properties.multi_processor_count)


def _cu_count(device: torch.device) -> int:
    """Compute units of a device that the kernel runs on, else ValueError."""
    if device.type == "cuda":
        return _gpu_cus(device)
    machine = current() if device.type == "cpu" else None
    if machine is None:
        raise ValueError(
            f"the FlyDSL mega_mhc needs a {ARCH} GPU, R is on {device}; "
            "CPU tensors run inside `with emulated(gfx950()):`"
        )
    return machine.chip.xccs * machine.chip.cus_per_xcc


def _require_compiler() -> None:
    if importlib.util.find_spec("flydsl") is None:
        raise RuntimeError("FlyDSL is not installed; run: pip install flydsl==0.5.0")
    # The variables and the order in which FlyDSL's compiler looks for ROCm.
    named = (os.environ.get(name) for name in ("ROCM_PATH", "ROCM_ROOT", "ROCM_HOME"))
    root = Path(next(filter(None, named), "/opt/rocm"))
    if not (root / "llvm" / "bin" / "ld.lld").exists():
        raise RuntimeError(
            f"FlyDSL links with {root}/llvm/bin/ld.lld, which does not exist; "
            "install ROCm's LLVM or set ROCM_PATH"
        )


def _launch(variant: _Variant, arguments: tuple[Any, ...]) -> None:
    """Launch a variant on the current stream, compiled at its first call on the device."""
    import flydsl.compiler as flyc
    import flydsl.expr as fx

    from .kernel import build

    device, *what = variant
    arguments = (*arguments, fx.Stream(kept.stream_handle(device)))
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        compiled = _compiled.get(variant)
        if compiled is not None:
            compiled(*arguments)
        else:
            kept.need_eager(device, "compiled kernel")
            # Compiling launches too. Calling the launcher itself would trace it every time.
            _compiled[variant] = flyc.compile(build(*what), *arguments)


def mega_mhc(
    R: Tensor,
    y: Tensor | None,
    pre: Tensor | None,
    post: Tensor | None,
    comb: Tensor | None,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    norm_w: Tensor,
    *,
    form: str = "post",
    out: str = "bf16",
    params: MhcParams = RELEASED,
    config: Mapping[str, Any] | None = None,
) -> MhcOutputs:
    """The delayed mHC seam in one launch on gfx950 (kernel specification, section A).

    Work space (per stream), the packed ``fn`` and the compiled kernel are made by eager calls and
    kept, so a captured graph only replays the launch. Two streams may run it at once; the calls of
    one stream, and the graphs captured on it, must run one after the other.

    Args:
        R: bf16 [T, 4, H], residual streams.
        y: bf16 [T, H], sublayer output (None without post).
        pre: float32 [T, 4], carried from the previous seam (None with identity_pre).
        post: float32 [T, 4] (None without post).
        comb: float32 [T, 4, 4], [source, destination] (None without post).
        fn: float32 [24, 4H], gate projection.
        scale: float32 [3].
        base: float32 [24].
        norm_w: bf16 [H].
        form: "post", "no_post" or "identity_pre".
        out: "bf16", "fp8_grid" or "mxfp8".
        params: epsilons and factors.
        config: keys of ``policy.MhcConfig`` that replace the policy's choice.

    Returns:
        MhcOutputs.

    Raises:
        TypeError, ValueError: a wrong argument, see ``interface.check_seam``; an unknown or
            impossible config; a device that is not gfx950.
        RuntimeError: FlyDSL or its linker is missing; a graph capture would need new work space,
            a new pack of ``fn`` or a compilation.
    """
    tokens, hidden = check_seam(
        R, y, pre, post, comb, fn, scale, base, norm_w, form=form, out=out, h_multiple=GROUP
    )
    chosen = choose(max(tokens, 1), hidden, out, _cu_count(R.device))
    if config is not None:
        chosen = override(chosen, config)
    chosen.check(hidden)
    variant = (R.device, hidden, form, out, replace(chosen, SPIN=0))  # SPIN is not compiled in
    if variant not in _compiled:
        _require_compiler()

    outputs = empty_outputs(R, form, out)
    if tokens == 0:
        return outputs

    from .kernel import exchange_floats

    blocks = -(-tokens // BLOCK_TOKENS)
    packed = _packed(fn)
    # What a variant does not use is never touched: any tensor of a fixed dtype will do.
    unused = norm_w
    scratch = _Scratch(unused, unused)
    if chosen.NUM_KSPLIT > 1:
        scratch = _scratch_for(R.device, blocks, exchange_floats(chosen.NUM_KSPLIT))
    quantized = outputs.grid if out == "fp8_grid" else outputs.codes
    if quantized is None:
        quantized = unused
    elif out == "mxfp8":
        quantized = quantized.view(torch.uint8)
    tensors = (
        *(R, y, pre, post, comb, packed, scale, base, norm_w),
        *(outputs.residual, outputs.norm, outputs.pre, outputs.post, outputs.comb),
        *(quantized, outputs.scales, scratch.exchange, scratch.state),
    )
    arguments = (
        *(unused if tensor is None else tensor.view(-1) for tensor in tensors),
        tokens,
        *(params.rms_eps, params.norm_eps, params.pre_eps, params.sinkhorn_eps),
        *(params.post_mult, params.sinkhorn_iters, chosen.SPIN),
    )
    _launch(variant, arguments)
    return outputs
