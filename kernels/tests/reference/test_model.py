"""Router, experts, attention and a whole layer at small sizes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dsv41_kernels.reference import attention as attn
from dsv41_kernels.reference import moe
from dsv41_kernels.reference.codecs import dequantize_mxfp4, quantize_mxfp4
from dsv41_kernels.reference.layer import LayerState, LayerWeights, SeamWeights, decoder_layer
from mhc_cases import seam_inputs

H, INTER, E, K = 128, 96, 5, 3


def rand(g: torch.Generator, *shape: int, std: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=g) * std


def blocks(g: torch.Generator, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    codes = rand(g, rows, columns).to(torch.float8_e4m3fn)
    return codes, torch.full((rows // 32, columns // 32), 123, dtype=torch.uint8)


def routed_weights(g: torch.Generator) -> moe.RoutedWeights:
    w13, s13 = quantize_mxfp4(rand(g, E, 2 * INTER, H, std=H**-0.5))
    w2, s2 = quantize_mxfp4(rand(g, E, H, INTER, std=INTER**-0.5))
    return moe.RoutedWeights(w13, s13, w2, s2)


def test_route_chooses_by_bias_and_weighs_without_it() -> None:
    g = torch.Generator().manual_seed(0)
    x, gate = rand(g, 7, H).bfloat16(), rand(g, E, H, std=0.1).bfloat16()
    bias = torch.zeros(E)
    bias[4] = 100.0
    ids, weights = moe.route(x, gate, bias, K)
    assert (ids[:, 0] == 4).all()
    logits = x.double() @ gate.double().t()
    score = torch.log1p(logits.exp()).sqrt().gather(1, ids)
    assert torch.allclose(weights.double(), 1.5 * score / score.sum(1, keepdim=True), rtol=1e-5)
    assert torch.allclose(weights.sum(1), torch.full((7,), 1.5))


def test_routed_experts_against_plain_float64() -> None:
    g = torch.Generator().manual_seed(1)
    experts = routed_weights(g)
    x = rand(g, 6, H).bfloat16()
    ids = torch.stack([torch.randperm(E, generator=g)[:K] for _ in range(6)])
    weights = torch.rand(6, K, generator=g)
    got = moe.routed_experts(x, ids, weights, experts)
    want = torch.zeros(6, H, dtype=torch.float64)
    for t in range(6):
        for slot in range(K):
            e = int(ids[t, slot])
            w13 = dequantize_mxfp4(experts.w13[e], experts.s13[e], torch.float64)
            w2 = dequantize_mxfp4(experts.w2[e], experts.s2[e], torch.float64)
            gate, up = (w13 @ x[t].double()).chunk(2)
            mid = torch.nn.functional.silu(gate.clamp(max=10)) * up.clamp(-10, 10)
            want[t] += weights[t, slot].double() * (w2 @ mid)
    # Two MXFP8 roundings separate them; the acceptance bound for the experts is 0.10.
    assert (got.double() - want).norm() / want.norm() < 0.06
    exact = moe.routed_experts(x, ids, weights, experts, compute=torch.float64)
    assert (got.double() - exact.double()).norm() / want.norm() < 5e-3


def test_routed_experts_order_invalid_ids_and_zero_w2() -> None:
    g = torch.Generator().manual_seed(2)
    experts = routed_weights(g)
    x, weights = rand(g, 4, H).bfloat16(), torch.rand(4, K, generator=g)
    ids = torch.tensor([[0, 1, 2]]).repeat(4, 1)
    base = moe.routed_experts(x, ids, weights, experts)
    bad = torch.cat((ids, torch.tensor([[-1], [E], [999], [-7]])), 1)
    wide = torch.cat((weights, torch.ones(4, 1)), 1)
    assert torch.equal(moe.routed_experts(x, bad, wide, experts), base)
    one = [
        moe.routed_experts(x, ids[:, s : s + 1], weights[:, s : s + 1], experts) for s in range(K)
    ]
    assert torch.equal((one[0] + one[1]) + one[2], base)
    zero = moe.RoutedWeights(experts.w13, experts.s13, torch.zeros_like(experts.w2), experts.s2)
    assert moe.routed_experts(x, ids, weights, zero).count_nonzero() == 0
    shared = rand(g, 4, H).bfloat16()
    assert torch.equal(moe.routed_experts(x, ids, weights, experts, shared), base + shared)


def test_kv_record_layout_and_round_trip() -> None:
    g = torch.Generator().manual_seed(3)
    latents = rand(g, 4, 512).bfloat16()
    latents[2] = 0
    block = attn.pack_kv_block(latents)
    assert block.shape == (4 * 584,)
    tail = block[4 * 576 :].view(4, 8)
    assert (tail[:, 7] == 0).all()
    assert tail[2, :7].unique().tolist() == [105]
    back = attn.unpack_kv_block(block)
    assert torch.equal(back[:, 448:], latents[:, 448:].float())
    error = (back - latents.float())[:, :448].abs().view(4, 7, 64).amax(-1)
    amax = latents.float()[:, :448].abs().view(4, 7, 64).amax(-1)
    assert (error <= amax / 16).all()
    # What was read from a record is stored without loss (its scale may step down).
    assert torch.equal(attn.unpack_kv_block(attn.pack_kv_block(back.bfloat16())), back)


@pytest.mark.parametrize("compressed", [False, True])
def test_rope(compressed: bool) -> None:
    x = torch.randn(5, 2, 512, dtype=torch.float64)
    positions = torch.tensor([0, 1, 7, 70000, 900000])
    turned = attn.rotate(x, positions, compressed)
    assert torch.equal(turned[0], x[0])
    assert torch.equal(turned[..., :448], x[..., :448])
    assert torch.allclose(attn.rotate(turned, positions, compressed, inverse=True), x)
    # Scores depend on the distance alone.
    a, b = torch.randn(2, 1, 512, dtype=torch.float64)

    def score(p: int) -> Tensor:
        q = attn.rotate(a, torch.tensor([p + 3]), compressed)
        return (q * attn.rotate(b, torch.tensor([p]), compressed)).sum()

    at = [score(p) for p in (0, 1000)]
    assert torch.allclose(at[0], at[1])
    frequencies = attn.rope_frequencies(compressed)
    assert frequencies[0] == 1.0
    if compressed:
        assert frequencies[-1] == pytest.approx(160000.0 ** (-62 / 64) / 16)


def test_attend_is_softmax_with_a_sink() -> None:
    g = torch.Generator().manual_seed(4)
    q, sink = rand(g, 2, 3, 512).double(), rand(g, 3)
    keys = [rand(g, 9, 512).double(), rand(g, 0, 512).double()]
    got = attn.attend(q, keys, sink, torch.float64)
    logits = torch.cat((q[0] @ keys[0].t() * 512**-0.5, sink.double()[:, None]), 1)
    want = torch.softmax(logits, -1)[:, :-1] @ keys[0]
    assert torch.allclose(got[0], want)
    assert got[1].count_nonzero() == 0


def test_layer_float32_against_float64() -> None:
    g = torch.Generator().manual_seed(5)
    tokens = 3

    def seam() -> SeamWeights:
        a = seam_inputs(1, H, seed=int(torch.randint(0, 99, (1,), generator=g)))
        return SeamWeights(a["fn"], a["scale"], a["base"], a["norm_w"])

    attention = attn.AttentionWeights(
        wqkv_a=blocks(g, 64 + 512, H),
        wq_b=blocks(g, 8 * 512, 64),
        wo_a=blocks(g, 1024, 4096),
        wo_b=blocks(g, H, 1024),
        q_norm=torch.ones(64).bfloat16(),
        kv_norm=torch.ones(512).bfloat16(),
        sink=torch.zeros(8),
    )
    shared = moe.SharedWeights(*blocks(g, 2 * INTER, H), *blocks(g, H, INTER))
    weights = LayerWeights(
        seam(), attention, seam(), rand(g, E, H, std=0.1).bfloat16(), torch.zeros(E),
        routed_weights(g), shared, K, compressed=True,
    )  # fmt: skip
    a = seam_inputs(tokens, H)
    state = LayerState(a["R"], a["y"], a["pre"], a["post"], a["comb"])
    far = [rand(g, n, 512).bfloat16() for n in (0, 4, 6)]
    near = [rand(g, n, 512).bfloat16() for n in (1, 0, 5)]
    positions = torch.tensor([1, 8, 300])
    got, records = decoder_layer(state, positions, far, near, weights)
    again, _ = decoder_layer(state, positions, far, near, weights)
    exact, _ = decoder_layer(state, positions, far, near, weights, compute=torch.float64)
    assert records.shape == (tokens, 584)
    assert all(torch.equal(x, y) for x, y in zip(got, again, strict=True))
    # The mono layer's acceptance: residual cosine > 0.9999 and relative error < 0.01.
    for mine, true in ((got.residual, exact.residual), (got.y, exact.y)):
        x, y = mine.double().flatten(), true.double().flatten()
        assert torch.nn.functional.cosine_similarity(x, y, dim=0) > 0.9999
        assert (x - y).norm() / y.norm() < 0.01
