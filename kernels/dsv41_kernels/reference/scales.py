"""The five E8M0 scale rules in use around DeepSeek-V4.1-Flash, and the values they quantise.

Each rule maps the largest magnitude of a group to an E8M0 code ``c`` (scale ``2**(c - 127)``).
They differ in rounding and at the edges, so a kernel must follow the one of its own use, bit for
bit. The kernel specification (section A, "Scale rules") lists them; ``kernels/README.md`` repeats
the table. All arithmetic is IEEE float32 with subnormals kept.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

E4M3_MAX = 448.0
"""Largest finite ``float8_e4m3fn`` magnitude."""

_FLT_MIN = torch.finfo(torch.float32).tiny
# A one-element tensor keeps 1/448 rounded to float32; a Python float would be applied as float64.
_INV_448 = torch.tensor(1.0 / 448.0, dtype=torch.float32)


def _bits(v: Tensor) -> Tensor:
    if v.dtype != torch.float32:
        raise TypeError(f"a scale rule takes float32 group maxima, not {v.dtype}")
    return v.contiguous().view(torch.int32)


def ceil2_code(a: Tensor) -> Tensor:
    """Biased exponent of the smallest power of two that is >= ``a``, at least 0.

    Args:
        a: float32, any shape, non-negative and finite. Subnormals are exact: code 0 stands for
            2**-127, so everything in [0, 2**-127] gives 0 and (2**-127, 2**-126] gives 1.

    Returns:
        int32 codes of the same shape; 0 for 0.
    """
    bits = _bits(a)
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    normal = exponent + (mantissa != 0).int()
    subnormal = (mantissa > 0x400000).int()
    return torch.where(exponent > 0, normal, subnormal)


def seam_code(v: Tensor) -> Tensor:
    """Seam outputs, routed-expert ``x`` and ``mid``: groups of 32.

    ``ceil2(max(v, 1e-10) * fl(1/448))`` clamped to [1, 254]; a zero group gives 85.

    Args:
        v: float32 group maxima of magnitude, any shape.

    Returns:
        uint8 codes of the same shape.
    """
    floor = torch.tensor(1e-10, dtype=torch.float32, device=v.device)
    scaled = torch.maximum(v, floor) * _INV_448.to(v.device)
    return ceil2_code(scaled).clamp(1, 254).to(torch.uint8)


def vllm_code(v: Tensor) -> Tensor:
    """vLLM's ``mxfp8_e4m3_quantize`` (attention and shared-expert activations): groups of 32.

    ``ceil2(RN(max(v, FLT_MIN) / 448))`` clamped to [0, 254]; a zero group gives 0.

    Args:
        v: float32 group maxima of magnitude, any shape.

    Returns:
        uint8 codes of the same shape.
    """
    quotient = v.clamp(min=_FLT_MIN) / torch.tensor(E4M3_MAX, device=v.device)
    return ceil2_code(quotient).clamp(0, 254).to(torch.uint8)


def megamoe_mid_code(v: Tensor) -> Tensor:
    """MegaMoE stage-1 ``mid``: groups of 32.

    ``max(0, ((bits + 0x400000) >> 23) - 8)``: the power of two nearest to ``v``, over 256.

    Args:
        v: float32 group maxima of magnitude, any shape.

    Returns:
        uint8 codes of the same shape.
    """
    return (((_bits(v) + 0x400000) >> 23) - 8).clamp(min=0).to(torch.uint8)


def megamoe_peer_code(v: Tensor) -> Tensor:
    """MegaMoE peer FP8 rows: groups of 32.

    ``ceil2(v * fl(1/448))``; 0 for a zero group.

    Args:
        v: float32 group maxima of magnitude, any shape.

    Returns:
        uint8 codes of the same shape.
    """
    return ceil2_code(v * _INV_448.to(v.device)).clamp(0, 254).to(torch.uint8)


def kv_code(v: Tensor) -> Tensor:
    """KV record, groups of 64: ``ceil2(max(v, 1e-4) / 448)``.

    Args:
        v: float32 group maxima of magnitude, any shape.

    Returns:
        uint8 codes of the same shape.
    """
    floor = torch.tensor(1e-4, dtype=torch.float32, device=v.device)
    quotient = torch.maximum(v, floor) / torch.tensor(E4M3_MAX, device=v.device)
    return ceil2_code(quotient).clamp(0, 254).to(torch.uint8)


def power_of_two(exponent: Tensor) -> Tensor:
    """2**exponent in float32, exact on every device (a GPU's exp2 is not).

    Args:
        exponent: int32, any shape, -149 to 127.

    Returns:
        float32 of the same shape; subnormal below -126.
    """
    normal = (exponent + 127) << 23
    subnormal = torch.ones_like(exponent) << (exponent + 149).clamp(0, 22)
    return torch.where(exponent >= -126, normal, subnormal).view(torch.float32)


ScaleRule = Callable[[Tensor], Tensor]


def quantize_e4m3(x: Tensor, rule: ScaleRule, group: int = 32) -> tuple[Tensor, Tensor]:
    """Quantise groups along the last dimension to e4m3 with one E8M0 scale each.

    A value is ``x * 2**(127 - code)``, clamped to +-448 and rounded to nearest even. A group that
    holds inf or NaN is unspecified; it never changes another group.

    Args:
        x: bf16 or float32 [..., K], K a multiple of ``group``.
        rule: one of the rules of this module.
        group: values per scale.

    Returns:
        (codes float8_e4m3fn [..., K], scales uint8 [..., K/group]).

    Raises:
        ValueError: K is not a multiple of ``group``.
    """
    if x.shape[-1] % group:
        raise ValueError(f"the last dimension, {x.shape[-1]}, is not a multiple of {group}")
    groups = x.float().reshape(*x.shape[:-1], x.shape[-1] // group, group)
    scales = rule(groups.abs().amax(dim=-1))
    factor = power_of_two(127 - scales.int())
    scaled = (groups * factor.unsqueeze(-1)).clamp(-E4M3_MAX, E4M3_MAX)
    return scaled.flatten(-2).to(torch.float8_e4m3fn), scales


def dequantize_e4m3(codes: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """``code * 2**(scale - 127)`` per group.

    Args:
        codes: float8_e4m3fn [..., K].
        scales: uint8 E8M0 [..., K/group]; the group size follows from the shapes.
        dtype: type of the result.

    Returns:
        [..., K] in ``dtype``.
    """
    group = codes.shape[-1] // scales.shape[-1]
    values = codes.to(torch.float64).reshape(*scales.shape, group)
    factor = power_of_two(scales.int() - 127).double()
    return (values * factor.unsqueeze(-1)).flatten(-2).to(dtype)
