"""Refusals before any launch, the packed fn, and the work space."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dsv41_kernels import kept
from dsv41_kernels.emulator import Emulator
from dsv41_kernels.flydsl import host, mega_mhc, pack_fn
from mhc_cases import seam_inputs

HIDDEN = 512


@pytest.fixture(autouse=True)
def _own_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_scratch", {})
    monkeypatch.setattr(host, "_outgrown", [])


def changed(name: str, change: Any) -> dict[str, Any]:
    arguments = seam_inputs(3, HIDDEN)
    return arguments | {name: change(arguments[name])}


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (changed("R", lambda t: t.half()), {}, TypeError, "R must be torch.bfloat16"),
        (changed("post", lambda t: t.double()), {}, TypeError, "post must be torch.float32"),
        (changed("y", lambda t: t[:2]), {}, ValueError, r"y must have shape \[3, 512\]"),
        (changed("fn", lambda t: t[:23]), {}, ValueError, r"fn must have shape \[24, 2048\]"),
        (
            changed("comb", lambda t: t.transpose(1, 2)),
            {},
            ValueError,
            "comb must be contiguous",
        ),
        (changed("y", lambda t: t.to("meta")), {}, ValueError, "y is on meta, R on cpu"),
        (seam_inputs(3, HIDDEN), {"form": "pre"}, ValueError, "form is one of"),
        (seam_inputs(3, HIDDEN), {"out": "fp8"}, ValueError, "out is one of"),
        (seam_inputs(3, HIDDEN), {"form": "no_post"}, ValueError, "takes no y"),
        (seam_inputs(3, 96), {}, ValueError, "H must be a multiple of 128"),
        (seam_inputs(3, 48), {}, ValueError, "H must be a positive multiple of 32"),
        (
            seam_inputs(3, HIDDEN),
            {"config": {"BLOCK_M": 32}},
            ValueError,
            "unknown config key 'BLOCK_M'",
        ),
        (
            seam_inputs(3, HIDDEN),
            {"config": {"NUM_KSPLIT": 4}},
            ValueError,
            "H must be a multiple of 1024",
        ),
    ],
)
def test_a_wrong_call_is_refused(
    machine: Emulator,
    arguments: dict[str, Any],
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        mega_mhc(**arguments, **options)
    assert not machine.launches


def test_two_gib_are_refused(machine: Emulator) -> None:
    arguments = seam_inputs(1, 5120)
    tokens = 52429  # 52429 x 4 x 5120 x 2 bytes is the first count past 2**31
    arguments["R"] = torch.empty(1, 4, 5120, dtype=torch.bfloat16).expand(tokens, 4, 5120)
    with pytest.raises(ValueError, match="at most 52428 tokens"):
        mega_mhc(**arguments)
    assert not machine.launches


def test_cpu_tensors_outside_the_emulator() -> None:
    with pytest.raises(ValueError, match="needs a gfx950 GPU, R is on cpu"):
        mega_mhc(**seam_inputs(1, HIDDEN))


@pytest.mark.parametrize(
    ("properties", "found"),
    [
        (SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-", name="MI300X"), "gfx942"),
        (SimpleNamespace(name="NVIDIA H200"), "NVIDIA H200"),
    ],
)
def test_another_gpu(monkeypatch: pytest.MonkeyPatch, properties: Any, found: str) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    host._gpu_cus.cache_clear()
    with pytest.raises(ValueError, match=f"built for gfx950, cuda:0 is {found}"):
        host._cu_count(torch.device("cuda:0"))


def test_the_right_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(gcnArchName="gfx950:sramecc+:xnack-", multi_processor_count=256)
    properties.name = "AMD Instinct MI355X"
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    host._gpu_cus.cache_clear()
    assert host._cu_count(torch.device("cuda:0")) == 256
    host._gpu_cus.cache_clear()


def test_flydsl_missing(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_compiled", {})
    monkeypatch.setattr(host.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="FlyDSL is not installed"):
        mega_mhc(**seam_inputs(1, HIDDEN))


def test_linker_missing(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_compiled", {})
    monkeypatch.setenv("ROCM_PATH", "/nowhere")
    with pytest.raises(RuntimeError, match=r"/nowhere/llvm/bin/ld.lld, which does not exist"):
        mega_mhc(**seam_inputs(1, HIDDEN))


def test_no_tokens(machine: Emulator) -> None:
    for out in ("bf16", "fp8_grid", "mxfp8"):
        got = mega_mhc(**seam_inputs(0, HIDDEN), out=out)
        assert got.norm.shape == (0, HIDDEN) and got.comb.shape == (0, 4, 4)
        assert (got.grid is None) == (out != "fp8_grid")
        assert (got.scales is None) == (out != "mxfp8")
    assert not machine.launches


def test_pack_holds_every_row_in_mfma_order() -> None:
    fn = torch.randn(24, 4 * 96)
    packed = pack_fn(fn)
    hi = fn.bfloat16()
    lo = (fn - hi.float()).bfloat16()
    assert packed.shape == (3, 4, 3, 64, 8)
    for chunk, stream, lane, i in ((0, 0, 0, 0), (2, 3, 63, 7), (1, 2, 37, 5), (2, 0, 8, 1)):
        row, column = lane % 16, stream * 96 + chunk * 32 + 8 * (lane // 16) + i
        assert packed[chunk, stream, 0, lane, i] == hi[row, column]
        assert packed[chunk, stream, 1, lane, i] == lo[row, column]
        third = hi[16 + row] if row < 8 else lo[8 + row]
        assert packed[chunk, stream, 2, lane, i] == third[column]
    assert (hi.double() + lo.double() - fn).abs().max() <= 2**-16 * fn.abs().max()


def test_fn_is_packed_once_and_again_when_it_changes(
    machine: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs = []
    monkeypatch.setattr(host, "_packed", kept.Packs(lambda fn: packs.append(fn) or pack_fn(fn)))
    arguments = seam_inputs(2, HIDDEN)
    first = mega_mhc(**arguments)
    mega_mhc(**arguments)
    assert len(packs) == 1
    arguments["fn"].mul_(0.5)
    second = mega_mhc(**arguments)
    assert len(packs) == 2
    assert not torch.equal(first.pre, second.pre)


def test_a_capture_allocates_nothing(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = seam_inputs(2, HIDDEN)
    monkeypatch.setattr(kept, "capturing", lambda device: True)
    with pytest.raises(RuntimeError, match="its packed fn inside a graph capture"):
        mega_mhc(**arguments)
    monkeypatch.setattr(kept, "capturing", lambda device: False)
    eager = mega_mhc(**arguments)
    monkeypatch.setattr(kept, "capturing", lambda device: True)
    captured = mega_mhc(**arguments)
    assert torch.equal(eager.norm, captured.norm)
    with pytest.raises(RuntimeError, match="its work space inside a graph capture"):
        mega_mhc(**(seam_inputs(40, HIDDEN) | {"fn": arguments["fn"]}))
    monkeypatch.setattr(kept, "stream_handle", lambda device: 7)
    with pytest.raises(RuntimeError, match="its work space inside a graph capture"):
        mega_mhc(**arguments)
    monkeypatch.setattr(host, "_compiled", {})
    with pytest.raises(RuntimeError, match="its compiled kernel inside a graph capture"):
        mega_mhc(**arguments, config={"NUM_KSPLIT": 1})
    assert len(machine.launches) == 2


def test_work_space_belongs_to_a_stream_and_outlives_growth(
    machine: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = 1
    monkeypatch.setattr(kept, "stream_handle", lambda device: stream)
    device = torch.device("cpu")
    first = host._scratch_for(device, 1, 100)
    assert host._scratch_for(device, 1, 50) is first
    stream = 2
    assert host._scratch_for(device, 1, 100) is not first
    stream = 1
    grown = host._scratch_for(device, 3, 100)
    assert grown.state.numel() == 3 and grown.exchange.numel() == 300
    assert first in host._outgrown  # a captured graph may still use its memory
    assert host._scratch_for(device, 1, 100) is grown
