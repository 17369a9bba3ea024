"""Triton kernels for Hopper (sm_90)."""

from .host import mega_mhc, pack_fn
from .policy import MhcConfig

__all__ = ["MhcConfig", "mega_mhc", "pack_fn"]
