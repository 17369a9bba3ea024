"""The mHC seam's call: what every implementation takes, returns and refuses.

The reference, the Triton kernel and the FlyDSL kernel share this module, so that one test list
covers them and one wrong argument gives one error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

STREAMS = 4
"""n: residual streams of the model."""

GATES = 24
"""Rows of ``fn``: 4 pre, 4 post, 16 comb (source stream major)."""

FORMS = ("post", "no_post", "identity_pre")
OUTPUTS = ("bf16", "fp8_grid", "mxfp8")
GROUP = 32
"""Values per E8M0 scale of the quantised outputs."""


@dataclass(frozen=True)
class MhcParams:
    """Numeric parameters of the seam; the defaults are those of the released model.

    Attributes:
        rms_eps: added to the mean square of R' before the gates' rsqrt.
        norm_eps: added to the mean square of x1 before the norm's rsqrt.
        pre_eps: added to the sigmoid of the next pre.
        sinkhorn_eps: added to the softmax and to every Sinkhorn sum.
        sinkhorn_iters: column normalisations (row normalisations are one fewer).
        post_mult: factor of the next post.
    """

    rms_eps: float = 1e-20
    norm_eps: float = 1e-20
    pre_eps: float = 1e-6
    sinkhorn_eps: float = 1e-6
    sinkhorn_iters: int = 20
    post_mult: float = 2.0

    def __post_init__(self) -> None:
        if self.sinkhorn_iters < 1:
            raise ValueError(f"sinkhorn_iters must be at least 1, not {self.sinkhorn_iters}")


RELEASED = MhcParams()


class MhcOutputs(NamedTuple):
    """What a seam returns (T tokens, H hidden).

    Attributes:
        residual: bf16 [T, 4, H], R'. In the forms without post it is the tensor passed in.
        norm: bf16 [T, H], the sublayer's input.
        pre: float32 [T, 4], carried to the next seam.
        post: float32 [T, 4].
        comb: float32 [T, 4, 4], [source, destination].
        grid: bf16 [T, H], code times scale; only with ``out="fp8_grid"``.
        codes: float8_e4m3fn [T, H]; only with ``out="mxfp8"``.
        scales: uint8 E8M0 [T, H/32]; only with ``out="mxfp8"``.
    """

    residual: Tensor
    norm: Tensor
    pre: Tensor
    post: Tensor
    comb: Tensor
    grid: Tensor | None = None
    codes: Tensor | None = None
    scales: Tensor | None = None


def empty_outputs(R: Tensor, form: str, out: str) -> MhcOutputs:
    """Uninitialised outputs of a seam for a kernel to fill; without post, ``residual`` is R.

    Args:
        R: bf16 [T, 4, H].
        form: one of ``FORMS``.
        out: one of ``OUTPUTS``.
    """
    tokens, _, hidden = R.shape

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=R.device)

    outputs = MhcOutputs(
        residual=torch.empty_like(R) if form == "post" else R,
        norm=empty(tokens, hidden, dtype=torch.bfloat16),
        pre=empty(tokens, STREAMS),
        post=empty(tokens, STREAMS),
        comb=empty(tokens, STREAMS, STREAMS),
    )
    if out == "fp8_grid":
        outputs = outputs._replace(grid=empty(tokens, hidden, dtype=torch.bfloat16))
    if out == "mxfp8":
        outputs = outputs._replace(
            codes=empty(tokens, hidden, dtype=torch.float8_e4m3fn),
            scales=empty(tokens, hidden // GROUP, dtype=torch.uint8),
        )
    return outputs


def check_seam(
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
    form: str,
    out: str,
    h_multiple: int = GROUP,
) -> tuple[int, int]:
    """Refuse a wrong call before anything is launched.

    Args:
        R: bf16 [T, 4, H].
        y: bf16 [T, H], or None in the forms without post.
        pre: float32 [T, 4], or None with ``identity_pre``.
        post: float32 [T, 4], or None in the forms without post.
        comb: float32 [T, 4, 4], or None in the forms without post.
        fn: float32 [24, 4H].
        scale: float32 [3].
        base: float32 [24].
        norm_w: bf16 [H].
        form: one of ``FORMS``.
        out: one of ``OUTPUTS``.
        h_multiple: H must be a positive multiple of it (an implementation's own tile).

    Returns:
        (T, H).

    Raises:
        TypeError: an argument is not a tensor, or its dtype is wrong.
        ValueError: anything else: form, output, shape, stride, device, size.
    """
    if form not in FORMS:
        raise ValueError(f"form is one of {', '.join(FORMS)}, not {form!r}")
    if out not in OUTPUTS:
        raise ValueError(f"out is one of {', '.join(OUTPUTS)}, not {out!r}")
    if not isinstance(R, Tensor) or R.dim() != 3 or R.shape[1] != STREAMS:
        what = tuple(R.shape) if isinstance(R, Tensor) else type(R).__name__
        raise ValueError(f"R must be a tensor of shape [T, {STREAMS}, H], not {what}")
    tokens, _, hidden = R.shape
    if hidden == 0 or hidden % h_multiple:
        raise ValueError(f"H must be a positive multiple of {h_multiple}, not {hidden}")
    if tokens * STREAMS * hidden * 2 >= 2**31:
        limit = (2**31 - 1) // (STREAMS * hidden * 2)
        raise ValueError(
            f"R holds {tokens} tokens of {hidden}: 2 GiB or more, past 32-bit offsets; "
            f"split it into calls of at most {limit} tokens"
        )

    bf16, f32 = torch.bfloat16, torch.float32
    wanted: dict[str, tuple[object, torch.dtype, tuple[int, ...]]] = {
        "R": (R, bf16, (tokens, STREAMS, hidden)),
        "fn": (fn, f32, (GATES, STREAMS * hidden)),
        "scale": (scale, f32, (3,)),
        "base": (base, f32, (GATES,)),
        "norm_w": (norm_w, bf16, (hidden,)),
    }
    absent: dict[str, object] = {}
    mixing: dict[str, tuple[object, torch.dtype, tuple[int, ...]]] = {
        "y": (y, bf16, (tokens, hidden)),
        "post": (post, f32, (tokens, STREAMS)),
        "comb": (comb, f32, (tokens, STREAMS, STREAMS)),
    }
    if form == "post":
        wanted |= mixing
    else:
        absent |= {name: entry[0] for name, entry in mixing.items()}
    if form == "identity_pre":
        absent["pre"] = pre
    else:
        wanted["pre"] = (pre, f32, (tokens, STREAMS))

    for name, value in absent.items():
        if value is not None:
            raise ValueError(f"form {form!r} takes no {name}; pass None")
    for name, (value, dtype, shape) in wanted.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"form {form!r} needs the tensor {name}, not {type(value).__name__}")
        if value.dtype != dtype:
            raise TypeError(f"{name} must be {dtype}, not {value.dtype}")
        if tuple(value.shape) != shape:
            raise ValueError(f"{name} must have shape {list(shape)}, not {list(value.shape)}")
        if value.device != R.device:
            raise ValueError(f"{name} is on {value.device}, R on {R.device}; use one device")
        if not value.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous, not strided {value.stride()}; call .contiguous()"
            )
    return tokens, hidden
