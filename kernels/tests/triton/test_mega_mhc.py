"""The Hopper mega-mHC: on the GPU where there is one, else in Triton's interpreter.

Last run on an H200 on 30 November 2026: 85 passed; the bench holds the cases at H = 5120 there.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dsv41_kernels import kept
from dsv41_kernels.reference.interface import FORMS, OUTPUTS, MhcParams
from dsv41_kernels.reference.mhc import with_quantized
from dsv41_kernels.triton import MhcConfig, host, mega_mhc, pack_fn, policy
from hopper import HOPPER
from mhc_cases import assert_seam, seam_inputs

DEVICE = "cuda" if HOPPER else "cpu"
# The interpreter runs programs one after another: waiting for another one is in vain.
SPIN = {} if HOPPER else {"SPIN": 0}
gpu_only = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")


def run(
    tokens: int, hidden: int, form: str = "post", out: str = "bf16", **config: Any
) -> tuple[Any, dict[str, Any]]:
    arguments = seam_inputs(tokens, hidden, form, seed=tokens, device=DEVICE)
    got = mega_mhc(**arguments, form=form, out=out, config={**SPIN, **config})
    assert_seam(got, arguments, form=form, out=out)
    return got, arguments


@pytest.mark.parametrize("tokens", [0, 1, 4, 15, 16, 17, 32, 64, 257])
def test_token_counts(tokens: int) -> None:
    run(tokens, 128, out="mxfp8", BLOCK_M=64, NUM_KSPLIT=2)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("out", OUTPUTS)
def test_forms_and_outputs(form: str, out: str) -> None:
    run(5, 128, form, out)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spin", [0, 1])
def test_persistent_forms(form: str, spin: int) -> None:
    """Every program goes through several blocks and hands off what it cannot finish."""
    config = {"PERSISTENT": True, "BLOCK_M": 32, "NUM_KSPLIT": 2, "SPIN": spin}
    run(50, 128, form, "mxfp8", **config)


def test_persistent_program_reuses_its_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """One group of programs, eleven blocks: more than stages and slots."""
    monkeypatch.setattr(host, "_sm_count", lambda device: 2)
    config = {"PERSISTENT": True, "BLOCK_M": 16, "NUM_KSPLIT": 1, "GATE_TOKENS": 16}
    run(170, 128, "post", "fp8_grid", **config)


@pytest.mark.parametrize(
    "config",
    [
        {"BLOCK_M": 32, "NUM_KSPLIT": 4},
        {"BLOCK_M": 32, "NUM_KSPLIT": 1, "GATE_TOKENS": 32},
        {"BLOCK_M": 16, "NUM_KSPLIT": 2, "GATE_TOKENS": 16},
        {"BLOCK_M": 128, "NUM_KSPLIT": 2, "NUM_WARPS": 8},
        {"BLOCK_M": 64, "NUM_KSPLIT": 1, "NUM_WARPS": 8, "PERSISTENT": True},
        {"BLOCK_M": 32, "NUM_KSPLIT": 2, "GATE_TOKENS": 32, "PERSISTENT": True},
    ],
    ids=str,
)
def test_configurations(config: dict[str, Any]) -> None:
    run(33, 128, "post", "fp8_grid", **config)


def test_widest_tile() -> None:
    run(20, 512, out="mxfp8", BLOCK_M=32, NUM_KSPLIT=2, NUM_WARPS=8)


def test_deep_split() -> None:
    run(3, 1280, out="mxfp8", BLOCK_M=32, NUM_KSPLIT=40)


def test_model_width() -> None:
    run(2, 5120, out="mxfp8")


def test_calls_leave_no_trace() -> None:
    """Counters are never reset, so later calls on the same scratch must agree with the first."""
    config = {"BLOCK_M": 32, "NUM_KSPLIT": 2}
    _, arguments = run(50, 128, **config)
    first: dict[bool, Any] = {}
    for stay, spin in ((False, 0), (True, 0), (False, 1), (True, 1), (True, 0), (False, 0)):
        again = mega_mhc(**arguments, config={**config, "PERSISTENT": stay, "SPIN": spin})
        for a, b in zip(first.setdefault(stay, again)[:5], again[:5], strict=True):
            assert torch.equal(a, b)
    for scratch in host._scratch.values():
        assert (scratch.counters >> 48 == 0).all(), "a hand-off is still open"
        events = scratch.counters % (2 * scratch.flags.shape[1])
        assert (events == 0).all(), "a share was not finished, or twice"
        assert (scratch.flags == 0).all()


def test_crafted_quantiser_groups() -> None:
    """With x1 = 1 the norm is the weight itself, so any bf16 group can be put to the quantiser."""
    hidden = 32 * 64
    w = torch.zeros(64, 32)
    w[0:20, 3] = 448.0 * 2.0 ** torch.arange(-10, 10)
    w[0:20, 4] = 1.0
    w[20:30] = torch.randn(10, 32) * 2.0 ** torch.arange(-10, 0)[:, None]
    w[30, 0] = 1e-39  # subnormal
    w[31] = 1e-12  # below the rule's floor
    w[32, :2] = torch.tensor([3.38e38, -1.0])  # near the largest
    w[33, 5] = float("inf")
    w[34, 6] = float("nan")
    w[35:] = torch.randn(29, 32)
    arguments = seam_inputs(1, hidden, "identity_pre", device=DEVICE)
    arguments["R"] = torch.ones_like(arguments["R"])
    arguments["norm_w"] = w.flatten().bfloat16().to(DEVICE)
    fine = torch.ones(64, dtype=torch.bool, device=DEVICE)
    fine[33:35] = False
    for out in ("fp8_grid", "mxfp8"):
        got = mega_mhc(**arguments, form="identity_pre", out=out, config=SPIN)
        assert torch.equal(got.norm.view(64, 32)[fine], arguments["norm_w"].view(64, 32)[fine])
        want = with_quantized(got, got.norm, out)
        for name in ("grid", "codes", "scales"):
            a, b = getattr(got, name), getattr(want, name)
            if a is not None:
                a, b = a.view(torch.uint8).view(64, -1), b.view(torch.uint8).view(64, -1)
                assert torch.equal(a[fine], b[fine]), name


def test_zero_rows_and_parameters() -> None:
    arguments = seam_inputs(3, 64, device=DEVICE)
    for name in ("R", "y"):
        arguments[name].zero_()
    params = MhcParams(rms_eps=1e-6, norm_eps=1e-5, pre_eps=1e-3, sinkhorn_iters=3, post_mult=1.5)
    got = mega_mhc(**arguments, params=params, config=SPIN)
    assert_seam(got, arguments, form="post", out="bf16", params=params)


def test_pack_holds_fn_to_16_bits() -> None:
    fn = torch.randn(24, 4 * 64)
    packed = pack_fn(fn).float().unflatten(0, (3, 2, 8)).sum(1).flatten(0, 1)
    assert torch.allclose(packed, fn, rtol=2**-16, atol=0)


@pytest.mark.parametrize("hidden", [32, 96, 128, 1280, 5120, 7168])
@pytest.mark.parametrize("tokens", [1, 64, 1000, 5000, 30000])
def test_policy_fits_every_width(tokens: int, hidden: int) -> None:
    policy.choose(tokens, hidden, 132).check(hidden)


def test_programs_stay_only_if_all_of_a_block_run_at_once() -> None:
    assert policy.choose(1000, 5120, 132).PERSISTENT
    few = policy.choose(1000, 5120, 39)  # of the 40 that share a block
    assert not few.PERSISTENT
    few.check(5120)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"BLOCK": 16}, "unknown config key 'BLOCK'"),
        ({"BLOCK_M": 24}, "BLOCK_M is one of"),
        ({"NUM_WARPS": 2}, "NUM_WARPS is one of"),
        ({"NUM_WARPS": 8}, "NUM_WARPS = 8 is too many"),
        ({"NUM_KSPLIT": 3}, "must cut H = 128"),
        ({"NUM_KSPLIT": 0}, "must cut H = 128"),
        ({"GATE_TOKENS": 3}, "GATE_TOKENS"),
        ({"GATE_TOKENS": 32}, "exceeds BLOCK_M = 16"),
        ({"SPIN": -1}, "negative"),
        ({"PERSISTENT": True, "NUM_KSPLIT": 4}, "parts of 64 or 128 columns"),
    ],
)
def test_config_refusals(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        mega_mhc(**seam_inputs(1, 128, device=DEVICE), config=config)


def test_shared_memory_limit() -> None:
    with pytest.raises(ValueError, match="bytes of shared memory"):
        MhcConfig(BLOCK_M=128, NUM_KSPLIT=1).check(256)


def test_wrong_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.knobs.runtime, "interpret", False)
    host._sm_count.cache_clear()
    with pytest.raises(ValueError, match="needs a CUDA device of sm_90"):
        mega_mhc(**seam_inputs(1, 128))
    host._sm_count.cache_clear()


def test_wrong_hidden_size() -> None:
    arguments = seam_inputs(1, 128, device=DEVICE)
    arguments["R"] = arguments["R"][:, :, :48].contiguous()
    with pytest.raises(ValueError, match="multiple of 32, not 48"):
        mega_mhc(**arguments)


def test_unaligned_input() -> None:
    arguments = seam_inputs(1, 128, device=DEVICE)
    room = torch.zeros(4 * 128 + 1, dtype=torch.bfloat16, device=DEVICE)
    arguments["R"] = room[1:].view(1, 4, 128)
    with pytest.raises(ValueError, match="R must start at a multiple of 16 bytes"):
        mega_mhc(**arguments)


def test_capture_must_not_allocate(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = seam_inputs(1, 128, device=DEVICE)
    monkeypatch.setattr(kept, "capturing", lambda device: True)
    with pytest.raises(RuntimeError, match="packed fn"):
        mega_mhc(**arguments, config=SPIN)
    monkeypatch.setattr(kept, "capturing", lambda device: False)
    mega_mhc(**arguments, config=SPIN)
    monkeypatch.setattr(kept, "capturing", lambda device: True)
    mega_mhc(**arguments, config=SPIN)
    with pytest.raises(RuntimeError, match="scratch"):
        mega_mhc(**arguments, config={**SPIN, "BLOCK_M": 128, "NUM_KSPLIT": 4})


@gpu_only
def test_graph_replay_is_bit_equal() -> None:
    arguments = seam_inputs(100, 5120, device=DEVICE)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        want = mega_mhc(**arguments, out="mxfp8")
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            got = mega_mhc(**arguments, out="mxfp8")
        for _ in range(10):
            got.norm.zero_()
            graph.replay()
            stream.synchronize()
            assert torch.equal(got.norm, want.norm)
            assert torch.equal(got.comb, want.comb)


def test_config_is_frozen() -> None:
    config = MhcConfig(16, 80)
    with pytest.raises(AttributeError):
        config.BLOCK_M = 32  # type: ignore[misc]
