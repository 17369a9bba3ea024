"""The seam by other means, for the bench: torch, and aiter's two-kernel Triton seam."""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
import types
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsv41_kernels.reference.interface import RELEASED
from dsv41_kernels.reference.mhc import collapse, gates, post_mix, rms_norm
from graphs import Graph


def eager_seam(
    R: Tensor, y: Tensor, pre: Tensor, post: Tensor, comb: Tensor,
    fn: Tensor, scale: Tensor, base: Tensor, norm_w: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The reference's steps without its checks, so that torch.compile sees one graph."""
    f32 = torch.float32
    residual = post_mix(R, y, post, comb, f32)
    next_gates = gates(residual, fn, scale, base, RELEASED, f32)
    x1 = collapse(residual, pre, f32)
    norm = rms_norm(x1, norm_w, RELEASED.norm_eps, f32).bfloat16()
    return residual, norm, *next_gates


class AiterSeam:
    """aiter's Triton seam (two launches), tuned here: aiter ships no configuration for Hopper.

    Args:
        path: the kernel file. Its ROCm math import is read as CUDA's; nothing else is changed.
    """

    def __init__(self, path: Path) -> None:
        source = path.read_text().replace("triton.language.extra.hip", "triton.language.extra.cuda")
        # Triton reads a kernel's source from its file.
        file = Path(tempfile.mkdtemp()) / "aiter_seam.py"
        file.write_text(source)
        helper = types.ModuleType("aiter.ops.triton.utils._triton.kernel_repr")
        helper.make_kernel_repr = lambda name, keys: None  # type: ignore[attr-defined]
        sys.modules[helper.__name__] = helper
        for depth in range(1, 5):
            parent = ".".join(helper.__name__.split(".")[:depth])
            sys.modules.setdefault(parent, types.ModuleType(parent))
        sys.modules.setdefault("aiter.ops.triton.utils._triton", types.ModuleType("_triton"))
        spec = importlib.util.spec_from_file_location("aiter_seam", file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        prefix = "_mhc_fused_post_pre_delayed_rmsnorm_"
        self.main = getattr(module, prefix + "main_kernel")
        self.reduce = getattr(module, prefix + "reduce_kernel")
        self.chosen: dict[int, dict[str, int]] = {}

    @staticmethod
    def candidates(tokens: int) -> list[dict[str, int]]:
        """Configurations worth trying at a token count."""
        keys = ("BLOCK_M", "TILE_K", "NUM_KSPLIT", "num_warps", "num_stages")
        small = [(16, 64, 40, 4, 1), (16, 64, 80, 4, 1), (16, 32, 40, 4, 2), (16, 64, 20, 4, 2)]
        large = [(16, 64, 20, 4, 2), (32, 64, 10, 4, 2), (32, 32, 10, 4, 2), (16, 64, 5, 4, 2)]
        large += [(64, 32, 8, 8, 2), (32, 64, 5, 8, 2)]
        return [dict(zip(keys, v, strict=True)) for v in (small if tokens <= 64 else large)]

    def __call__(self, a: dict[str, Any], config: dict[str, int]) -> tuple[Tensor, ...]:
        R = a["R"]
        tokens, _, hidden = R.shape
        splits = config["NUM_KSPLIT"]
        post, pre = R.new_empty(2, tokens, 4, dtype=torch.float32).unbind(0)
        comb = R.new_empty(tokens, 4, 4, dtype=torch.float32)
        partial = R.new_empty(tokens, splits, 32, dtype=torch.float32)
        residual, norm = torch.empty_like(R), torch.empty_like(a["y"])
        blocks = -(-tokens // config["BLOCK_M"])
        self.main[(blocks, splits)](
            R, a["y"], a["post"], a["comb"], a["pre"], a["fn"], residual, norm, partial, tokens,
            H=hidden, HAS_POST=True, **config,
        )  # fmt: skip
        p = RELEASED
        self.reduce[(tokens,)](
            partial, a["scale"], a["base"], pre, post, comb, norm, a["norm_w"],
            p.rms_eps, p.pre_eps, p.sinkhorn_eps, p.post_mult, p.norm_eps,
            H=hidden, NUM_KSPLIT=splits, NUM_SINKHORN_ITERS=p.sinkhorn_iters, BLOCK_C=1024,
            num_warps=4,
        )  # fmt: skip
        return residual, norm, pre, post, comb

    def tune(self, sets: list[dict[str, Any]], tokens: int) -> dict[str, int]:
        """The fastest candidate at this token count, by graph replay over up to 16 inputs."""
        candidates = self.candidates(tokens)
        times = []
        for config in candidates:
            graph = Graph([partial(self, a, config) for a in sets[:16]])
            times.append(statistics.median(graph.replay() for _ in range(7)))
        self.chosen[tokens] = candidates[times.index(min(times))]
        return self.chosen[tokens]
