"""Host side of the Hopper mega-mHC: checks, cached scratch, launch."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton import cdiv, knobs, next_power_of_2

from .. import kept
from ..configs import override
from ..kept import Packs
from ..reference.interface import (
    GATES,
    GROUP,
    RELEASED,
    MhcOutputs,
    MhcParams,
    check_seam,
    empty_outputs,
)
from .persistent_kernel import persistent_kernel
from .policy import FN_COLS, MhcConfig, choose
from .seam import PART_COLS, operand_layout
from .tile_kernel import tile_kernel


class _Scratch(NamedTuple):
    """Work space of one stream; the counters start at zero and are never reset.

    Attributes:
        part: float32 [blocks, NUM_KSPLIT, BLOCK_M, 32], partial gate projections.
        px: float32 [blocks, NUM_KSPLIT, BLOCK_M], partial sums of x1**2.
        counters: int64 [blocks], events and open hand-offs.
        flags: int32 [blocks, NUM_KSPLIT], which shares are handed off.
    """

    part: Tensor
    px: Tensor
    counters: Tensor
    flags: Tensor


_scratch: dict[tuple[torch.device, int, int, int], _Scratch] = {}
# Scratch that was outgrown: captured graphs may still hold its address.
_outgrown: list[_Scratch] = []


def pack_fn(fn: Tensor) -> Tensor:
    """fn as bf16 hi + lo, in the row order of the tensor cores' accumulator.

    Args:
        fn: float32 [24, 4H].

    Returns:
        bf16 [48, 4H]: rows 16w + r and 16w + 8 + r hold hi and lo of row 8w + r (r < 8), so that
        one thread's accumulators hold both and their sum crosses no lane.
    """
    hi = fn.to(torch.bfloat16)
    lo = (fn - hi.float()).to(torch.bfloat16)
    pair = torch.stack((hi.view(3, 8, -1), lo.view(3, 8, -1)), dim=1)
    return pair.reshape(2 * GATES, -1).contiguous()


_packed = Packs(pack_fn)


def _scratch_for(device: torch.device, blocks: int, config: MhcConfig) -> _Scratch:
    key = (device, kept.stream_handle(device), config.NUM_KSPLIT, config.BLOCK_M)
    with kept.LOCK:
        held = _scratch.get(key)
        if held is None or held.counters.shape[0] < blocks:
            kept.need_eager(device, "scratch")
            if held is not None:
                _outgrown.append(held)
            size, splits, tokens = next_power_of_2(blocks), config.NUM_KSPLIT, config.BLOCK_M
            held = _Scratch(
                part=torch.empty(size, splits, tokens, PART_COLS.value, device=device),
                px=torch.empty(size, splits, tokens, device=device),
                counters=torch.zeros(size, dtype=torch.int64, device=device),
                flags=torch.zeros(size, splits, dtype=torch.int32, device=device),
            )
            _scratch[key] = held
    return held


@functools.cache
def _sm_count(device: torch.device) -> int:
    """Multiprocessors of a device that the kernel runs on, else ValueError."""
    if knobs.runtime.interpret:
        return 132
    if device.type != "cuda" or torch.version.hip is not None:
        raise ValueError(f"the Triton mega_mhc needs a CUDA device of sm_90, R is on {device}")
    found = torch.cuda.get_device_properties(device)
    if (found.major, found.minor) != (9, 0):
        raise ValueError(f"the Triton mega_mhc runs on sm_90, not sm_{found.major}{found.minor}")
    return int(found.multi_processor_count)


def build_options(
    config: MhcConfig, hidden: int, form: str, out: str, sinkhorn_iters: int
) -> dict[str, Any]:
    """What tells one build of the kernel from another: its constants and the compiler's options."""
    return {
        "H": hidden, "BLOCK_M": config.BLOCK_M, "S": config.NUM_KSPLIT,
        "MIX": form == "post", "IDENTITY": form == "identity_pre", "OUT": out,
        "ITERS": sinkhorn_iters, "SPIN": config.SPIN, "WARPS": config.NUM_WARPS,
        "TOKENS": max(
            config.GATE_TOKENS, next_power_of_2(cdiv(config.BLOCK_M, config.NUM_KSPLIT))
        ),
        "num_warps": config.NUM_WARPS, "enable_fp_fusion": True,  # off by default from Triton 3.10
    }  # fmt: skip


@functools.cache
def boxes(config: MhcConfig, hidden: int) -> dict[str, tuple[list[int], Any]]:
    """Box and shared-memory layout of each matrix the persistent kernel's copy engine handles."""
    columns = hidden // config.NUM_KSPLIT
    tile = [config.BLOCK_M, columns], operand_layout(columns)
    return {"R": tile, "Y": tile, "R_OUT": tile, "FN": ([16, FN_COLS], operand_layout(FN_COLS))}


def _described(matrix: Tensor | None, box: tuple[list[int], Any]) -> Any:
    """A matrix [rows, columns] as the copy engine takes it; the interpreter takes it as it is."""
    if matrix is None or knobs.runtime.interpret:
        return matrix
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    rows = matrix.flatten(1)
    return TensorDescriptor(rows, list(rows.shape), list(rows.stride()), *box)


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
    """The delayed mHC seam in one launch on a Hopper GPU (kernel specification, section A).

    Work space (per stream and shape) and the packed ``fn`` are made by eager calls and kept, so a
    captured graph only replays the launch. Two streams may run it at once; one stream's calls must
    stay in order, as a stream does.

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
        TypeError, ValueError: a wrong argument, see ``interface.check_seam``; R or y that does not
            start at a multiple of 16 bytes; an unknown or impossible config; a device that is not
            sm_90.
        RuntimeError: a graph capture would need new work space or a new pack of ``fn``.
    """
    tokens, hidden = check_seam(
        R, y, pre, post, comb, fn, scale, base, norm_w, form=form, out=out, h_multiple=GROUP
    )
    for name, tensor in (("R", R), ("y", y)):
        if tensor is not None and tensor.data_ptr() % 16:
            raise ValueError(f"{name} must start at a multiple of 16 bytes: clone it")
    sm_count = _sm_count(R.device)
    chosen = choose(tokens, hidden, sm_count)
    if config is not None:
        chosen = override(chosen, config)
    chosen.check(hidden)

    outputs = empty_outputs(R, form, out)
    if tokens == 0:
        return outputs

    blocks = cdiv(tokens, chosen.BLOCK_M)
    packed = _packed(fn)
    scratch = _scratch_for(R.device, blocks, chosen)
    inputs = {"R": R, "Y": y, "FN": packed, "R_OUT": outputs.residual}
    if chosen.PERSISTENT:
        groups = min(blocks, max(1, sm_count // chosen.NUM_KSPLIT))
        inputs = {n: _described(inputs[n], box) for n, box in boxes(chosen, hidden).items()}
        launch, extra = persistent_kernel[(groups * chosen.NUM_KSPLIT,)], (groups,)
    else:
        launch, extra = tile_kernel[(blocks * chosen.NUM_KSPLIT,)], ()
    launch(
        inputs["R"], inputs["Y"], pre, post, comb, inputs["FN"], scale, base, norm_w,
        inputs["R_OUT"], outputs.norm, outputs.grid, outputs.codes, outputs.scales,
        outputs.pre, outputs.post, outputs.comb,
        scratch.part, scratch.px, scratch.counters, scratch.flags,
        tokens, *extra, params.rms_eps, params.norm_eps, params.pre_eps, params.sinkhorn_eps,
        params.post_mult,
        **build_options(chosen, hidden, form, out, params.sinkhorn_iters),
    )  # fmt: skip
    return outputs
