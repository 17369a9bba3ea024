"""What eager calls make and keep, because a graph capture must not allocate."""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableMapping

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

LOCK = threading.Lock()
"""Held while something kept is looked up or made."""


def capturing(device: torch.device) -> bool:
    """Whether the device's current stream is being captured."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def need_eager(device: torch.device, what: str) -> None:
    """Raise RuntimeError if ``what`` would have to be made inside a graph capture."""
    if capturing(device):
        raise RuntimeError(
            f"mega_mhc would have to make its {what} inside a graph capture; "
            "call it once eagerly on this stream with the same shapes first"
        )


def stream_handle(device: torch.device) -> int:
    """The device's current stream as a number; 0 on a CPU."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


class Packs:
    """``pack`` of a weight, made once for each version of each tensor and dropped with it."""

    def __init__(self, pack: Callable[[Tensor], Tensor]) -> None:
        self._pack = pack
        self._held: MutableMapping[Tensor, tuple[int | None, Tensor]] = WeakTensorKeyDictionary()

    def __call__(self, weight: Tensor) -> Tensor:
        """The packed weight.

        Raises:
            RuntimeError: it would have to be packed inside a graph capture.
        """
        version = None if weight.is_inference() else weight._version
        with LOCK:
            entry = self._held.get(weight)
            if entry is None or entry[0] != version:
                need_eager(weight.device, "packed fn")
                entry = (version, self._pack(weight))
                if weight.device.type == "cuda":
                    # Other streams will read it without waiting for this one.
                    torch.cuda.current_stream(weight.device).synchronize()
                self._held[weight] = entry
        return entry[1]
