"""Where a campaign's figures come from, and in what the servers of its arms differed."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

from results.columns import Row
from results.provenance import read_json
from results.report_data import CampaignData, Side, slot_of

ABSENT = "not set"


@dataclass(frozen=True)
class Difference:
    """One setting in which the sides differ; ``values`` in the order of the sides."""

    what: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Word:
    """A word of a command line; ``differs`` where another side has not the same setting."""

    text: str
    differs: bool


@dataclass(frozen=True)
class ServerDiff:
    """The servers of each side for ``configs``, which all differ in the same way."""

    configs: tuple[str, ...]
    differences: tuple[Difference, ...]
    commands: tuple[tuple[Side, tuple[Word, ...]], ...]
    """The first config's command line of each side."""


def facts(data: CampaignData) -> list[tuple[str, str]]:
    """Name and value of what all rows were measured on and with; unknown ones left out."""
    node, plan = data.node, data.plan
    host, cpu = node.get("host") or {}, node.get("cpu") or {}
    gpus = [_gpu(gpu) for gpu in node.get("gpus") or []]
    found = [
        ("campaign", data.name),
        ("recipe", _recipe(data)),
        ("model", _distinct(data.rows, "model")),
        ("node", _distinct(data.rows, "node")),
        ("system", ", ".join(str(host[k]) for k in ("os", "kernel", "machine") if host.get(k))),
        ("CPU", _cpu(cpu)),
        ("GPUs", ", ".join(f"{gpus.count(gpu)} × {gpu}" for gpu in dict.fromkeys(gpus))),
        ("drivers", ", ".join(f"{k} {v}" for k, v in (node.get("drivers") or {}).items())),
        ("server", _distinct(data.rows, "server")),
        ("image", _distinct(data.rows, "image")),
        ("client", _distinct(data.rows, "client")),
        ("samenode", _samenode(plan.get("samenode"), node.get("git"))),
        ("corpus", _distinct(data.rows, "corpus")),
        ("seed", _distinct(data.rows, "seed")),
        ("seconds a point", _distinct(data.serving, "duration_s")),
        ("token counts", _distinct(data.serving, "token_count_source")),
        ("GSM8K", _distinct(data.rows, "gsm8k_lm_eval")),
        ("measured", _span(data.rows)),
    ]
    return [(name, value) for name, value in found if value]


def server_diffs(data: CampaignData) -> list[ServerDiff]:
    """In what the servers of the sides differ: environment, flags, packages; by config."""
    merged: dict[tuple[Difference, ...], list[tuple[str, dict[Side, str]]]] = {}
    for config in data.configs:
        commands: dict[Side, str] = {}
        packages: dict[Side, dict[str, str]] = {}
        for side in data.sides:
            server = _server(data, config, side)
            if server.get("command"):
                commands[side] = str(server["command"])
                packages[side] = _packages(server, data.node)
        if len(commands) < len(data.sides):
            data.missing.append(
                f"The server command of an arm at {config or 'a point'} is not there: it is not "
                "part of the provenance diff."
            )
        if len(commands) > 1:
            settings = [_settings(command) for command in commands.values()]
            found = _differences(settings) + _differences(list(packages.values()), "package ")
            merged.setdefault(tuple(found), []).append((config, commands))
    return [
        ServerDiff(
            tuple(config for config, _ in same), differences, _words(same[0][1], differences)
        )
        for differences, same in merged.items()
    ]


def _samenode(version: object, git: object) -> str:
    """Version of samenode and the commit it ran from, where the node's record knows it."""
    parts = [str(version or "")]
    if isinstance(git, dict) and git.get("revision") not in (None, "unknown"):
        changed = ", with uncommitted changes" if git.get("dirty") is True else ""
        parts.append(f"commit {str(git['revision'])[:12]}{changed}")
    return ", ".join(part for part in parts if part)


def _recipe(data: CampaignData) -> str:
    about = (data.plan.get("recipe") or {}).get("about")
    name = _distinct(data.rows, "recipe")
    fingerprint = _distinct([r for r in data.rows if r.get("fingerprint")][:1], "fingerprint")[:12]
    return ", ".join(filter(None, (name, about, fingerprint and f"fingerprint {fingerprint}")))


def _cpu(cpu: dict[str, Any]) -> str:
    if not cpu.get("model"):
        return ""
    virtual = ", virtual" if cpu.get("virtual") else ""
    return f"{cpu['model']}, {cpu.get('cores')} cores, {cpu.get('threads')} threads{virtual}"


def _gpu(gpu: object) -> str:
    return str(gpu.get("name") or "GPU") if isinstance(gpu, dict) else str(gpu)


def _distinct(rows: list[Row], name: str) -> str:
    return ", ".join(dict.fromkeys(str(row[name]) for row in rows if row.get(name) is not None))


def _span(rows: list[Row]) -> str:
    times = [
        str(row[k])[:19].replace("T", " ")
        for row in rows
        for k in ("started", "ended")
        if row.get(k)
    ]
    return f"{min(times)} to {max(times)} UTC" if times else ""


def _server(data: CampaignData, config: str, side: Side) -> dict[str, Any]:
    """server.json of the side's first launch of a config that left one."""
    for row in data.rows:
        launch = row.get("launch")
        if row.get("config") == config and slot_of(row) == side.slot and isinstance(launch, int):
            server = read_json(data.folder / "servers" / f"{launch:03}" / "server.json")
            if server:
                return server
    return {}


def _packages(server: dict[str, Any], node: dict[str, Any]) -> dict[str, str]:
    of_node = node.get("packages")
    found = server.get("packages") or (of_node.get("server") if isinstance(of_node, dict) else {})
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def _grouped(command: str) -> list[tuple[str, list[str]]]:
    """A command line as (setting, its words): ``NAME=value``, the program, each ``--flag``."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    groups: list[tuple[str, list[str]]] = []
    for word in words:
        flags = any(name.startswith("--") for name, _ in groups)
        variable = not flags and re.match(r"[A-Za-z_]\w*=", word)
        if word.startswith("--") or variable:
            groups.append((word.partition("=")[0], [word]))
        elif groups and (flags or groups[-1][0] == "program"):
            groups[-1][1].append(word)
        else:
            groups.append(("program", [word]))
    return groups


def _settings(command: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, words in _grouped(command):
        value = " ".join(words).removeprefix(name).lstrip(" =") or "set"
        values[name] = f"{values[name]}, {value}" if name in values else value
    return values


def _differences(sides: list[dict[str, str]], prefix: str = "") -> list[Difference]:
    names = dict.fromkeys(name for side in sides for name in side)
    found = []
    for name in names:
        values = tuple(side.get(name, ABSENT) for side in sides)
        if len(set(values)) > 1:
            found.append(Difference(prefix + name, values))
    return found


def _words(
    commands: dict[Side, str], differences: tuple[Difference, ...]
) -> tuple[tuple[Side, tuple[Word, ...]], ...]:
    differing = {difference.what for difference in differences}
    return tuple(
        (side, tuple(Word(shlex.join(words), name in differing) for name, words in _grouped(line)))
        for side, line in commands.items()
    )
