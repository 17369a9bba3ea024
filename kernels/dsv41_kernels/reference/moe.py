"""Router, routed experts and shared expert (kernel specification, section B, mono numerics)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .codecs import dequantize_blocks, dequantize_mxfp4
from .scales import ScaleRule, dequantize_e4m3, quantize_e4m3, seam_code, vllm_code

CLAMP = 10.0
"""Limit of the gate from above and of the up projection on both sides."""

ROUTE_SCALE = 1.5


def route(x: Tensor, gate: Tensor, bias: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Pick experts: score = sqrt(softplus(logit)), top-k by score + bias, unbiased weights.

    Args:
        x: bf16 [T, H].
        gate: bf16 [E, H].
        bias: float32 [E], added for the choice alone.
        top_k: experts a token.

    Returns:
        (ids int64 [T, k], weights float32 [T, k] = score * 1.5 / max(sum of scores, 1e-20)).
    """
    logits = x.float() @ gate.float().t()
    score = torch.sqrt(F.softplus(logits, threshold=20.0))
    ids = torch.topk(score + bias, top_k, dim=-1).indices
    picked = score.gather(-1, ids)
    return ids, picked * ROUTE_SCALE / picked.sum(-1, keepdim=True).clamp(min=1e-20)


@dataclass(frozen=True)
class RoutedWeights:
    """MXFP4 experts, gate rows before up rows.

    Attributes:
        w13: uint8 [E, 2I, H/2]; s13: uint8 [E, 2I, H/32].
        w2: uint8 [E, H, I/2]; s2: uint8 [E, H, I/32].
    """

    w13: Tensor
    s13: Tensor
    w2: Tensor
    s2: Tensor


@dataclass(frozen=True)
class SharedWeights:
    """MXFP8 shared expert, 32 x 32 blocks, gate rows before up rows.

    Attributes:
        w13: float8_e4m3fn [2I, H]; s13: uint8 [2I/32, H/32].
        w2: float8_e4m3fn [H, I]; s2: uint8 [H/32, I/32].
    """

    w13: Tensor
    s13: Tensor
    w2: Tensor
    s2: Tensor


def _through_mxfp8(x: Tensor, rule: ScaleRule, compute: torch.dtype) -> Tensor:
    return dequantize_e4m3(*quantize_e4m3(x, rule), dtype=compute)


def routed_experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    experts: RoutedWeights,
    shared: Tensor | None = None,
    compute: torch.dtype = torch.float32,
) -> Tensor:
    """Sum of the picked experts in top-k order, rounded to bf16 at every addition.

    x and mid go through MXFP8 with the seam's scale rule; products accumulate in ``compute``.

    Args:
        x: bf16 [T, H].
        ids: int64 [T, k]; an id outside [0, E) adds nothing.
        weights: float32 [T, k].
        experts: MXFP4 weights.
        shared: bf16 [T, H] to add last, or None.
        compute: float32, or float64 to judge a tolerance.

    Returns:
        bf16 [T, H].
    """
    count = experts.w13.shape[0]
    inputs = _through_mxfp8(x, seam_code, compute)
    parts = x.new_zeros(*ids.shape, x.shape[-1])
    for expert in range(count):
        token, slot = torch.where(ids == expert)
        if token.numel() == 0:
            continue
        w13 = dequantize_mxfp4(experts.w13[expert], experts.s13[expert], compute)
        w2 = dequantize_mxfp4(experts.w2[expert], experts.s2[expert], compute)
        gate, up = (inputs[token] @ w13.t()).chunk(2, dim=-1)
        mid = (F.silu(gate.clamp(max=CLAMP)) * up.clamp(-CLAMP, CLAMP)).to(torch.bfloat16)
        value = _through_mxfp8(mid, seam_code, compute) @ w2.t()
        scaled = value * weights[token, slot].to(compute).unsqueeze(-1)
        parts[token, slot] = scaled.to(torch.bfloat16)
    total = parts[:, 0]
    for index in range(1, ids.shape[1]):
        total = total + parts[:, index]
    return total if shared is None else total + shared


def shared_expert(
    x: Tensor, weights: SharedWeights, compute: torch.dtype = torch.float32
) -> Tensor:
    """The shared expert: vLLM's MXFP8 rule; gate, up and silu rounded to bf16.

    Args:
        x: bf16 [T, H].
        weights: MXFP8 weights.
        compute: float32, or float64 to judge a tolerance.

    Returns:
        bf16 [T, H].
    """
    w13 = dequantize_blocks(weights.w13, weights.s13, compute)
    w2 = dequantize_blocks(weights.w2, weights.s2, compute)
    both = (_through_mxfp8(x, vllm_code, compute) @ w13.t()).to(torch.bfloat16)
    gate, up = both.chunk(2, dim=-1)
    mid = F.silu(gate) * up
    return (_through_mxfp8(mid, vllm_code, compute) @ w2.t()).to(torch.bfloat16)
