"""The configuration rule: plain Python, no compiler needed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv41_kernels.configs import override
from dsv41_kernels.flydsl import policy
from dsv41_kernels.flydsl.policy import BLOCK_TOKENS, MhcConfig, choose, token_buckets


def blocks_of(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


@given(
    tokens=st.integers(1, 40_000),
    hidden=st.integers(1, 64).map(lambda k: 128 * k),
    out=st.sampled_from(["bf16", "fp8_grid", "mxfp8"]),
    cus=st.integers(1, 304),
)
def test_every_choice_passes_its_own_check(tokens: int, hidden: int, out: str, cus: int) -> None:
    try:
        config = choose(tokens, hidden, out, cus)
    except ValueError as error:
        # Only an H whose chunks neither fit a workgroup nor divide into enough splits.
        assert "H must be" in str(error)
        return
    config.check(hidden)
    fits = 2 * cus >= config.NUM_KSPLIT
    assert fits == config.DIST_FINISH


def test_few_tokens_split_and_full_rounds_do_not() -> None:
    assert choose(1, 5120, "bf16", 256).NUM_KSPLIT == 20
    for tokens in (4096, 8192, 16384):
        assert choose(tokens, 5120, "bf16", 256).NUM_KSPLIT == 1


def test_a_nearly_empty_last_round_is_split() -> None:
    config = choose(4160, 5120, "bf16", 256)  # 260 blocks on 256 CUs
    assert config.NUM_KSPLIT > 1
    busiest = -(-blocks_of(4160) * config.NUM_KSPLIT // 256) / config.NUM_KSPLIT
    assert busiest < 1.5  # against 2 without a split


def test_cu_count_matters() -> None:
    assert choose(256, 5120, "bf16", 16).NUM_KSPLIT == 1
    assert choose(256, 5120, "bf16", 256).NUM_KSPLIT > 1


def test_buckets_cover_every_token_count() -> None:
    buckets = token_buckets(5000, 5120, "mxfp8", 256)
    assert buckets[-1].max_tokens == 5000
    ends = [bucket.max_tokens for bucket in buckets]
    assert ends == sorted(set(ends))
    for tokens in range(1, 5001):
        bucket = next(b for b in buckets if tokens <= b.max_tokens)
        assert bucket.config == choose(tokens, 5120, "mxfp8", 256)


def test_lds_of_two_workgroups_fits_a_cu() -> None:
    for warps in (4, 8):
        slots = policy.lds_slots(warps)
        used = 2048 + warps * (1664 + slots * 1024)
        assert 2 * used <= 160 * 1024 < 2 * (used + warps * 1024)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"NUM_WARPS": 6}, "NUM_WARPS is one of"),
        ({"NUM_KSPLIT": 0}, "NUM_KSPLIT is 1 to 20"),
        ({"NUM_KSPLIT": 21}, "NUM_KSPLIT is 1 to 20"),
        ({"NUM_KSPLIT": 3}, "H must be a multiple of 768"),
        ({"X1_LDS_SLOTS": 9}, "X1_LDS_SLOTS is 0 to 8"),
        ({"X1_LDS_SLOTS": 7}, "raise NUM_KSPLIT"),
        ({"DIST_FINISH": 1}, "DIST_FINISH is True or False"),
        ({"SPIN": -1}, "SPIN is 0 to"),
        ({"NUM_SPLIT": 2}, "unknown config key 'NUM_SPLIT'; known keys: NUM_WARPS, NUM_KSPLIT"),
    ],
)
def test_a_wrong_config_is_named(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        override(MhcConfig(), changes).check(5120)


def test_no_cu() -> None:
    with pytest.raises(ValueError, match="cu_count must be at least 1"):
        choose(1, 5120, "bf16", 0)
