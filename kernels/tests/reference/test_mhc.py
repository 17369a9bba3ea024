"""The seam's definition: its laws, forms and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dsv41_kernels.reference.interface import FORMS, OUTPUTS, MhcParams, check_seam
from dsv41_kernels.reference.mhc import mhc_seam, sinkhorn
from mhc_cases import assert_seam, seam_inputs


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("out", OUTPUTS)
@pytest.mark.parametrize("tokens", [0, 1, 17])
def test_float32_definition_is_within_tolerance_of_float64(
    form: str, out: str, tokens: int
) -> None:
    arguments = seam_inputs(tokens, 256, form)
    got = mhc_seam(**arguments, form=form, out=out)
    assert_seam(got, arguments, form=form, out=out)


def test_by_hand() -> None:
    """One column a stream would do, so the other 31 are zero."""
    R = torch.zeros(1, 4, 32, dtype=torch.bfloat16)
    R[0, :, 0] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    y = torch.zeros(1, 32, dtype=torch.bfloat16)
    y[0, 0] = 10.0
    comb = torch.zeros(1, 4, 4)
    comb[0, 1, 0] = 1.0  # source 1 goes to destination 0
    comb[0, 0, 3] = 0.5
    out = mhc_seam(
        R, y, torch.tensor([[1.0, 0, 0, 2.0]]), torch.tensor([[0.1, 0, 0, 1.0]]), comb,
        torch.zeros(24, 128), torch.ones(3), torch.zeros(24), torch.ones(32).bfloat16(),
    )  # fmt: skip
    assert out.residual[0, :, 0].tolist() == [3.0, 0.0, 0.0, 10.5]
    assert out.norm[0, 0].item() == pytest.approx(32**0.5, rel=1e-2)  # one live column of 32
    assert out.pre[0].tolist() == pytest.approx([0.5 + 1e-6] * 4)
    assert out.post[0].tolist() == [1.0] * 4
    assert out.comb[0].flatten().tolist() == pytest.approx([0.25] * 16, rel=1e-5)


def test_sinkhorn_is_nearly_doubly_stochastic() -> None:
    comb = sinkhorn(torch.randn(50, 4, 4, dtype=torch.float64) * 2, 1e-6, 20)
    assert (comb > 0).all()
    assert torch.allclose(comb.sum(-2), torch.ones(50, 4, dtype=torch.float64), atol=1e-5)
    assert torch.allclose(comb.sum(-1), torch.ones(50, 4, dtype=torch.float64), atol=5e-2)


def test_zero_rows_are_finite() -> None:
    arguments = seam_inputs(3, 64)
    for name in ("R", "y"):
        arguments[name].zero_()
    out = mhc_seam(**arguments, out="mxfp8")
    assert out.norm.count_nonzero() == 0
    assert out.scales is not None
    assert out.scales.unique().tolist() == [85]
    assert all(t.isfinite().all() for t in (out.pre, out.post, out.comb))


def test_unshifted_is_delayed_with_its_own_pre() -> None:
    arguments = seam_inputs(9, 128)
    own = mhc_seam(**{**arguments, "pre": None}, order="unshifted")
    delayed = mhc_seam(**{**arguments, "pre": own.pre})
    for a, b in zip(own[:5], delayed[:5], strict=True):
        assert torch.equal(a, b)


def test_identity_pre_is_stream_zero() -> None:
    arguments = seam_inputs(5, 64, "identity_pre")
    unit = torch.tensor([1.0, 0, 0, 0]).repeat(5, 1)
    first = mhc_seam(**arguments, form="identity_pre")
    same = mhc_seam(**{**arguments, "pre": unit}, form="no_post")
    assert first.residual is arguments["R"]
    assert torch.equal(first.norm, same.norm)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"form": "pre"}, ValueError, "form is one of"),
        ({"out": "fp8"}, ValueError, "out is one of"),
        ({"R": torch.zeros(2, 3, 64).bfloat16()}, ValueError, r"\[T, 4, H\]"),
        ({"R": None}, ValueError, "NoneType"),
        ({"R": torch.zeros(2, 4, 40).bfloat16()}, ValueError, "multiple of 32, not 40"),
        ({"y": torch.zeros(2, 64)}, TypeError, "y must be torch.bfloat16"),
        ({"pre": torch.zeros(3, 4)}, ValueError, r"pre must have shape \[2, 4\]"),
        ({"pre": None}, TypeError, "needs the tensor pre"),
        ({"comb": torch.zeros(4, 2, 4).transpose(0, 1)}, ValueError, "comb must be contiguous"),
        ({"fn": torch.zeros(24, 256, device="meta")}, ValueError, "fn is on meta"),
        ({"form": "no_post"}, ValueError, "takes no y"),
    ],
)
def test_refusals(change: dict[str, Any], error: type[Exception], words: str) -> None:
    arguments = {**seam_inputs(2, 64), "form": "post", "out": "bf16", **change}
    with pytest.raises(error, match=words):
        check_seam(**arguments)


def test_two_gib_is_refused_before_anything_is_read() -> None:
    R = torch.empty(52429, 4, 5120, dtype=torch.bfloat16, device="meta")
    rest = dict.fromkeys(("y", "pre", "post", "comb", "fn", "scale", "base", "norm_w"))
    with pytest.raises(ValueError, match="at most 52428 tokens"):
        check_seam(R, **rest, form="post", out="bf16")  # type: ignore[arg-type]


def test_parameters() -> None:
    with pytest.raises(ValueError, match="sinkhorn_iters"):
        MhcParams(sinkhorn_iters=0)
    with pytest.raises(ValueError, match="takes no pre"):
        mhc_seam(**seam_inputs(1, 32), order="unshifted")
