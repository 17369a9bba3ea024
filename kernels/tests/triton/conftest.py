"""Without a Hopper GPU the Triton tests run in Triton's interpreter, on the CPU."""

from __future__ import annotations

import os

from hopper import HOPPER

if not HOPPER:
    os.environ["TRITON_INTERPRET"] = "1"
    import interpreter

    interpreter.install()
