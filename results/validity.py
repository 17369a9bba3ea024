"""What makes a row unusable. Invalid rows stay in the CSVs and out of every ratio.

``RULES`` lists every rule; ``python -m results.validity`` writes them to ``docs/validity.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from results.accuracy_tests import widened_floor
from results.columns import Row
from samenode.files import write_text

MAX_ERROR_RATIO = 0.10
"""Errors / completed requests (the leaderboard's gate)."""

MIN_COVERAGE = 0.90
"""Least measured time / time asked for."""

ACCEPTANCE_TOLERANCE = 0.02
"""Largest distance, in tokens a step, of the acceptance length from a synthetic target."""

CACHE_HIT_TOLERANCE = 0.02
"""Largest difference of the arms' prefix-cache hit rates: 2 points."""

TOKEN_TOLERANCE = 0.01
"""Largest relative difference between the client's and the server's token counts."""

RULES: dict[str, str] = {
    "no-point": "point.json is missing or garbled: the row cannot be told from others.",
    "unfinished": "run.json is missing: the point did not finish.",
    "interrupted": "The run was stopped by hand; what is there is loaded and flagged.",
    "client-failed": "aiperf or lm-eval ended with an error.",
    "client-incomplete": "aiperf says that it gave up or was cancelled.",
    "disk-short": "The disk ran short during the point.",
    "summary": "aiperf's complete summary is missing or garbled.",
    "records": "The record file is missing or holds foreign, repeated or impossible lines, or it "
    "has holes and there is no complete summary to stand in.",
    "counters": "The server's counters are missing, go back in time or do not cover the profiling "
    "window.",
    "nothing-completed": "No request or item was completed.",
    "errors": f"Errors / completed requests above {MAX_ERROR_RATIO:.2f} (recipe: "
    "`validity.max-error-ratio`).",
    "short": f"The completed requests cover less than {MIN_COVERAGE:.0%} of the time asked for.",
    "token-counts": "The client's token counts and the server's differ by more than "
    f"{TOKEN_TOLERANCE:.0%}.",
    "acceptance": f"The synthetic acceptance length is more than {ACCEPTANCE_TOLERANCE} tokens off "
    "its target (recipe: `validity.acceptance-tolerance`).",
    "kernel-missing": "A kernel that the arm must dispatch did not run in the profiling window.",
    "kernel-in-off-arm": "A kernel ran in an arm that must not dispatch it.",
    "server-died": "The server ended during the point.",
    "server-restarted": "A counter of the server fell during the profiling window.",
    "sampler-gap": "The node sampler wrote nothing, or did not see a device for more than 3 s.",
    "telemetry-missing": "A GPU, its throttle reasons or its processes could not be read. What is "
    "not known does not count as clean.",
    "throttled": "Clocks were held down for more than 1 % of the point.",
    "power-limit-changed": "A GPU's power limit was changed during the point.",
    "cpu-steal": "A hypervisor withheld more than 2 % of the CPU time wanted.",
    "foreign-process": "A process that is not the server's had memory on a GPU.",
    "gsm8k": "lm-eval's files are missing, garbled or disagree with each other.",
    "floor": "The score is under the recipe's floor, which is widened by the binomial error when "
    "only a part of the items was run.",
    "cache-hit": f"The prefix-cache hit rates of a pair differ by more than "
    f"{100 * CACHE_HIT_TOLERANCE:.0f} points (recipe: `validity.cache-hit-tolerance`; null where "
    "the arms differ in caching on purpose).",
    "environment": "The image or the package versions of a pair's servers differ.",
    "protocol": "The GSM8K protocols of a pair differ.",
}
"""Rule -> when it is broken. ``serve.samples`` and the campaign find some, ``results`` the rest."""

PAIR_RULES = ("cache-hit", "environment", "protocol")


@dataclass
class Findings:
    """Rules that a row breaks, each with a sentence that says how."""

    items: list[tuple[str, str]] = field(default_factory=list)

    def add(self, rule: str, detail: str) -> None:
        """Note that ``rule`` is broken; the same finding counts once."""
        item = (rule, detail.rstrip("."))
        if item not in self.items:
            self.items.append(item)

    def close(self, row: Row, folder: Path) -> Row:
        """Write the verdict into ``row`` and return it; paths are told from ``folder``."""
        reasons = "; ".join(f"{rule}: {detail}" for rule, detail in self.items)
        row["valid"] = not self.items
        row["invalid_reasons"] = reasons.replace(f"{folder}/", "") or None
        return row


def check_serving(row: Row, settings: Mapping[str, Any], findings: Findings) -> None:
    """Rules that an agentx row must keep by itself.

    ``settings`` are the recipe's ``validity``: ``max_error_ratio``, ``acceptance_tolerance``.
    """
    completed, errors = number(row, "completed"), number(row, "errors")
    if not completed:
        findings.add("nothing-completed", "no profiled request succeeded")
    limit = _setting(settings, "max_error_ratio", MAX_ERROR_RATIO)
    if completed and errors and errors / completed > limit:
        findings.add("errors", f"{errors:.0f} errors to {completed:.0f} completed, above {limit}")
    coverage = number(row, "coverage")
    if completed and row.get("total_throughput") is None:
        findings.add("short", "the requests cover no time, so there is no throughput")
    if coverage is not None and coverage < MIN_COVERAGE:
        findings.add("short", f"requests cover {coverage:.0%} of the time asked for")
    target, length = number(row, "target_acceptance_length"), number(row, "acceptance_length")
    if row.get("rejection") == "synthetic" and target is not None:
        tolerance = _setting(settings, "acceptance_tolerance", ACCEPTANCE_TOLERANCE)
        if length is None:
            findings.add("acceptance", "synthetic acceptance was asked for and none was counted")
        elif abs(length - target) > tolerance:
            findings.add("acceptance", f"length {length:.3f}, more than {tolerance} off {target}")


def check_dispatch(
    dispatched: Mapping[str, float], point: Mapping[str, Any], findings: Findings
) -> None:
    """Kernels that ran (name -> dispatches in the window) against ``must_dispatch`` and
    ``must_not_dispatch`` of point.json."""
    for kernel in point.get("must_dispatch") or ():
        if not dispatched.get(kernel):
            findings.add("kernel-missing", f"{kernel} was not dispatched")
    for kernel in point.get("must_not_dispatch") or ():
        if dispatched.get(kernel):
            findings.add("kernel-in-off-arm", f"{kernel} ran {dispatched[kernel]:.0f} times")


def check_floor(row: Row, findings: Findings) -> None:
    """Strict and flexible score against the recipe's floor, widened for fewer items."""
    floor, items = number(row, "gsm8k_floor"), row.get("gsm8k_n")
    if not floor or not isinstance(items, int) or not items:
        return
    widened = widened_floor(floor, items)
    for name in ("strict", "flexible"):
        correct = row.get(f"gsm8k_{name}_correct")
        if isinstance(correct, int) and not widened.passes(correct):
            findings.add(
                "floor",
                f"{name} {correct} of {items}, and the floor {floor} needs {widened.needed}",
            )


def check_arms(rows: Iterable[Row]) -> list[Row]:
    """Rows with the rules applied that need both arms of a pair. The rows given stay unchanged.

    The row that departs from slot 0's is marked, which takes the pair out of every ratio and
    leaves slot 0 to the other arms. Applying it again changes nothing.
    """
    checked = [dict(row) for row in rows]
    base = {_pair(row): row for row in checked if row.get("slot") == 0}
    for row in checked:
        other = base.get(_pair(row))
        if row.get("slot") and other is not None:
            for rule, detail in _departures(row, other):
                _mark(row, f"{rule}: {detail}")
    return checked


def _pair(row: Row) -> tuple[object, ...]:
    return tuple(row.get(k) for k in ("campaign", "kind", "config", "conc", "repeat"))


def _departures(row: Row, base: Row) -> Iterable[tuple[str, str]]:
    tolerance = number(row, "cache_hit_tolerance")
    rates = number(base, "prefix_cache_hit_rate"), number(row, "prefix_cache_hit_rate")
    if tolerance is not None and rates != (None, None):
        shown = " and ".join("none" if r is None else f"{r:.3f}" for r in rates)
        if None in rates or abs((rates[0] or 0.0) - (rates[1] or 0.0)) > tolerance:
            yield "cache-hit", f"hit rates of slot 0 and slot {row['slot']} are {shown}"
    for name in ("image", "server"):
        if row.get(name) != base.get(name):
            yield "environment", f"{name} is {row.get(name)}, slot 0 has {base.get(name)}"
    if row.get("gsm8k_protocol") != base.get("gsm8k_protocol"):
        yield "protocol", "the GSM8K protocol differs from slot 0's"


def _mark(row: Row, reason: str) -> None:
    before = str(row.get("invalid_reasons") or "")
    if reason not in before.split("; "):
        row["invalid_reasons"] = f"{before}; {reason}" if before else reason
    row["valid"] = False


def number(row: Row, name: str) -> float | None:
    """A numeric cell; None when it is empty."""
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else None


def _setting(settings: Mapping[str, Any], name: str, default: float) -> float:
    value = settings.get(name)
    return default if value is None else float(value)


def markdown() -> str:
    """The text of ``docs/validity.md``."""
    lines = [
        "# Validity",
        "",
        "Generated from `results/validity.py` by `python -m results.validity`; do not edit.",
        "",
        "A row that breaks a rule is invalid: it stays in the CSVs with its reasons in the column "
        "`invalid_reasons`, it enters no ratio, and the campaign ends with a non-zero exit code. "
        "The rules "
        + ", ".join(f"`{rule}`" for rule in PAIR_RULES)
        + " compare the two rows of a pair and mark the one that is not slot 0.",
        "",
        "| rule | broken when |",
        "| --- | --- |",
        *(f"| `{rule}` | {when} |" for rule, when in RULES.items()),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Rewrite ``docs/validity.md`` of this checkout."""
    write_text(Path(__file__).parent.parent / "docs" / "validity.md", markdown())


if __name__ == "__main__":
    main()
