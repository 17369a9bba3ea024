"""Errors the emulator raises. A fault names the instruction, the wave and any address."""

from __future__ import annotations


class EmulatorError(RuntimeError):
    """Base class: the emulator cannot start, or a kernel did something the chip would not allow."""


class MissingToolError(EmulatorError):
    """A program or package the emulator needs is not installed."""


class CodeObjectError(EmulatorError):
    """The code object is not a gfx950 one, or holds something the loader does not handle."""


class KernelFault(EmulatorError):
    """A kernel misbehaved while running; `kind` is one of `KINDS`."""

    kind = "fault"


class UnsupportedInstruction(KernelFault):
    """The kernel reached an instruction the emulator does not model."""

    kind = "unsupported"


class OutOfBounds(KernelFault):
    """An access outside every registered allocation, outside LDS, or outside scratch."""

    kind = "out-of-bounds"


class UninitializedRead(KernelFault):
    """A value never written decides an address, a branch, or what a store leaves in memory."""

    kind = "uninitialized"


class MissingWait(KernelFault):
    """A register or LDS byte was used before the `s_waitcnt` that guards it."""

    kind = "missing-wait"


class DataRace(KernelFault):
    """Two waves touched the same LDS bytes between the same barriers, one of them writing."""

    kind = "race"


class Deadlock(KernelFault):
    """No wave can ever go on; the message lists where each of them waits."""

    kind = "deadlock"


class BudgetExceeded(KernelFault):
    """More wave-instructions ran than `budget` allows (a livelock, or a limit set too low)."""

    kind = "budget"


class InvalidOperation(KernelFault):
    """A trap, a jump outside the kernel, or an operand the instruction forbids."""

    kind = "invalid"


KINDS: dict[str, type[KernelFault]] = {
    cls.kind: cls
    for cls in (
        UnsupportedInstruction,
        OutOfBounds,
        UninitializedRead,
        MissingWait,
        DataRace,
        Deadlock,
        BudgetExceeded,
        InvalidOperation,
    )
}
