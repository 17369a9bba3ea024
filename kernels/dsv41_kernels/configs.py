"""What the kernels' configurations, each a frozen dataclass of its own, have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

Config = TypeVar("Config")


def override(config: Config, changes: Mapping[str, Any]) -> Config:
    """``config`` with some keys replaced.

    Raises:
        ValueError: an unknown key.
    """
    known = [f.name for f in fields(config)]  # type: ignore[arg-type]
    unknown = sorted(set(changes) - set(known))
    if unknown:
        raise ValueError(f"unknown config key {unknown[0]!r}; known keys: {', '.join(known)}")
    return replace(config, **changes)  # type: ignore[type-var]
