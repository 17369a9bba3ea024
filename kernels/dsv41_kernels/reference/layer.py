"""One whole decoder layer: seam, attention, seam, mixture of experts (single rank)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .attention import AttentionWeights, attention
from .interface import RELEASED, MhcParams
from .mhc import mhc_seam
from .moe import RoutedWeights, SharedWeights, route, routed_experts, shared_expert


@dataclass(frozen=True)
class SeamWeights:
    """fn float32 [24, 4H], scale float32 [3], base float32 [24], norm_w bf16 [H]."""

    fn: Tensor
    scale: Tensor
    base: Tensor
    norm_w: Tensor


@dataclass(frozen=True)
class LayerWeights:
    """Everything one layer reads; ``gate`` is bf16 [E, H], ``bias`` float32 [E]."""

    attention_seam: SeamWeights
    attention: AttentionWeights
    ffn_seam: SeamWeights
    gate: Tensor
    bias: Tensor
    routed: RoutedWeights
    shared: SharedWeights
    top_k: int
    compressed: bool


class LayerState(NamedTuple):
    """What passes from layer to layer.

    Attributes:
        residual: bf16 [T, 4, H], before the sublayer output ``y`` is mixed in.
        y: bf16 [T, H].
        pre: float32 [T, 4]; post: float32 [T, 4]; comb: float32 [T, 4, 4].
    """

    residual: Tensor
    y: Tensor
    pre: Tensor
    post: Tensor
    comb: Tensor


def decoder_layer(
    state: LayerState,
    positions: Tensor,
    compressed_keys: Sequence[Tensor],
    window_keys: Sequence[Tensor],
    weights: LayerWeights,
    *,
    params: MhcParams = RELEASED,
    compute: torch.dtype = torch.float32,
) -> tuple[LayerState, Tensor]:
    """Run one layer for a step of independent tokens.

    Args:
        state: from the layer before.
        positions: int64 [T].
        compressed_keys, window_keys: see ``attention.attention``.
        weights: the layer's weights.
        params: of both seams.
        compute: float32, or float64 accumulation throughout to judge a tolerance. What passes
            between the parts is rounded to its storage dtype in both.

    Returns:
        (the next state, the KV records uint8 [T, 584]).
    """

    def seam(before: LayerState, w: SeamWeights) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        out = mhc_seam(
            before.residual, before.y, before.pre, before.post, before.comb,
            w.fn, w.scale, w.base, w.norm_w, params=params, compute=compute,
        )  # fmt: skip
        return (
            out.residual,
            out.norm.to(torch.bfloat16),
            out.pre.float(),
            out.post.float(),
            out.comb.float(),
        )

    residual, norm, *carried = seam(state, weights.attention_seam)
    y, records = attention(
        norm, positions, compressed_keys, window_keys, weights.attention,
        compressed=weights.compressed, compute=compute,
    )  # fmt: skip
    residual, norm, *carried = seam(LayerState(residual, y, *carried), weights.ffn_seam)
    ids, route_weights = route(norm, weights.gate, weights.bias, weights.top_k)
    shared = shared_expert(norm, weights.shared, compute)
    y = routed_experts(norm, ids, route_weights, weights.routed, shared, compute)
    return LayerState(residual, y, *carried), records
