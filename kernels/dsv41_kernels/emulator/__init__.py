"""Runs FlyDSL kernels compiled for gfx950 (MI355X) on any CPU, instruction by instruction.

    from dsv41_kernels.emulator import emulated, gfx950

    with emulated(gfx950(seed=1)) as machine:
        launch(a, b, out, n)          # a FlyDSL @jit launcher; CPU tensors in and out
    print(machine.launches[-1].instructions)

What is modelled and what is not: `kernels/docs/emulator.md`.
"""

from .codeobject import CodeObject, Kernel, Residency
from .faults import (
    BudgetExceeded,
    CodeObjectError,
    DataRace,
    Deadlock,
    EmulatorError,
    InvalidOperation,
    KernelFault,
    MissingToolError,
    MissingWait,
    OutOfBounds,
    UninitializedRead,
    UnsupportedInstruction,
)
from .machine import Emulator, Gfx950, LaunchRecord, LoadedModule, gfx950
from .runtime import current, emulated

__all__ = [
    "BudgetExceeded",
    "CodeObject",
    "CodeObjectError",
    "DataRace",
    "Deadlock",
    "Emulator",
    "EmulatorError",
    "Gfx950",
    "InvalidOperation",
    "Kernel",
    "KernelFault",
    "LaunchRecord",
    "LoadedModule",
    "MissingToolError",
    "MissingWait",
    "OutOfBounds",
    "Residency",
    "UninitializedRead",
    "UnsupportedInstruction",
    "current",
    "emulated",
    "gfx950",
]
