"""The scale rules against exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41_kernels.reference import scales

INV_448 = Fraction(float(np.float32(1) / np.float32(448)))


def f32(value: float) -> float:
    return float(np.float32(value))


def to_nearest_f32(exact: Fraction) -> Fraction:
    """Round a positive rational to float32, ties to even, with subnormals."""
    exponent = -149
    while Fraction(2) ** (exponent + 24) <= exact:
        exponent += 1
    unit = Fraction(2) ** exponent
    whole, rest = divmod(exact, unit)
    if rest > unit / 2 or (rest == unit / 2 and whole % 2):
        whole += 1
    return whole * unit


def ceil2(exact: Fraction) -> int:
    """Biased exponent of the smallest power of two at or above, at least 0."""
    code = 0
    while Fraction(2) ** (code - 127) < exact:
        code += 1
    return code


def seam(v: float) -> int:
    scaled = to_nearest_f32(Fraction(max(v, f32(1e-10))) * INV_448)
    return min(max(ceil2(scaled), 1), 254)


def vllm(v: float) -> int:
    return ceil2(to_nearest_f32(Fraction(max(v, 2.0**-126)) / 448))


def mid(v: float) -> int:
    """Nearest power of two by significand (1.5 goes up), divided by 256."""
    if v == 0:
        return 0
    mantissa, exponent = np.frexp(v)
    biased = exponent - 1 + 127 + (2 * mantissa >= 1.5)
    if v < 2.0**-126:
        biased = 1 if v >= 2.0**-127 else 0
    return max(0, int(biased) - 8)


def peer(v: float) -> int:
    return ceil2(to_nearest_f32(Fraction(v) * INV_448))


def kv(v: float) -> int:
    return ceil2(to_nearest_f32(Fraction(max(v, f32(1e-4))) / 448))


RULES = {
    scales.seam_code: seam,
    scales.vllm_code: vllm,
    scales.megamoe_mid_code: mid,
    scales.megamoe_peer_code: peer,
    scales.kv_code: kv,
}


@pytest.fixture(params=RULES, ids=lambda rule: rule.__name__)
def rule(request: pytest.FixtureRequest) -> scales.ScaleRule:
    return request.param


def agree(rule: scales.ScaleRule, bits: np.ndarray) -> None:
    values = bits.astype(np.uint32).view(np.float32)
    got = rule(torch.from_numpy(values.copy()))
    want = [RULES[rule](float(v)) for v in values]
    assert got.dtype == torch.uint8
    assert got.tolist() == want


def test_every_exponent_around_its_boundaries(rule: scales.ScaleRule) -> None:
    # 448 = 1.75 * 2**8, so 1.75 is where the quotient crosses a power of two; 1.5 is mid's tie.
    mantissas = [0, 1, 2, 0x3FFFFF, 0x400000, 0x400001, 0x5FFFFF, 0x600000, 0x600001, 0x7FFFFF]
    bits = [(e << 23) | m for e in range(255) for m in mantissas]
    agree(rule, np.array(bits))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 0x7F7FFFFF), min_size=1, max_size=16))
def test_any_finite_maximum(bits: list[int]) -> None:
    for one in RULES:
        agree(one, np.array(bits))


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        (scales.seam_code, 85),
        (scales.vllm_code, 0),
        (scales.megamoe_mid_code, 0),
        (scales.megamoe_peer_code, 0),
        (scales.kv_code, 105),
    ],
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_zero_group(rule: scales.ScaleRule, code: int) -> None:
    codes, got = scales.quantize_e4m3(torch.zeros(1, 64), rule, 64)
    assert got.tolist() == [[code]]
    assert codes.float().count_nonzero() == 0


def test_which_rules_coincide() -> None:
    """vLLM's quotient and the peers' product meet in every code; no other two rules do."""
    binade = torch.arange(2**23, dtype=torch.int32) | (127 << 23)
    v = binade.view(torch.float32)
    assert torch.equal(scales.vllm_code(v), scales.megamoe_peer_code(v))
    v = torch.tensor([1.6, 1e-5, 0.0, 3e-37], dtype=torch.float32)
    assert len({tuple(rule(v).tolist()) for rule in RULES}) == len(RULES) - 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 0xFFFF), min_size=32, max_size=32))
def test_values_match_ml_dtypes(bits: list[int]) -> None:
    x = torch.tensor(bits, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)[None]
    x = torch.where(x.isfinite(), x, torch.zeros_like(x))
    codes, code = scales.quantize_e4m3(x, scales.seam_code)
    with np.errstate(over="ignore"):
        scaled = x.float().numpy() * np.float32(2.0 ** (127 - int(code)))
    want = np.clip(scaled, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    assert codes.view(torch.uint8).numpy().tolist() == want.view(np.uint8).tolist()


def test_nonfinite_group_leaves_others_alone() -> None:
    x = torch.randn(1, 96)
    clean = scales.quantize_e4m3(x, scales.seam_code)
    for bad in (float("inf"), float("nan")):
        y = x.clone()
        y[0, 40] = bad
        codes, code = scales.quantize_e4m3(y, scales.seam_code)
        for part in (slice(0, 32), slice(64, 96)):
            assert torch.equal(codes[:, part].float(), clean[0][:, part].float())
        assert code[0, [0, 2]].tolist() == clean[1][0, [0, 2]].tolist()


def test_power_of_two_is_exact() -> None:
    exponents = torch.arange(-149, 128, dtype=torch.int32)
    want = [2.0**e for e in exponents.tolist()]
    assert scales.power_of_two(exponents).double().tolist() == want


def test_errors() -> None:
    with pytest.raises(ValueError, match="not a multiple of 32"):
        scales.quantize_e4m3(torch.zeros(1, 33), scales.seam_code)
    with pytest.raises(TypeError, match="float32"):
        scales.seam_code(torch.zeros(1, dtype=torch.bfloat16))
