"""Read an agentic vLLM entry of InferenceX's own master files as a recipe of ours.

InferenceX keeps server flags in shell scripts, not in the entry, so an imported recipe has the
parallel configs and concurrencies, and arms that differ in nothing yet: the arms are for its new
owner to write.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from recipes.schema import Recipe
from recipes.strict import Where, explain, load_yaml
from samenode.errors import UserError

_TOP = {"image", "model", "model-prefix", "precision", "framework", "runner", "multinode"}
_SPACE = {"tp", "pp", "ep", "spec-decoding", "kv-offloading", "conc-list", "conc-start", "conc-end"}
_ACCELERATOR = {"mi": "rocm", "h": "cuda", "b": "cuda", "gb": "cuda"}


@dataclass(frozen=True)
class Imported:
    """A recipe's YAML text, and what of the entry did not come over (one sentence each)."""

    text: str
    dropped: tuple[str, ...]


def import_entry(path: Path, key: str) -> Imported:
    """Import entry ``key`` of the InferenceX file ``path``.

    Raises:
        UserError: no such entry, it is not an agentic vLLM entry, or its values break the schema.
    """
    data, lines = load_yaml(path)
    if not isinstance(data, dict) or not isinstance(data.get(key), dict):
        near = difflib.get_close_matches(key, [str(k) for k in data or ()], n=1, cutoff=0.3)
        hint = f"did you mean '{near[0]}'?" if near else "name one of its top-level keys"
        raise UserError(f"{path}: no entry '{key}'; {hint}")
    entry: dict[str, Any] = data[key]
    agentic = (entry.get("scenarios") or {}).get("agentic-coding")
    if entry.get("framework") != "vllm" or not agentic or entry.get("multinode"):
        raise UserError(
            f"{path}:{lines[(key,)]}: entry '{key}' is not a single-node agentic vLLM recipe; "
            "only those can be imported"
        )
    dropped: list[str] = []
    recipe: dict[str, Any] = {name: entry[name] for name in entry if name in _TOP}
    dropped += [
        f"{name}: not a field of ours" for name in entry if name not in {*_TOP, "scenarios"}
    ]
    dropped += [
        f"scenarios.{name}: only agentic-coding is replayed"
        for name in entry["scenarios"]
        if name != "agentic-coding"
    ]
    runner = str(entry.get("runner", "")).removeprefix("cluster:")
    recipe["accelerator"] = next(
        (
            acc
            for start, acc in sorted(_ACCELERATOR.items(), reverse=True)
            if runner.startswith(start)
        ),
        "cuda",
    )
    methods: set[str] = set()
    scenarios = []
    for number, scenario in enumerate(agentic):
        where = f"agentic-coding[{number}]"
        dropped += [
            f"{where}.{name}: not a field of ours" for name in scenario if name != "search-space"
        ]
        spaces = []
        for index, space in enumerate(scenario.get("search-space") or []):
            place = f"{where}.search-space[{index}]"
            if space.get("kv-offloading", "none") == "none":
                spaces.append(_space(space, place, dropped, methods))
            else:
                dropped.append(f"{place}: KV offloading is not supported")
        if spaces:
            scenarios.append({"search-space": _merged(spaces)})
    if not scenarios:
        raise UserError(
            f"{path}:{lines[(key,)]}: every config of '{key}' offloads KV, which is not supported"
        )
    recipe["scenarios"] = {"agentic-coding": scenarios}
    recipe["arms"] = {"off": {"baseline": True}, "on": {}}
    if methods:
        recipe["speculative"] = {
            name: {
                phase: {"method": name, "num_speculative_tokens": 1}
                for phase in ("throughput", "accuracy")
            }
            for name in sorted(methods)
        }
        dropped.append(
            "speculative settings: InferenceX keeps them in its shell scripts; fill in "
            f"speculative.{', speculative.'.join(sorted(methods))}"
        )
    dropped.append("server flags and environment: InferenceX keeps them in its shell scripts")
    try:
        Recipe.model_validate({"name": key, **recipe})
    except ValidationError as error:
        shifted: dict[Where, int] = {(): lines[(key,)]}
        shifted |= {where[1:]: line for where, line in lines.items() if where[:1] == (key,)}
        raise UserError(explain(error, path, shifted)) from error
    header = f"# Imported from InferenceX's entry {key}. Not carried over:\n"
    header += "".join(f"#   {line}\n" for line in dropped)
    return Imported(header + yaml.safe_dump(recipe, sort_keys=False), tuple(dropped))


def _space(
    space: dict[str, Any], where: str, dropped: list[str], methods: set[str]
) -> dict[str, Any]:
    """One search-space entry; attention data parallelism becomes counted replicas."""
    kept = {k: v for k, v in space.items() if k in _SPACE}
    if space.get("dp-attn"):
        kept |= {"tp": 1, "dp": space.get("tp", 1)}
        dropped.append(f"{where}.dp-attn: written as tp 1, dp {kept['dp']}")
    dropped += [
        f"{where}.{name}: not a field of ours" for name in space if name not in {*_SPACE, "dp-attn"}
    ]
    if kept.get("spec-decoding", "none") != "none":
        methods.add(kept["spec-decoding"])
    return kept


def _merged(spaces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """InferenceX may list one parallel config several times; ours holds each once."""
    merged: dict[str, dict[str, Any]] = {}
    for space in spaces:
        identity = str(sorted((k, v) for k, v in space.items() if not k.startswith("conc")))
        if identity in merged and "conc-list" in space and "conc-list" in merged[identity]:
            merged[identity]["conc-list"] = sorted(
                {*merged[identity]["conc-list"], *space["conc-list"]}
            )
        else:
            merged[identity if identity not in merged else f"{identity}+"] = dict(space)
    return list(merged.values())
