"""FlyDSL kernels for gfx950 (MI355X). Importing this needs neither FlyDSL nor a GPU."""

from .host import mega_mhc, pack_fn
from .policy import MhcConfig, token_buckets

__all__ = ["MhcConfig", "mega_mhc", "pack_fn", "token_buckets"]
