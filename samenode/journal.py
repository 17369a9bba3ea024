"""The campaign's diary: append-only, on disk before the next step is taken."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def now() -> str:
    """The current time, ISO 8601, UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Journal:
    """``journal.jsonl``: one JSON object a line with ``t`` (ISO 8601 UTC) and ``event``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, event: str, **fields: Any) -> None:
        """Append one event and force it to disk."""
        line = json.dumps({"t": now(), "event": event, **fields}, ensure_ascii=False)
        with self.path.open("ab") as handle:
            # A kill can leave half a line; the next event must not be glued to it.
            if handle.tell() and not self.path.read_bytes().endswith(b"\n"):
                handle.write(b"\n")
            handle.write(line.encode() + b"\n")
            handle.flush()
            os.fsync(handle.fileno())

    def events(self) -> list[dict[str, Any]]:
        """All whole events; a half line, left by a kill, is passed over."""
        if not self.path.exists():
            return []
        events = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                continue
        return events

    def done(self) -> set[str]:
        """The names of the points that are finished and scored."""
        return {event["point"] for event in self.events() if event["event"] == "point-done"}
