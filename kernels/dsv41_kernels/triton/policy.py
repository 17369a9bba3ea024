"""Which configuration the Hopper mega-mHC runs with: plain Python, no GPU needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class MhcConfig:
    """Shape of one launch.

    Attributes:
        BLOCK_M: tokens of a program: 16, 32, 64 or 128.
        TILE_K: columns of a tile: 32, 64 or 128. A program holds H / NUM_KSPLIT columns, as tiles.
        NUM_KSPLIT: programs that share a block of tokens.
        NUM_WARPS: warps of a program: 4, 8 or 16 (the tensor cores take groups of four).
        NUM_STAGES: tiles in flight in the main loop.
        FINISH_K: columns that a program normalises at a time, at most H / NUM_KSPLIT.
        GATE_TOKENS: tokens whose gates one program computes, a power of two; few is quick for a
            small batch, all of BLOCK_M disturbs the fewest programs of a large one.
        MAX_REGS: register cap of a thread, or 0 for the compiler's choice.
        SPIN: polls before a program hands its tile to the last arriver; 0 hands off at once.
        STREAM: mark the streams as first to leave the L2 (they are larger than it).
    """

    BLOCK_M: int
    TILE_K: int
    NUM_KSPLIT: int
    NUM_WARPS: int
    NUM_STAGES: int = 1
    FINISH_K: int = 64
    GATE_TOKENS: int = 1
    MAX_REGS: int = 0
    SPIN: int = 1 << 14
    STREAM: bool = False

    def check(self, hidden: int) -> None:
        """Raise ValueError for a value no build of the kernel takes at this hidden size."""
        allowed: dict[str, tuple[int, ...]] = {
            "BLOCK_M": (16, 32, 64, 128),
            "TILE_K": (32, 64, 128),
            "NUM_WARPS": (4, 8, 16),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name} is one of {values}, not {getattr(self, name)!r}")
        columns = hidden // self.NUM_KSPLIT if self.NUM_KSPLIT > 0 else 0
        whole = columns > 0 and hidden % self.NUM_KSPLIT == 0 and columns % self.TILE_K == 0
        if not whole or columns & (columns - 1):
            raise ValueError(
                f"NUM_KSPLIT = {self.NUM_KSPLIT!r} must cut H = {hidden} into parts of a power of "
                f"two columns, at least TILE_K = {self.TILE_K}"
            )
        for name, least in (("FINISH_K", 32), ("GATE_TOKENS", 1)):
            value = getattr(self, name)
            if value < least or value & (value - 1):
                raise ValueError(f"{name} is a power of two of at least {least}, not {value!r}")
        if self.GATE_TOKENS > self.BLOCK_M:
            raise ValueError(f"GATE_TOKENS = {self.GATE_TOKENS} exceeds BLOCK_M = {self.BLOCK_M}")
        if self.MAX_REGS < 0 or self.SPIN < 0:
            raise ValueError("MAX_REGS and SPIN must not be negative")


def choose(tokens: int, hidden: int, sm_count: int) -> MhcConfig:
    """The configuration for a call, tuned on an H200 at H = 5120 (every output alike).

    Args:
        tokens: T.
        hidden: H.
        sm_count: multiprocessors of the device.

    Returns:
        A configuration that ``check`` accepts.

    Raises:
        ValueError: H is not a multiple of 32.
    """
    if tokens <= 384:  # latency: many small programs, gates spread over them
        config = MhcConfig(BLOCK_M=32, TILE_K=64, NUM_KSPLIT=80, NUM_WARPS=4)
    elif tokens <= 32 * sm_count:  # under a wave of the larger blocks below
        config = MhcConfig(
            BLOCK_M=32, TILE_K=32, NUM_KSPLIT=20, NUM_WARPS=4, NUM_STAGES=2, MAX_REGS=168,
            STREAM=True,
        )  # fmt: skip
    else:
        config = MhcConfig(
            BLOCK_M=64, TILE_K=32, NUM_KSPLIT=10, NUM_WARPS=8, NUM_STAGES=3, FINISH_K=128,
            GATE_TOKENS=64, MAX_REGS=128, STREAM=True,
        )  # fmt: skip
    return fit(config, hidden)


def fit(config: MhcConfig, hidden: int) -> MhcConfig:
    """The same configuration with the nearest TILE_K and NUM_KSPLIT that divide ``hidden``."""
    if hidden % 32:
        raise ValueError(f"H must be a multiple of 32, not {hidden}")
    tile = max(t for t in (32, 64, 128) if t <= config.TILE_K and hidden % t == 0)
    whole = hidden & -hidden
    parts = [hidden // c for c in (tile << i for i in range(16)) if c <= whole]
    splits = min(parts, key=lambda s: abs(s - config.NUM_KSPLIT))
    return MhcConfig(**{**asdict(config), "TILE_K": tile, "NUM_KSPLIT": splits})


def override(config: MhcConfig, changes: Mapping[str, Any]) -> MhcConfig:
    """``config`` with some keys replaced.

    Raises:
        ValueError: an unknown key.
    """
    known = [f.name for f in fields(MhcConfig)]
    unknown = sorted(set(changes) - set(known))
    if unknown:
        raise ValueError(f"unknown config key {unknown[0]!r}; known keys: {', '.join(known)}")
    return MhcConfig(**{**asdict(config), **changes})
