"""Which kernel and configuration the Hopper mega-mHC runs with: plain Python, no GPU needed."""

from __future__ import annotations

from dataclasses import dataclass, replace

BLOCKS = (16, 32, 64, 128)
COLUMNS = (32, 64, 128, 256)
SHARED_BYTES = 227 * 1024

# The persistent kernel: columns of a box of fn, tiles a finisher may lag, warps that finish.
FN_COLS = 64
RING = 8
FINISH_WARPS = 4
FEW_TOKENS = 256
"""Up to here one tile a program is quicker than programs that stay (H200, H = 5120)."""


def whole_fn(columns: int) -> bool:
    """Whether a one-tile program holds its fn of all four streams at once; else two by two."""
    return columns <= 64


def fn_boxes(columns: int) -> int:
    """Boxes of 16 rows that hold a persistent program's fn.

    The tensor cores read 64 rows from three boxes of 16; the last read runs into one more box.
    """
    return 3 * 4 * (columns // FN_COLS) + 1


@dataclass(frozen=True)
class MhcConfig:
    """Shape of one launch.

    Attributes:
        BLOCK_M: tokens of a tile: 16, 32, 64 or 128.
        NUM_KSPLIT: programs that share a block of tokens; H / NUM_KSPLIT columns each, 32 to 256
            and a power of two (PERSISTENT: 64 or 128).
        NUM_WARPS: warps that mix a tile: 4 or 8 (the tensor cores take groups of four).
        GATE_TOKENS: tokens whose gates one program computes, a power of two; few is quick for a
            small batch, many disturbs the fewest programs of a large one.
        SPIN: polls before a program hands its share to the last arriver; 0 hands off at once.
        PERSISTENT: programs stay, one a multiprocessor, and go through many blocks; else a program
            does one tile.
    """

    BLOCK_M: int
    NUM_KSPLIT: int
    NUM_WARPS: int = 4
    GATE_TOKENS: int = 1
    SPIN: int = 1 << 14
    PERSISTENT: bool = False

    def check(self, hidden: int) -> None:
        """Raise ValueError for a value no build of the kernel takes at this hidden size."""
        for name, values in (("BLOCK_M", BLOCKS), ("NUM_WARPS", (4, 8))):
            if getattr(self, name) not in values:
                raise ValueError(f"{name} is one of {values}, not {getattr(self, name)!r}")
        if self.NUM_KSPLIT not in _splits(hidden, self.PERSISTENT):
            parts = "64 or 128" if self.PERSISTENT else "32, 64, 128 or 256"
            raise ValueError(
                f"NUM_KSPLIT = {self.NUM_KSPLIT!r} must cut H = {hidden} into parts of {parts} "
                "columns"
            )
        columns = hidden // self.NUM_KSPLIT
        if self.BLOCK_M * columns < 256 * self.NUM_WARPS:
            raise ValueError(
                f"NUM_WARPS = {self.NUM_WARPS} is too many for BLOCK_M = {self.BLOCK_M} tokens of "
                f"{columns} columns: a warp takes 256 values"
            )
        used = self.shared_bytes(columns)
        if used > SHARED_BYTES:
            raise ValueError(
                f"BLOCK_M = {self.BLOCK_M} tokens of {columns} columns need {used} bytes of shared "
                f"memory, a program has {SHARED_BYTES}"
            )
        if self.GATE_TOKENS < 1 or self.GATE_TOKENS & (self.GATE_TOKENS - 1):
            raise ValueError(f"GATE_TOKENS is a power of two, not {self.GATE_TOKENS!r}")
        if self.GATE_TOKENS > self.BLOCK_M:
            raise ValueError(f"GATE_TOKENS = {self.GATE_TOKENS} exceeds BLOCK_M = {self.BLOCK_M}")
        if self.SPIN < 0:
            raise ValueError(f"SPIN must not be negative, not {self.SPIN!r}")

    def shared_bytes(self, columns: int) -> int:
        """What the streams, y, fn, x1 and gates take (reductions take up to 2 KiB more)."""
        tile = 2 * columns * self.BLOCK_M
        if self.PERSISTENT:
            return 2 * (5 * tile + 96 * self.BLOCK_M) + 32 * FN_COLS * fn_boxes(columns) + 2048
        return 6 * tile + 128 * columns * (4 if whole_fn(columns) else 2)


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
    splits = hidden // 128
    if tokens > FEW_TOKENS and hidden % 128 == 0 and 1 <= splits <= sm_count:
        return MhcConfig(
            BLOCK_M=64, NUM_KSPLIT=splits, NUM_WARPS=8, GATE_TOKENS=2 if tokens <= 512 else 32,
            SPIN=1 << 10,  # spent once a block if another kernel holds a multiprocessor
            PERSISTENT=True,
        )  # fmt: skip
    return _fit(MhcConfig(BLOCK_M=16 if tokens <= 48 else 32, NUM_KSPLIT=hidden // 64), hidden)


def _splits(hidden: int, persistent: bool = False) -> list[int]:
    """Every NUM_KSPLIT that cuts ``hidden`` into parts the kernel takes, the finest first."""
    parts = (64, 128) if persistent else COLUMNS
    return [hidden // c for c in parts if hidden % c == 0]


def _fit(config: MhcConfig, hidden: int) -> MhcConfig:
    """The same one-tile configuration with the nearest NUM_KSPLIT that ``hidden`` allows."""
    if hidden % 32:
        raise ValueError(f"H must be a multiple of 32, not {hidden}")
    splits = min(_splits(hidden), key=lambda s: abs(s - config.NUM_KSPLIT))
    block = max(config.BLOCK_M, 4 * 256 * splits // hidden)  # work for four warps
    return replace(config, BLOCK_M=block, NUM_KSPLIT=splits)
