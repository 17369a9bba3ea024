"""The seam kernel on the emulated gfx950, against the reference. Nothing here ran on an MI355X."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from dsv41_kernels import kept
from dsv41_kernels.emulator import Emulator, KernelFault, emulated, gfx950
from dsv41_kernels.flydsl import device, host, kernel, mega_mhc
from dsv41_kernels.reference.interface import RELEASED, MhcOutputs
from mhc_cases import assert_seam, seam_inputs

FORMS = ("post", "no_post", "identity_pre")
OUTS = ("bf16", "fp8_grid", "mxfp8")
TOKENS = (1, 4, 15, 16, 17, 32, 64, 257)
RELEASED_H = 5120


def run(tokens: int, hidden: int, form: str, out: str, **config: Any) -> MhcOutputs:
    arguments = seam_inputs(tokens, hidden, form, seed=tokens)
    got = mega_mhc(**arguments, form=form, out=out, config=config)
    assert_seam(got, arguments, form=form, out=out)
    return got


def bits(outputs: MhcOutputs) -> list[Tensor]:
    """Outputs in a form in which equal means the same bits."""
    return [t.contiguous().view(torch.uint8) for t in outputs if t is not None]


def state_words() -> Tensor:
    return torch.cat([scratch.state for scratch in host._scratch.values()])


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("form", "out"), list(zip(FORMS, OUTS, strict=True)))
def test_small_h(machine: Emulator, tokens: int, form: str, out: str) -> None:
    run(tokens, 256, form, out)


@pytest.mark.parametrize(("form", "out"), list(product(FORMS, OUTS)))
def test_every_form_and_output(machine: Emulator, form: str, out: str) -> None:
    for splits in (1, 2):
        run(19, 512, form, out, NUM_KSPLIT=splits)
        assert len(machine.launches) == splits


@pytest.mark.parametrize("tokens", TOKENS)
def test_released_h(machine: Emulator, tokens: int) -> None:
    run(tokens, RELEASED_H, "post", "mxfp8")


def test_deepest_split(machine: Emulator) -> None:
    run(33, RELEASED_H, "post", "mxfp8", NUM_KSPLIT=20)
    assert machine.launches[-1].grid == (20, 3, 1)
    run(33, RELEASED_H, "post", "mxfp8", NUM_KSPLIT=20, DIST_FINISH=False)


def test_no_split(machine: Emulator) -> None:
    """The configuration of long prefills: x1 waits in LDS and in registers."""
    run(33, RELEASED_H, "post", "mxfp8", NUM_KSPLIT=1)


def test_four_warps(machine: Emulator) -> None:
    run(5, 128, "post", "mxfp8")
    run(5, 1024, "post", "fp8_grid", NUM_WARPS=4, X1_LDS_SLOTS=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "out", "splits"), list(product(FORMS, OUTS, (1, 2, 4, 5, 10, 20)))
)
def test_released_h_everything(machine: Emulator, form: str, out: str, splits: int) -> None:
    """Every form, output, split and way to finish at the released H."""
    run(17, RELEASED_H, form, out, NUM_KSPLIT=splits)
    if splits > 1:
        run(17, RELEASED_H, form, out, NUM_KSPLIT=splits, DIST_FINISH=False)
        run(17, RELEASED_H, form, out, NUM_KSPLIT=splits, SPIN=0)


def test_zero_rows_and_other_parameters(machine: Emulator) -> None:
    params = replace(RELEASED, sinkhorn_iters=3, post_mult=1.5, pre_eps=1e-3, norm_eps=1e-5)
    for chosen in (RELEASED, params):
        arguments = seam_inputs(18, 256)
        arguments["R"][3] = 0
        arguments["y"][3] = 0
        arguments["R"][17] = 0
        got = mega_mhc(**arguments, out="mxfp8", params=chosen)
        assert_seam(got, arguments, form="post", out="mxfp8", params=chosen)
        assert (got.norm[3] == 0).all() and (got.scales[3] == 85).all()


def test_what_lies_past_the_last_token_is_not_touched(machine: Emulator) -> None:
    """Outputs of a smaller call inside larger storage: the bytes behind them stay."""
    arguments = seam_inputs(5, 256)
    whole = {}

    def guarded(shape: tuple[int, ...], dtype: torch.dtype, device: object) -> Tensor:
        size = torch.Size(shape).numel()
        memory = torch.full(((size + 4096) * dtype.itemsize,), 0xA5, dtype=torch.uint8)
        view = memory.view(dtype)[:size].view(shape)
        whole[view.data_ptr()] = memory[size * dtype.itemsize :]
        return view

    original = torch.empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            host.torch,
            "empty",
            lambda *s, dtype=torch.float32, device=None: guarded(
                s[0] if isinstance(s[0], tuple) else s, dtype, device
            ),
        )
        got = mega_mhc(**arguments, out="mxfp8", config={"NUM_KSPLIT": 1})
    assert torch.empty is original and len(whole) >= 6
    assert_seam(got, arguments, form="post", out="mxfp8")
    assert all((tail == 0xA5).all() for tail in whole.values())


# --- the split's finish under many schedules --------------------------------------------------

SCHEDULES = 200
CHIPS = (
    {},
    {"quantum": 16},
    {"xccs": 2, "cus_per_xcc": 2, "quantum": 64},
    # Two workgroups at a time: those that wait hold the chip, so the last cannot even start.
    {"xccs": 1, "cus_per_xcc": 1, "groups_per_cu": 2, "quantum": 64},
)
FINISHES = (
    {"DIST_FINISH": True, "SPIN": 2048},
    {"DIST_FINISH": True, "SPIN": 3},
    {"DIST_FINISH": True, "SPIN": 0},
    {"DIST_FINISH": False},
)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_results_do_not_depend_on_the_schedule() -> None:
    """200 schedules of the split's finish: same bits, and the state words return to zero."""
    arguments = seam_inputs(17, 1024)
    with emulated(gfx950()):
        want = mega_mhc(**arguments, out="mxfp8", config={"NUM_KSPLIT": 4})
    assert_seam(want, arguments, form="post", out="mxfp8")
    for seed in range(SCHEDULES):
        chip, finish = CHIPS[seed % 4], FINISHES[seed // 4 % 4]
        with emulated(gfx950(seed=seed, **chip)):
            got = mega_mhc(**arguments, out="mxfp8", config={"NUM_KSPLIT": 4, **finish})
        for mine, first in zip(bits(got), bits(want), strict=True):
            assert torch.equal(mine, first), f"seed {seed}, {chip}, {finish}"
        assert not state_words().any(), f"seed {seed}, {chip}, {finish}"


def test_handing_over_is_exercised(machine: Emulator) -> None:
    """SPIN = 0 runs more finishing code in one workgroup: the counts tell the paths apart."""
    arguments = seam_inputs(16, 1024)
    counts = []
    for spin in (100_000, 0):
        mega_mhc(**arguments, config={"NUM_KSPLIT": 4, "SPIN": spin})
        counts.append(machine.launches[-1].instructions)
    assert counts[0] != counts[1]


def failing_seeds(seeds: int, config: dict[str, Any]) -> int:
    """Schedules under which the kernel as it is now built gives a wrong result or a fault."""
    arguments = seam_inputs(17, 1024)
    failures = 0
    for seed in range(seeds):
        with emulated(gfx950(seed=seed, quantum=(256, 16, 64, 8)[seed % 4])):
            try:
                got = mega_mhc(**arguments, out="mxfp8", config={"NUM_KSPLIT": 4, **config})
                assert_seam(got, arguments, form="post", out="mxfp8")
            except (AssertionError, KernelFault):
                failures += 1
                host._scratch.clear()
    return failures


@pytest.fixture
def _rebuilt(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Variants built in the test are not used before or after it."""
    monkeypatch.setattr(host, "_compiled", {})
    monkeypatch.setattr(host, "_scratch", {})
    kernel.build.cache_clear()
    yield
    kernel.build.cache_clear()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.usefixtures("_rebuilt")
@pytest.mark.parametrize("config", FINISHES[1:], ids=str)
def test_exchange_through_the_caches_is_caught(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> None:
    """Planted bug: ordinary loads and stores where agent-scope ones are needed."""
    monkeypatch.setattr(kernel, "AGENT", device.CACHED)
    assert failing_seeds(16, config)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.usefixtures("_rebuilt")
def test_a_missing_wait_before_the_arrival_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: a workgroup arrives before its stores have."""
    monkeypatch.setattr(kernel.rocdl, "s_waitcnt", lambda *args, **counters: None)
    assert failing_seeds(48, {"SPIN": 0})


def test_two_streams_at_once(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches of two streams run together, each with work space of its own."""
    calls = [seam_inputs(17, 1024, seed=seed) for seed in (1, 2)]
    results = []
    with machine.together():
        for stream, arguments in enumerate(calls):
            monkeypatch.setattr(kept, "stream_handle", lambda device, stream=stream: stream)
            results.append(mega_mhc(**arguments, out="mxfp8", config={"NUM_KSPLIT": 4}))
    assert len(machine.launches) == 2
    for got, arguments in zip(results, calls, strict=True):
        assert_seam(got, arguments, form="post", out="mxfp8")


# --- crafted groups for the quantised outputs -------------------------------------------------


def crafted_weights() -> Tensor:
    """bf16 [7, 5120]: groups of 32 whose largest magnitude sits where scale rules differ."""
    g = torch.Generator().manual_seed(3)
    tops = []
    for k in range(-140, 120):
        for top in (446.0, 448.0, 450.0, 255.0):
            tops.append(torch.tensor(top, dtype=torch.float64) * 2.0**k)
    tops += [torch.tensor(v, dtype=torch.float64) for v in (0.0, 2.0**-133, 2.0**-126, 3.38e38)]
    tops += [torch.tensor(v, dtype=torch.float64) for v in (1e-10, 0.99e-10, 1.01e-10)]
    tops = torch.stack(tops).clamp(max=torch.finfo(torch.bfloat16).max)
    groups = tops.repeat(2)[: 7 * 160]
    groups = torch.cat([groups, torch.ones(7 * 160 - len(groups), dtype=torch.float64)])
    values = (2 * torch.rand(7 * 160, 32, generator=g, dtype=torch.float64) - 1) * groups[:, None]
    at = torch.randint(0, 32, (7 * 160,), generator=g)
    sign = 1 - 2 * torch.randint(0, 2, (7 * 160,), generator=g)
    values[torch.arange(7 * 160), at] = groups * sign
    return values.to(torch.bfloat16).view(7, 5120)


def through_the_norm(weights: Tensor, out: str) -> MhcOutputs:
    """The kernel with x1 = 1 and rstd = 1, so that its norm is the weight itself."""
    arguments = seam_inputs(1, weights.numel(), "identity_pre")
    arguments["R"][:, 0] = 1
    arguments["norm_w"] = weights
    return mega_mhc(
        **arguments, form="identity_pre", out=out, params=replace(RELEASED, norm_eps=0.0)
    )


@pytest.mark.parametrize("out", ["fp8_grid", "mxfp8"])
def test_crafted_groups(machine: Emulator, out: str) -> None:
    from dsv41_kernels.reference.mhc import with_quantized

    for weights in crafted_weights():
        got = through_the_norm(weights, out)
        assert torch.equal(got.norm[0], weights)
        exact = with_quantized(got, got.norm, out)
        for mine, rule in zip(bits(got), bits(exact), strict=True):
            assert torch.equal(mine, rule)


@pytest.mark.parametrize("out", ["fp8_grid", "mxfp8"])
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_inf_and_nan_stay_in_their_group(machine: Emulator, out: str, bad: float) -> None:
    weights = crafted_weights()[0]
    clean = through_the_norm(weights, out)
    spoiled = weights.clone()
    spoiled[[5, 32 * 40 + 31, 32 * 159]] = bad
    got = through_the_norm(spoiled, out)
    group = torch.ones(160, dtype=torch.bool)
    group[[0, 40, 159]] = False
    for mine, rule in zip(bits(got), bits(clean), strict=True):
        if mine.shape[-1] % 160 == 0:
            assert torch.equal(mine.view(1, 160, -1)[:, group], rule.view(1, 160, -1)[:, group])
