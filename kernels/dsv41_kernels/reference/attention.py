"""Latent attention of the standard layers and its KV record (kernel specification, section C)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .codecs import dequantize_blocks
from .mhc import rms_norm
from .scales import dequantize_e4m3, kv_code, quantize_e4m3, vllm_code

NOPE, ROPE = 448, 64
LATENT = NOPE + ROPE
KV_GROUP = 64
ROW_BYTES = NOPE + 2 * ROPE
SCALE_BYTES = 8
NORM_EPS = 1e-20


def pack_kv_block(latents: Tensor) -> Tensor:
    """One cache block: 576-byte rows (448 e4m3, 64 bf16), then 8 bytes of scales a token.

    Args:
        latents: bf16 [B, 512], normed and rotated.

    Returns:
        uint8 [B * 584]; a token's scales are 7 UE8M0 (groups of 64) and a zero pad byte.
    """
    codes, scales = quantize_e4m3(latents[:, :NOPE], kv_code, KV_GROUP)
    rope = latents[:, NOPE:].contiguous().view(torch.uint8)
    rows = torch.cat((codes.view(torch.uint8), rope), dim=1)
    pad = torch.zeros_like(scales[:, :1])
    return torch.cat((rows.flatten(), torch.cat((scales, pad), dim=1).flatten()))


def unpack_kv_block(block: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Inverse of ``pack_kv_block``: uint8 [B * 584] to [B, 512] in ``dtype``."""
    tokens = block.numel() // (ROW_BYTES + SCALE_BYTES)
    rows = block[: tokens * ROW_BYTES].view(tokens, ROW_BYTES)
    scales = block[tokens * ROW_BYTES :].view(tokens, SCALE_BYTES)[:, : NOPE // KV_GROUP]
    codes = rows[:, :NOPE].contiguous().view(torch.float8_e4m3fn)
    nope = dequantize_e4m3(codes, scales, dtype)
    rope = rows[:, NOPE:].contiguous().view(torch.bfloat16).to(dtype)
    return torch.cat((nope, rope), dim=1)


def rope_frequencies(compressed: bool) -> Tensor:
    """Angular frequencies of the 32 rotated pairs, float64.

    theta = 10000 for layers without compression; otherwise 160000 with YaRN (factor 16, original
    length 65536, ramp between 32 and 1 rotations, no attention scaling).
    """
    theta = 160000.0 if compressed else 10000.0
    base = theta ** (-torch.arange(0, ROPE, 2, dtype=torch.float64) / ROPE)
    if not compressed:
        return base

    def pair_of(rotations: float) -> float:
        return ROPE * math.log(65536 / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(pair_of(32)), 0), min(math.ceil(pair_of(1)), ROPE - 1)
    pairs = torch.arange(ROPE // 2, dtype=torch.float64)
    ramp = ((pairs - low) / max(high - low, 1e-3)).clamp(0, 1)
    return base / 16 * ramp + base * (1 - ramp)


def rotate(x: Tensor, positions: Tensor, compressed: bool, inverse: bool = False) -> Tensor:
    """GPT-J (interleaved) rotation of the last 64 of 512 dimensions.

    Args:
        x: [T, ..., 512], float32 or float64.
        positions: int64 [T].
        compressed: which frequencies, see ``rope_frequencies``.
        inverse: rotate back, as for the output: the latent is key and value in one.

    Returns:
        The same shape and dtype.
    """
    angle = positions.double()[:, None] * rope_frequencies(compressed)
    angle = angle.view(len(positions), *(1 for _ in x.shape[1:-1]), ROPE // 2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    if inverse:
        sin = -sin
    even, odd = x[..., NOPE::2], x[..., NOPE + 1 :: 2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    return torch.cat((x[..., :NOPE], turned), dim=-1)


def attend(
    q: Tensor, keys: Sequence[Tensor], sink: Tensor, compute: torch.dtype = torch.float32
) -> Tensor:
    """Softmax attention over each token's own keys, which are also its values.

    The scale is 512**-0.5, the softmax in base 2; a head's sink joins the denominator alone.

    Args:
        q: [T, heads, 512].
        keys: for each token [K_t, 512]: at most 512 compressed, then at most 128 window keys.
        sink: float32 [heads].
        compute: dtype of arithmetic and result.

    Returns:
        [T, heads, 512]; zero for a token without keys.
    """
    to_base2 = LATENT**-0.5 * math.log2(math.e)
    outputs = []
    for query, own in zip(q.to(compute), keys, strict=True):
        own = own.to(compute)
        scores = query @ own.t() * to_base2
        base = sink.to(compute) * math.log2(math.e)
        top = torch.maximum(scores.amax(-1), base) if len(own) else base
        weights = torch.exp2(scores - top[:, None])
        denominator = weights.sum(-1) + torch.exp2(base - top)
        outputs.append(weights @ own / denominator[:, None])
    return torch.stack(outputs)


@dataclass(frozen=True)
class AttentionWeights:
    """One rank's attention weights: e4m3 row-major with 32 x 32 E8M0 blocks, bf16 norms.

    Attributes:
        wqkv_a: [1280 + 512, H]; wq_b: [heads * 512, 1280]; wo_a: [groups * 1024, 4096];
        wo_b: [H, groups * 1024]; each a (codes, scales) pair.
        q_norm: bf16 [1280]; kv_norm: bf16 [512].
        sink: float32 [heads].
    """

    wqkv_a: tuple[Tensor, Tensor]
    wq_b: tuple[Tensor, Tensor]
    wo_a: tuple[Tensor, Tensor]
    wo_b: tuple[Tensor, Tensor]
    q_norm: Tensor
    kv_norm: Tensor
    sink: Tensor


def linear(x: Tensor, weight: tuple[Tensor, Tensor], compute: torch.dtype) -> Tensor:
    """x through vLLM's MXFP8 rule, times a block-scaled weight, rounded to bf16."""
    inputs = dequantize_e4m3(*quantize_e4m3(x, vllm_code), dtype=compute)
    return (inputs @ dequantize_blocks(*weight, dtype=compute).t()).to(torch.bfloat16)


def attention(
    x: Tensor,
    positions: Tensor,
    compressed_keys: Sequence[Tensor],
    window_keys: Sequence[Tensor],
    weights: AttentionWeights,
    *,
    compressed: bool,
    compute: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """One standard layer's attention for a step of independent tokens.

    Args:
        x: bf16 [T, H], the seam's norm.
        positions: int64 [T].
        compressed_keys: a token's selected compressed keys, [<= 512, 512] each.
        window_keys: a token's earlier window keys, [<= 127, 512] each; its own is added here.
        weights: this rank's weights.
        compressed: whether the layer's ratio is above 0 (RoPE frequencies).
        compute: float32, or float64 to judge a tolerance.

    Returns:
        (this rank's unreduced output bf16 [T, H], KV records uint8 [T, 584], each a block of one).
    """
    q_rank = weights.q_norm.shape[0]
    both = linear(x, weights.wqkv_a, compute)
    latent_q, latent_kv = both[:, :q_rank], both[:, q_rank:]
    normed = rms_norm(latent_q, weights.q_norm, NORM_EPS, compute).to(torch.bfloat16)
    q = linear(normed, weights.wq_b, compute).view(len(x), len(weights.sink), LATENT)
    q = rotate(q.to(compute), positions, compressed).to(torch.bfloat16)
    kv = rms_norm(latent_kv, weights.kv_norm, NORM_EPS, compute)
    kv = rotate(kv, positions, compressed).to(torch.bfloat16)
    records = torch.stack([pack_kv_block(row[None]) for row in kv])
    keys = [
        torch.cat((far.to(compute), near.to(compute), unpack_kv_block(own, compute)))
        for far, near, own in zip(compressed_keys, window_keys, records, strict=True)
    ]
    out = attend(q, keys, weights.sink, compute)
    out = rotate(out, positions, compressed, inverse=True).to(torch.bfloat16)
    codes, scales = weights.wo_a
    groups = codes.shape[0] // 1024
    grouped = out.reshape(len(x), groups, -1)
    lows = [
        linear(
            grouped[:, g],
            (codes[g * 1024 : (g + 1) * 1024], scales[g * 32 : (g + 1) * 32]),
            compute,
        )
        for g in range(groups)
    ]
    return linear(torch.cat(lows, dim=1), weights.wo_b, compute), records
