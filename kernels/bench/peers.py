"""The seam by other means, for the bench: torch, and the public seams of aiter, vLLM and SGLang.

A peer takes the bench's inputs by name and returns (residual, norm, pre, post, comb), the whole
bf16 post seam of ``reference.mhc``. Whatever it derives from weights alone is made on first use.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import statistics
import sys
import tempfile
import types
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from dsv41_kernels.reference.interface import RELEASED, STREAMS
from dsv41_kernels.reference.mhc import collapse, gates, post_mix, rms_norm
from graphs import Call, Graph


class PeerError(Exception):
    """A peer that was asked for cannot be used here."""


class Peer(Protocol):
    """What the bench needs of a public seam.

    Attributes:
        name: as in the CSV.
        about: what environment.json keeps: versions, configurations.
    """

    name: str
    about: dict[str, Any]

    def calls(self, sets: list[dict[str, Any]], tokens: int) -> list[Call]:
        """One call for each input set, tuned or prepared for this token count."""


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

    Raises:
        PeerError: the file cannot be read.
    """

    name = "aiter triton"

    def __init__(self, path: Path) -> None:
        try:
            source = path.read_text()
        except OSError as error:
            raise PeerError(f"--aiter-kernel {path}: {error.strerror}; name the file") from error
        source = source.replace("triton.language.extra.hip", "triton.language.extra.cuda")
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
        self.about: dict[str, Any] = {"configs": {}}

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

    def calls(self, sets: list[dict[str, Any]], tokens: int) -> list[Call]:
        """Calls of the fastest candidate, chosen by graph replay over up to 16 inputs."""
        candidates = self.candidates(tokens)
        times = []
        for config in candidates:
            graph = Graph([partial(self, a, config) for a in sets[:16]])
            times.append(statistics.median(graph.replay() for _ in range(7)))
        best = candidates[times.index(min(times))]
        self.about["configs"][tokens] = best
        return [partial(self, a, best) for a in sets]


def load(package: str, *modules: str) -> list[Any]:
    """The modules of an installed package.

    Raises:
        PeerError: one of them does not import.
    """
    try:
        return [importlib.import_module(f"{package}.{name}") for name in modules]
    except Exception as error:  # another package's import can fail in any way
        raise PeerError(
            f"the peer {package} does not import here ({error}); "
            f"install {package} or leave it out of --peers"
        ) from error


def versions(*packages: str) -> dict[str, Any]:
    """Versions of installed packages, by name."""
    return {name: importlib.metadata.version(name) for name in packages}


class VllmSeam:
    """vLLM's DeepSeek-V4.1 seam on Hopper: TileLang kernels and DeepGEMM's TF32 projection.

    Two launches up to 32 tokens (post mix with projection; gates, collapse and norm), three above
    (post mix; projection; gates, collapse and norm). Without DeepGEMM vLLM projects by TileLang;
    ``about`` says which of the two it was.

    Raises:
        PeerError: vLLM or TileLang does not import.
    """

    name = "vllm"

    def __init__(self) -> None:
        mhc = "model_executor.kernels.mhc"
        seam, _, gemm = load(
            "vllm", f"{mhc}.tilelang", f"{mhc}.tilelang_kernels", "utils.deep_gemm"
        )
        self.seam = seam.mhc_fused_post_pre_delayed_tilelang
        projection = "DeepGEMM" if gemm.is_deep_gemm_supported() else "TileLang"
        self.about = versions("vllm", "tilelang") | {"projection": projection}

    def __call__(self, a: dict[str, Any]) -> tuple[Tensor, ...]:
        p = RELEASED
        residual, post, comb, norm, pre, _ = self.seam(
            a["y"], a["R"], a["post"], a["comb"], a["fn"], a["scale"], a["base"],
            p.rms_eps, p.pre_eps, p.sinkhorn_eps, p.post_mult, p.sinkhorn_iters,
            pre_mix=a["pre"], norm_weight=a["norm_w"], norm_eps=p.norm_eps,
        )  # fmt: skip
        return residual, norm, pre, post.squeeze(-1), comb

    def calls(self, sets: list[dict[str, Any]], tokens: int) -> list[Call]:
        return [partial(self, a) for a in sets]


class SglangSeam:
    """SGLang's DeepSeek-V4.1 seam on Hopper: Triton kernels, TileLang's post mix above 64 tokens.

    Four or five launches (post mix; projection; gates; collapse and norm), dispatched as in
    ``sglang.srt.models.deepseek_v4_mhc``: up to 64 tokens, SGLang's decode, the gates run on a
    second stream beside collapse and norm. One difference, in SGLang's favour: from 97 to 4095
    tokens the collapse and the norm are one kernel here, two in SGLang.

    Raises:
        PeerError: SGLang does not import.
    """

    name = "sglang"

    def __init__(self) -> None:
        ops = "kernels.ops.layernorm"
        self.mhc, split, combine = load(
            "sglang", f"{ops}.mhc", f"{ops}.mhc_post_split_h", f"{ops}.hc_combine_norm"
        )
        self.post_small, self.combine = split.mhc_post_split_h, combine.hc_combine_norm
        self.fn_parts = WeakTensorKeyDictionary()
        self.side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.about = versions("sglang", "tilelang")

    def gates(self, x: Tensor, a: dict[str, Any]) -> tuple[Tensor, ...]:
        """(pre, post, comb) from x [T, 4H]."""
        p = RELEASED
        fn, scale, base = a["fn"], a["scale"], a["base"]
        if len(x) == 1:
            return tuple(
                self.mhc.hc_mix_stats_sinkhorn(
                    x, fn, scale, base, STREAMS, p.sinkhorn_iters, p.rms_eps, p.pre_eps
                )
            )
        if len(x) >= 32:
            if fn not in self.fn_parts:
                self.fn_parts[fn] = self.mhc.split_bf16_hc_weight(fn)
            return tuple(
                self.mhc.hc_mix_stats_sinkhorn_bf16x3(
                    x, self.fn_parts[fn], scale, base, p.sinkhorn_iters, p.rms_eps, p.pre_eps
                )
            )
        mixes = self.mhc.hc_mix_stats(x, fn, p.rms_eps).unsqueeze(1)
        split = self.mhc.hc_split_sinkhorn(
            mixes, scale, base, STREAMS, p.sinkhorn_iters, p.sinkhorn_eps
        )
        return tuple(t.squeeze(1) for t in split)

    def __call__(self, a: dict[str, Any]) -> tuple[Tensor, ...]:
        small = len(a["R"]) <= 64
        mix = self.post_small if small else self.mhc.mhc_post
        residual = mix(a["y"], a["R"], a["post"], a["comb"])
        x = residual.flatten(1)
        norm_inputs = x, a["pre"], a["norm_w"], RELEASED.norm_eps
        if not small:
            return residual, self.combine(*norm_inputs), *self.gates(x, a)
        main = torch.cuda.current_stream()
        self.side.wait_stream(main)
        with torch.cuda.stream(self.side):
            next_gates = self.gates(x, a)
        norm = self.combine(*norm_inputs)
        main.wait_stream(self.side)
        return residual, norm, *next_gates

    def calls(self, sets: list[dict[str, Any]], tokens: int) -> list[Call]:
        return [partial(self, a) for a in sets]


PACKAGES: dict[str, type[VllmSeam] | type[SglangSeam]] = {"vllm": VllmSeam, "sglang": SglangSeam}
"""The peers that are installed packages, by name."""
