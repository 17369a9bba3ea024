"""Which configuration the gfx950 mega-mHC runs with: plain Python, no GPU needed.

The choice is a model, not a measurement: nothing here has run on an MI355X.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

BLOCK_TOKENS = 16
"""Tokens of a workgroup: the rows of the MFMA."""

CHUNK = 32
"""Columns a warp takes at a time: the depth of the MFMA, and a group of the quantised outputs."""

MAX_KSPLIT = 20
MAX_REGISTER_CHUNKS = 12
"""Chunks whose x1 a warp can hold in registers without spilling (the tests read the builds)."""

WORKGROUPS_PER_CU = 2
"""Residency every configuration is built for."""

_LDS_BYTES = 160 * 1024
_LDS_SLOT_BYTES = 1024  # one warp's x1 of one chunk
_LDS_FIXED_BYTES = 2048  # block sums, gate terms, control words
_LDS_WARP_BYTES = 1664  # a warp's sums

FIXED_COST = 0.02
"""What a workgroup costs besides its columns, as a share of one pass over all of H (a guess)."""


@dataclass(frozen=True)
class MhcConfig:
    """Shape of one launch.

    Attributes:
        NUM_WARPS: warps of a workgroup, 4 or 8; each takes every NUM_WARPS-th chunk.
        NUM_KSPLIT: workgroups that share a block of 16 tokens, 1 to 20.
        X1_LDS_SLOTS: chunks a warp whose x1 waits in LDS for the norm; the rest wait in registers.
        DIST_FINISH: with a split, every workgroup finishes its own columns; else the last to
            arrive finishes them all. Set it False where other kernels hold CUs for long.
        SPIN: looks at the state word before a workgroup hands its columns to the last to arrive;
            0 hands them over at once. One look takes about 512 clocks.
    """

    NUM_WARPS: int = 8
    NUM_KSPLIT: int = 1
    X1_LDS_SLOTS: int = 8
    DIST_FINISH: bool = True
    SPIN: int = 2048

    @property
    def threads(self) -> int:
        return self.NUM_WARPS * 64

    @property
    def waves_per_simd(self) -> int:
        """Waves that must fit a SIMD for two workgroups to fit a CU."""
        return WORKGROUPS_PER_CU * self.NUM_WARPS // 4

    @property
    def keeps_x1(self) -> bool:
        """Whether x1 stays on the chip until the norm is known."""
        return self.NUM_KSPLIT == 1 or self.DIST_FINISH

    def chunks(self, hidden: int) -> int:
        """Chunks of a warp."""
        return hidden // (CHUNK * self.NUM_WARPS * self.NUM_KSPLIT)

    def check(self, hidden: int) -> None:
        """Raise ValueError for a value no build of the kernel takes at this hidden size."""
        if self.NUM_WARPS not in (4, 8):
            raise ValueError(f"NUM_WARPS is one of (4, 8), not {self.NUM_WARPS!r}")
        if self.NUM_KSPLIT not in range(1, MAX_KSPLIT + 1):
            raise ValueError(f"NUM_KSPLIT is 1 to {MAX_KSPLIT}, not {self.NUM_KSPLIT!r}")
        step = CHUNK * self.NUM_WARPS * self.NUM_KSPLIT
        if hidden <= 0 or hidden % step:
            raise ValueError(
                f"H must be a multiple of {step} (= {CHUNK} x NUM_WARPS {self.NUM_WARPS} x "
                f"NUM_KSPLIT {self.NUM_KSPLIT}), not {hidden}"
            )
        if not isinstance(self.DIST_FINISH, bool):
            raise ValueError(f"DIST_FINISH is True or False, not {self.DIST_FINISH!r}")
        if not 0 <= self.SPIN < 2**31:
            raise ValueError(f"SPIN is 0 to 2**31 - 1, not {self.SPIN!r}")
        most = lds_slots(self.NUM_WARPS)
        if not 0 <= self.X1_LDS_SLOTS <= most:
            raise ValueError(
                f"X1_LDS_SLOTS is 0 to {most} with {self.NUM_WARPS} warps, not "
                f"{self.X1_LDS_SLOTS!r}: {WORKGROUPS_PER_CU} workgroups share a CU's LDS"
            )
        if self.keeps_x1 and self.chunks(hidden) - self.X1_LDS_SLOTS > MAX_REGISTER_CHUNKS:
            raise ValueError(
                f"H = {hidden} leaves a warp {self.chunks(hidden)} chunks, of which X1_LDS_SLOTS "
                f"{self.X1_LDS_SLOTS} and {MAX_REGISTER_CHUNKS} in registers can wait for the "
                "norm; raise NUM_KSPLIT"
            )


def lds_slots(warps: int) -> int:
    """x1 slots a warp can have in LDS when two workgroups share a CU."""
    free = _LDS_BYTES // WORKGROUPS_PER_CU - _LDS_FIXED_BYTES - warps * _LDS_WARP_BYTES
    return free // (warps * _LDS_SLOT_BYTES)


@cache
def choose(tokens: int, hidden: int, out: str, cu_count: int) -> MhcConfig:
    """The configuration for a call.

    A workgroup's cost is its share of H plus a fixed cost; the split with the least cost on the
    busiest CU wins, the smaller one at equal cost. So few tokens split H over the idle CUs, and a
    last, nearly empty round of workgroups is evened out.

    Args:
        tokens: T, at least 1.
        hidden: H.
        out: "bf16", "fp8_grid" or "mxfp8"; today it makes no difference, all three keep the
            residency.
        cu_count: compute units the launch may use.

    Returns:
        A configuration that ``check`` accepts.

    Raises:
        ValueError: no configuration takes this H.
    """
    if cu_count < 1:
        raise ValueError(f"cu_count must be at least 1, not {cu_count}")
    blocks = -(-tokens // BLOCK_TOKENS)
    best: tuple[float, MhcConfig] | None = None
    for warps in (8, 4):
        for splits in range(1, MAX_KSPLIT + 1):
            # All splits of a block must be able to wait for each other on the chip.
            distributed = splits <= WORKGROUPS_PER_CU * cu_count
            config = MhcConfig(warps, splits, lds_slots(warps), distributed)
            try:
                config.check(hidden)
            except ValueError:
                continue
            cost = -(-blocks * splits // cu_count) * (1 / splits + FIXED_COST)
            if best is None or cost < best[0] - 1e-9:
                best = (cost, config)
        if best is not None:
            return best[1]
    raise ValueError(
        f"H must be a multiple of {CHUNK * 4} that a configuration takes, not {hidden}"
    )


class Bucket(NamedTuple):
    """A run of token counts that share a configuration."""

    max_tokens: int
    config: MhcConfig


def token_buckets(max_tokens: int, hidden: int, out: str, cu_count: int) -> tuple[Bucket, ...]:
    """Every configuration for 1 to ``max_tokens`` tokens, in order.

    A server calls each once before it captures graphs, so that no capture has to compile.
    """

    def runs() -> Iterator[Bucket]:
        last = -(-max_tokens // BLOCK_TOKENS)
        for block in range(1, last + 1):
            config = choose(block * BLOCK_TOKENS, hidden, out, cu_count)
            ends = block == last
            if ends or choose((block + 1) * BLOCK_TOKENS, hidden, out, cu_count) != config:
                yield Bucket(min(block * BLOCK_TOKENS, max_tokens), config)

    return tuple(runs())
