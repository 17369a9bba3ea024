"""A GSM8K point's artefacts: scores, protocol and the outcome of every item."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from results.columns import Row
from results.counters import share
from results.records import RecordsError
from results.validity import Findings

FILTERS = {"strict": "strict-match", "flexible": "flexible-extract"}

Items = dict[str, dict[int, bool]]
"""Filter (``strict``, ``flexible``) -> lm-eval's doc_id -> whether it was answered right."""


def read_items(folder: Path) -> Items:
    """Outcome of every item of a GSM8K point, for a paired test against another arm.

    An item is known by lm-eval's ``doc_id``, so that a pairing never rests on the order.

    Raises:
        RecordsError: no samples file, more than one, or one that is damaged.
    """
    path = _only(folder / "lm_eval", "**/samples_*.jsonl")
    items: Items = {name: {} for name in FILTERS}
    names = {regex: name for name, regex in FILTERS.items()}
    with path.open(encoding="utf-8") as handle:
        for number, line in enumerate(handle, 1):
            try:
                sample = json.loads(line)
                outcomes = items[names[sample["filter"]]]
                key, right = int(sample["doc_id"]), float(sample["exact_match"]) == 1.0
            except (ValueError, KeyError, TypeError):
                raise RecordsError(
                    f"{path}, line {number}: this is no lm-eval sample; run the point again."
                ) from None
            if key in outcomes:
                raise RecordsError(
                    f"{path}, line {number}: the item was scored before; run the point again."
                )
            outcomes[key] = right
    return items


def fill(row: Row, folder: Path, findings: Findings) -> None:
    """Fill ``row`` from lm-eval's files and ``gsm8k.json``; what is wrong goes to ``findings``."""
    try:
        protocol = _object(folder / "lm_eval" / "gsm8k.json")
        results = _object(_only(folder / "lm_eval", "**/results_*.json"))
        items = read_items(folder)
    except RecordsError as error:
        findings.add("gsm8k", str(error))
        return
    row["source"] = "samples"
    count = len(items["strict"])
    row["gsm8k_n"] = count
    if not count or items["strict"].keys() != items["flexible"].keys():
        findings.add("nothing-completed", "the two filters did not score the same items")
        return
    task = _first(results.get("results"))
    for name, regex in FILTERS.items():
        right = sum(items[name].values())
        row[f"gsm8k_{name}_correct"] = right
        row[f"gsm8k_{name}"] = right / count
        reported = task.get(f"exact_match,{regex}")
        if not isinstance(reported, float) or abs(reported - right / count) > 1e-9:
            findings.add("gsm8k", f"lm-eval reports {reported} for {regex}, its samples {right}")
        stderr = task.get(f"exact_match_stderr,{regex}")
        row[f"gsm8k_{name}_stderr"] = stderr if isinstance(stderr, float) else None
    _protocol(row, protocol)


def _protocol(row: Row, data: dict[str, Any]) -> None:
    counts, protocol = data.get("counts") or {}, data.get("protocol") or {}
    asked = counts.get("items")
    row["gsm8k_empty_rate"] = share(counts.get("empty"), asked)
    row["gsm8k_truncation_rate"] = share(counts.get("truncated"), asked)
    row["gsm8k_reasoning_fallback_rate"] = share(counts.get("from_reasoning"), asked)
    row["input_tokens"], row["output_tokens"] = (
        counts.get("prompt_tokens"),
        counts.get("completion_tokens"),
    )
    few_shot, sampling = protocol.get("few_shot") or {}, protocol.get("sampling") or {}
    row["gsm8k_protocol"] = hashlib.sha256(
        json.dumps(protocol, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
    row["gsm8k_fewshot"] = few_shot.get("shots")
    row["gsm8k_fewshot_form"] = few_shot.get("form")
    row["gsm8k_max_tokens"] = sampling.get("max_tokens")
    row["gsm8k_temperature"] = sampling.get("temperature")
    row["gsm8k_top_p"] = sampling.get("top_p")
    row["gsm8k_prompts_sha256"] = protocol.get("prompts_sha256")
    row["gsm8k_endpoint"] = protocol.get("endpoint")
    commit = protocol.get("lm_eval_commit")
    version = protocol.get("lm_eval_version")
    row["gsm8k_lm_eval"] = f"{version} ({commit})" if commit else version


def _object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RecordsError(f"{path} is missing: the evaluation did not finish.") from None
    except ValueError:
        raise RecordsError(f"{path} is no complete JSON; run the point again.") from None
    if not isinstance(data, dict):
        raise RecordsError(f"{path} is no JSON object; run the point again.")
    return data


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise RecordsError(
            f"{folder} holds {len(found)} files {pattern}, not one; run the point again."
        )
    return found[0]


def _first(results: Any) -> dict[str, Any]:
    """The scores of the only task."""
    if isinstance(results, dict) and len(results) == 1:
        task = next(iter(results.values()))
        if isinstance(task, dict):
            return task
    return {}
