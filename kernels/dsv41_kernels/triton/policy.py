"""Which configuration the Hopper mega-mHC runs with: plain Python, no GPU needed."""

from __future__ import annotations

from dataclasses import dataclass, replace

BLOCKS = (16, 32, 64, 128)
COLUMNS = (32, 64, 128, 256)
SHARED_BYTES = 227 * 1024


def whole_fn(columns: int) -> bool:
    """Whether a program holds its fn of all four streams at once; else it goes two by two."""
    return columns <= 64


@dataclass(frozen=True)
class MhcConfig:
    """Shape of one launch.

    Attributes:
        BLOCK_M: tokens of a program: 16, 32, 64 or 128.
        NUM_KSPLIT: programs that share a block of tokens; H / NUM_KSPLIT columns each, 32 to 256
            and a power of two.
        NUM_WARPS: warps of a program: 4 or 8 (the tensor cores take groups of four).
        GATE_TOKENS: tokens whose gates one program computes, a power of two; few is quick for a
            small batch, all of BLOCK_M disturbs the fewest programs of a large one.
        MAX_REGS: register cap of a thread, or 0 for the compiler's choice.
        SPIN: polls before a program hands its tile to the last arriver; 0 hands off at once.
        STREAM: mark the streams as first to leave the L2 (they are larger than it).
        DEFER: a program finishes its share of the block that lies this many blocks before its own,
            which is complete by then if so many blocks are more than run at once (at most all
            blocks: then two passes); 0: of its own block, for which it waits.
    """

    BLOCK_M: int
    NUM_KSPLIT: int
    NUM_WARPS: int = 4
    GATE_TOKENS: int = 1
    MAX_REGS: int = 0
    SPIN: int = 1 << 14
    STREAM: bool = False
    DEFER: int = 0

    def check(self, hidden: int) -> None:
        """Raise ValueError for a value no build of the kernel takes at this hidden size."""
        for name, values in (("BLOCK_M", BLOCKS), ("NUM_WARPS", (4, 8))):
            if getattr(self, name) not in values:
                raise ValueError(f"{name} is one of {values}, not {getattr(self, name)!r}")
        if self.NUM_KSPLIT not in _splits(hidden):
            raise ValueError(
                f"NUM_KSPLIT = {self.NUM_KSPLIT!r} must cut H = {hidden} into parts of 32, 64, "
                "128 or 256 columns"
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
        if self.MAX_REGS < 0 or self.SPIN < 0 or self.DEFER < 0:
            raise ValueError("MAX_REGS, SPIN and DEFER must not be negative")

    def shared_bytes(self, columns: int) -> int:
        """What the streams, y, fn and x1 take (reductions take little more)."""
        tiles = (5 if self.DEFER else 6) * self.BLOCK_M + (4 if whole_fn(columns) else 2) * 64
        return 2 * columns * tiles


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
        config = MhcConfig(BLOCK_M=16 if tokens <= 32 else 32, NUM_KSPLIT=hidden // 64)
    else:
        splits = max(1, hidden // 128)
        config = MhcConfig(
            BLOCK_M=64, NUM_KSPLIT=splits, NUM_WARPS=8, GATE_TOKENS=32, MAX_REGS=128, STREAM=True,
            DEFER=-(-6 * sm_count // splits),  # three waves of two programs a multiprocessor
        )  # fmt: skip
    return fit(config, hidden)


def _splits(hidden: int) -> list[int]:
    """Every NUM_KSPLIT that cuts ``hidden`` into parts the kernel takes, the finest first."""
    return [hidden // c for c in COLUMNS if hidden % c == 0]


def fit(config: MhcConfig, hidden: int) -> MhcConfig:
    """The same configuration with the nearest NUM_KSPLIT that ``hidden`` allows."""
    if hidden % 32:
        raise ValueError(f"H must be a multiple of 32, not {hidden}")
    splits = min(_splits(hidden), key=lambda s: abs(s - config.NUM_KSPLIT))
    block = max(config.BLOCK_M, 4 * 256 * splits // hidden)  # work for four warps
    warps = 8 if config.NUM_WARPS == 8 and block * hidden // splits >= 8 * 256 else 4
    return replace(config, BLOCK_M=block, NUM_KSPLIT=splits, NUM_WARPS=warps)
