"""Inputs and tolerances shared by the tests of every mHC implementation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dsv41_kernels.reference.interface import GATES, RELEASED, STREAMS, MhcOutputs, MhcParams
from dsv41_kernels.reference.mhc import mhc_seam, post_mix, with_quantized


def seam_inputs(
    tokens: int, hidden: int, form: str = "post", *, seed: int = 0, device: str = "cpu"
) -> dict[str, Any]:
    """Arguments of one seam at the magnitudes of a running model, by name."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int, std: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=g) * std

    comb = torch.rand((tokens, STREAMS, STREAMS), generator=g) + 0.05
    comb = comb / comb.sum(-1, keepdim=True)
    mixing = form == "post"
    arguments: dict[str, Any] = {
        "R": normal(tokens, STREAMS, hidden).bfloat16(),
        "y": normal(tokens, hidden).bfloat16() if mixing else None,
        "pre": torch.rand((tokens, STREAMS), generator=g) if form != "identity_pre" else None,
        "post": 2 * torch.rand((tokens, STREAMS), generator=g) if mixing else None,
        "comb": comb if mixing else None,
        "fn": normal(GATES, STREAMS * hidden, std=(STREAMS * hidden) ** -0.5),
        "scale": torch.tensor([0.7, 1.3, 0.9]),
        "base": normal(GATES, std=0.5),
        "norm_w": (1 + normal(hidden, std=0.2)).bfloat16(),
    }
    return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in arguments.items()}


GATES_NEAR = (1e-3, 5e-4)
TOLERANCES = {
    "residual": (1.6e-2, 1e-5), "norm": (1e-2, 2e-2),
    "pre": GATES_NEAR, "post": GATES_NEAR, "comb": GATES_NEAR,
}  # fmt: skip
"""(rtol, atol) of each output against float64 (kernel specification A). The residual's absolute
allowance is for sums that cancel."""


def expected(
    got: MhcOutputs, arguments: dict[str, Any], form: str, params: MhcParams = RELEASED
) -> MhcOutputs:
    """The float64 reference of each output, judged on the implementation's own earlier rounding, as
    the definition is: gates and norm on its residual."""
    if form != "post":
        return mhc_seam(**arguments, form=form, params=params, compute=torch.float64)
    a = arguments
    mixed = post_mix(a["R"], a["y"], a["post"], a["comb"], torch.float64)
    later = a | {"R": got.residual, "y": None, "post": None, "comb": None}
    want = mhc_seam(**later, form="no_post", params=params, compute=torch.float64)
    return want._replace(residual=mixed)


def assert_seam(
    got: MhcOutputs,
    arguments: dict[str, Any],
    *,
    form: str,
    out: str,
    params: MhcParams = RELEASED,
) -> None:
    """Hold an implementation's outputs against the float64 reference.

    Within ``TOLERANCES`` of ``expected``; quantised outputs bit for bit on the implementation's own
    norm.
    """
    want = expected(got, arguments, form, params)
    if form != "post":
        assert got.residual is arguments["R"]
    for name, (rtol, atol) in TOLERANCES.items():
        mine, rule = getattr(got, name).double(), getattr(want, name).double()
        torch.testing.assert_close(mine, rule, rtol=rtol, atol=atol)
    exact = with_quantized(got, got.norm, out)
    for name in ("grid", "codes", "scales"):
        mine, rule = getattr(got, name), getattr(exact, name)
        assert (mine is None) == (rule is None), name
        if mine is not None:
            same = mine.view(torch.uint8) if mine.dtype == torch.float8_e4m3fn else mine
            other = rule.view(torch.uint8) if rule.dtype == torch.float8_e4m3fn else rule
            assert torch.equal(same, other), f"{name} differs from the scale rule on its own norm"
