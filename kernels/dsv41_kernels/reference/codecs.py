"""MXFP4 and MXFP8 weight codecs (kernel specification, section B, "Weights").

Activations use ``scales.quantize_e4m3``; its inverse ``scales.dequantize_e4m3`` reads MXFP8 rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .scales import power_of_two

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of the eight e2m1 codes; bit 3 is the sign."""

_GROUP = 32


def encode_e2m1(x: Tensor) -> Tensor:
    """Nearest e2m1 code, ties to the even code, magnitudes above 6 saturated.

    Args:
        x: float32 or float64, any shape, finite.

    Returns:
        uint8 codes 0..15 of the same shape.
    """
    values = torch.tensor(E2M1_VALUES, dtype=torch.float64, device=x.device)
    between = (values[1:] + values[:-1]) / 2
    magnitude = x.double().abs()
    below = torch.searchsorted(between, magnitude, right=False)
    above = torch.searchsorted(between, magnitude, right=True)
    code = torch.where(below % 2 == 0, below, above)  # they differ on a tie alone
    return (code + 8 * torch.signbit(x)).to(torch.uint8)


def quantize_mxfp4(w: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise rows to MXFP4 with the OCP rule, scale = 2**(floor(log2(amax)) - 2).

    Args:
        w: float32 [..., K], K a multiple of 32.

    Returns:
        (packed uint8 [..., K/2], even K in the low nibble; scales uint8 E8M0 [..., K/32]).

    Raises:
        ValueError: K is not a multiple of 32.
    """
    if w.shape[-1] % _GROUP:
        raise ValueError(f"the last dimension, {w.shape[-1]}, is not a multiple of {_GROUP}")
    groups = w.float().reshape(*w.shape[:-1], w.shape[-1] // _GROUP, _GROUP)
    exponent = torch.frexp(groups.abs().amax(dim=-1)).exponent - 1
    code = (exponent - 2 + 127).clamp(0, 254)
    codes = encode_e2m1(groups.double() / power_of_two(code - 127).double().unsqueeze(-1))
    flat = codes.flatten(-2)
    return flat[..., 0::2] | (flat[..., 1::2] << 4), code.to(torch.uint8)


def dequantize_mxfp4(packed: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Inverse of ``quantize_mxfp4``; exact in float32.

    Args:
        packed: uint8 [..., K/2].
        scales: uint8 [..., K/32].
        dtype: type of the result.

    Returns:
        [..., K].
    """
    table = torch.tensor(E2M1_VALUES, dtype=torch.float64, device=packed.device)
    table = torch.cat((table, -table))
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
    groups = table[codes.long()].reshape(*scales.shape, _GROUP)
    factor = power_of_two(scales.int() - 127).double()
    return (groups * factor.unsqueeze(-1)).flatten(-2).to(dtype)


def dequantize_blocks(codes: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """e4m3 weights with one E8M0 scale a 32 x 32 block (shared expert, attention).

    Args:
        codes: float8_e4m3fn [N, K].
        scales: uint8 [N/32, K/32].
        dtype: type of the result.

    Returns:
        [N, K].
    """
    factor = power_of_two(scales.int() - 127).double()
    wide = factor.repeat_interleave(_GROUP, 0).repeat_interleave(_GROUP, 1)
    return (codes.double() * wide).to(dtype)
