"""Atomic files: a reader sees the old content or the new, never a half."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO


@contextmanager
def atomic_open(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 text file that takes ``path``'s place when the block ends without an error.

    Raises:
        OSError: the folder cannot be written or the disk is full; ``path`` is then as before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8", newline="") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically, as UTF-8."""
    with atomic_open(path) as handle:
        handle.write(text)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented, valid JSON (NaN and infinity are refused) atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
