"""The manifold-constrained hyper-connection (mHC) seam in torch.

Formulas: kernel specification, section A. One function serves as the storage-dtype definition
(float32 arithmetic, bf16 where a kernel must round) and, with ``compute=torch.float64``, as the
value against which tolerances are judged.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .interface import RELEASED, STREAMS, MhcOutputs, MhcParams, check_seam
from .scales import dequantize_e4m3, quantize_e4m3, seam_code


def post_mix(R: Tensor, y: Tensor, post: Tensor, comb: Tensor, compute: torch.dtype) -> Tensor:
    """R'_j = bf16(post_j * y + sum_h comb[h][j] * R_h).

    Args:
        R: bf16 [T, 4, H].
        y: bf16 [T, H].
        post: float32 [T, 4].
        comb: float32 [T, 4, 4], [source, destination].
        compute: dtype of the arithmetic.

    Returns:
        bf16 [T, 4, H].
    """
    mixed = torch.einsum("thj,thk->tjk", comb.to(compute), R.to(compute))
    return (post.to(compute).unsqueeze(-1) * y.to(compute).unsqueeze(1) + mixed).to(torch.bfloat16)


def collapse(R: Tensor, pre: Tensor, compute: torch.dtype) -> Tensor:
    """x1 = bf16(sum_j pre_j * R_j): [T, 4, H] and [T, 4] to bf16 [T, H]."""
    return (pre.to(compute).unsqueeze(-1) * R.to(compute)).sum(dim=1).to(torch.bfloat16)


def sinkhorn(logits: Tensor, eps: float, iters: int) -> Tensor:
    """Sinkhorn-Knopp from a row softmax.

    ``softmax + eps``, one column normalisation, then ``iters - 1`` times rows and columns, each
    division by (sum + eps).

    Args:
        logits: [T, 4, 4], [source, destination], float32 or float64.
        eps: added to the softmax and to every sum.
        iters: column normalisations.

    Returns:
        [T, 4, 4] in the dtype of ``logits``.
    """
    comb = torch.softmax(logits, dim=-1) + eps
    comb = comb / (comb.sum(dim=-2, keepdim=True) + eps)
    for _ in range(iters - 1):
        comb = comb / (comb.sum(dim=-1, keepdim=True) + eps)
        comb = comb / (comb.sum(dim=-2, keepdim=True) + eps)
    return comb


def gates(
    R: Tensor,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    params: MhcParams,
    compute: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gate projection: the next pre, post and comb from the mixed residual.

    Args:
        R: bf16 [T, 4, H] (R').
        fn: float32 [24, 4H].
        scale: float32 [3].
        base: float32 [24].
        params: epsilons and factors.
        compute: dtype of the arithmetic and of the result.

    Returns:
        (pre [T, 4], post [T, 4], comb [T, 4, 4]).
    """
    flat = R.flatten(1).to(compute)
    rstd = torch.rsqrt(flat.square().mean(dim=-1, keepdim=True) + params.rms_eps)
    m = (flat @ fn.to(compute).t()) * rstd
    s, b = scale.to(compute), base.to(compute)
    pre = torch.sigmoid(m[:, 0:4] * s[0] + b[0:4]) + params.pre_eps
    post = params.post_mult * torch.sigmoid(m[:, 4:8] * s[1] + b[4:8])
    logits = (m[:, 8:24] * s[2] + b[8:24]).view(-1, STREAMS, STREAMS)
    return pre, post, sinkhorn(logits, params.sinkhorn_eps, params.sinkhorn_iters)


def rms_norm(x: Tensor, weight: Tensor, eps: float, compute: torch.dtype) -> Tensor:
    """x * rsqrt(mean(x**2) + eps) * weight over the last dimension, in ``compute``, unrounded."""
    wide = x.to(compute)
    rstd = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return wide * rstd * weight.to(compute)


def mhc_seam(
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
    order: Literal["delayed", "unshifted"] = "delayed",
    compute: torch.dtype = torch.float32,
) -> MhcOutputs:
    """One mHC seam (kernel specification A, steps 1 to 6).

    ``order="delayed"`` is V4.1's: x1 collapses R' with the carried ``pre`` and the new pre goes to
    the next seam. ``order="unshifted"`` is V4's: x1 collapses with the pre of this seam; there
    ``pre`` is not read and must be None, as in ``form="identity_pre"``.

    Args:
        R, y, pre, post, comb, fn, scale, base, norm_w: see ``interface.check_seam``.
        form: "post" mixes y in; "no_post" leaves R as it is; "identity_pre" is the first seam of
            the model: no post, and pre = (1, 0, 0, 0).
        out: "bf16", "fp8_grid" or "mxfp8".
        params: epsilons and factors.
        order: see above.
        compute: float32 is the definition. float64 keeps the roundings of R' and x1, which are
            part of the definition, and leaves the gates and the norm unrounded in float64.

    Returns:
        MhcOutputs; gates and norm are float64 when ``compute`` is.

    Raises:
        TypeError, ValueError: see ``interface.check_seam``.
    """
    carried = pre
    if order == "unshifted":
        if pre is not None:
            raise ValueError("the unshifted seam takes no pre; pass None")
        if form == "identity_pre":
            raise ValueError("the unshifted seam computes its own pre; identity_pre has no meaning")
        carried = R.new_empty(R.shape[0], STREAMS, dtype=torch.float32)
    check_seam(R, y, carried, post, comb, fn, scale, base, norm_w, form=form, out=out)

    residual = R
    if form == "post":
        assert y is not None and post is not None and comb is not None  # check_seam's promise
        residual = post_mix(R, y, post, comb, compute)
    next_pre, next_post, next_comb = gates(residual, fn, scale, base, params, compute)
    if form == "identity_pre":
        x1 = residual[:, 0]
    elif order == "unshifted":
        x1 = collapse(residual, next_pre, compute)
    else:
        assert pre is not None
        x1 = collapse(residual, pre, compute)
    norm = rms_norm(x1, norm_w, params.norm_eps, compute)
    rounded = norm.to(torch.bfloat16)
    outputs = MhcOutputs(
        residual=residual,
        norm=rounded if compute == torch.float32 else norm,
        pre=next_pre,
        post=next_post,
        comb=next_comb,
    )
    return with_quantized(outputs, rounded, out)


def with_quantized(outputs: MhcOutputs, norm: Tensor, out: str) -> MhcOutputs:
    """Add the outputs that ``out`` asks for, quantised from the bf16 ``norm`` [T, H].

    This is also the bit-exact check of a kernel: apply it to the kernel's own norm.
    """
    if out == "bf16":
        return outputs
    codes, scales = quantize_e4m3(norm, seam_code)
    if out == "fp8_grid":
        return outputs._replace(grid=dequantize_e4m3(codes, scales, torch.bfloat16))
    return outputs._replace(codes=codes, scales=scales)
