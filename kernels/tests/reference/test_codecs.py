"""MXFP4 and block codecs against ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41_kernels.reference import codecs


def test_every_e2m1_code() -> None:
    codes = np.arange(16, dtype=np.uint8)
    values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    packed = torch.from_numpy(codes[0::2] | (codes[1::2] << 4)).repeat(2)[None]
    got = codecs.dequantize_mxfp4(packed, torch.tensor([[127]], dtype=torch.uint8))
    assert got[0, :16].tolist() == values.tolist()
    assert codecs.encode_e2m1(torch.from_numpy(values)).tolist() == codes.tolist()


@settings(max_examples=100, deadline=None)
@given(st.floats(-6, 6, width=32))
def test_encode_rounds_as_ml_dtypes(value: float) -> None:
    want = np.array([value], np.float32).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    assert codecs.encode_e2m1(torch.tensor([value])).tolist() == want.tolist()


def test_round_trip_of_representable_rows() -> None:
    g = torch.Generator().manual_seed(0)
    table = torch.tensor(codecs.E2M1_VALUES)
    w = table[torch.randint(0, 8, (5, 96), generator=g)]
    w[:, ::32] = 6.0  # the group maximum that keeps the OCP scale at one
    w *= torch.sign(torch.randn(5, 96, generator=g)) * 2.0**-7
    packed, scales = codecs.quantize_mxfp4(w)
    assert packed.shape == (5, 48)
    assert scales.unique().tolist() == [120]
    assert torch.equal(codecs.dequantize_mxfp4(packed, scales), w)


def test_even_column_is_the_low_nibble() -> None:
    w = torch.zeros(1, 32)
    w[0, 0], w[0, 1] = 4.0, -1.0
    packed, _ = codecs.quantize_mxfp4(w)
    assert packed[0, 0].item() == 6 | (10 << 4)


def test_blocks() -> None:
    codes = torch.ones(64, 64).to(torch.float8_e4m3fn)
    scales = torch.tensor([[127, 128], [126, 130]], dtype=torch.uint8)
    wide = codecs.dequantize_blocks(codes, scales)
    assert [wide[i, j].item() for i in (31, 32) for j in (31, 32)] == [1.0, 2.0, 0.5, 8.0]


def test_error() -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        codecs.quantize_mxfp4(torch.zeros(1, 31))
