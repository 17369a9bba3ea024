"""Every column of every CSV: name, unit, direction, formula, basis and source.

This is the single place that defines a column. The CSV headers, ``docs/columns.md`` and the
report are made from it. ``python -m results.columns`` rewrites ``docs/columns.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from samenode.files import write_text

SCHEMA = 1
"""Version of the rows below. A file with a higher one is refused."""

Value = str | int | float | bool | None
Row = dict[str, Value]

Direction = Literal["higher", "lower", "none"]
Kind = Literal["str", "int", "float", "bool"]


@dataclass(frozen=True)
class Column:
    """One column: what it means, and how a cell of it is read back from text."""

    name: str
    group: str
    formula: str
    unit: str = ""
    direction: Direction = "none"
    basis: str = ""
    source: str = ""
    kind: Kind = "float"


QUANTILES = (50, 75, 90, 95, 99)
"""Percentiles of every distribution, interpolated linearly (numpy's default)."""

SPEC_POSITIONS = 8
"""Draft positions that have a column of their own."""

GROUPS = {
    "identity": "what was run",
    "interactivity": "decode speed as one user sees it",
    "latency": "waiting times as the client sees them",
    "throughput": "work done by the server per second",
    "acceptance": "speculative decoding",
    "cache": "prefix and KV cache",
    "accuracy": "GSM8K",
    "energy": "power drawn while the requests ran",
    "accounting": "what became of every request",
    "validity": "whether the row may be used",
    "provenance": "where the row comes from",
}


def min_samples(q: int) -> int:
    """Fewest values for which the ``q``-th percentile (1..99) is shown: ceil(100 / (100 - q)).

    With fewer, not one value is expected beyond the percentile, so it would only restate the
    largest value: p50 needs 2, p75 4, p90 10, p95 20, p99 100.
    """
    return -(-100 // (100 - q))


def _identity() -> list[Column]:
    def col(name: str, formula: str, kind: Kind = "str", unit: str = "") -> Column:
        return Column(name, "identity", formula, unit=unit, source="point.json", kind=kind)

    return [
        col("campaign", "campaign id"),
        col("point", "point folder, in the order of execution"),
        col("kind", "agentx (serving) or gsm8k (accuracy); published rows also single-stream"),
        col("recipe", "recipe name"),
        col("fingerprint", "sha256 of the recipe without names and concurrency"),
        col("model", "served model"),
        col("arm", "arm of the recipe that was served"),
        col("baseline", "arm the others are compared with"),
        col("config", "parallel configuration of the recipe"),
        col("tp", "tensor parallel size (TP)", "int"),
        col("pp", "pipeline parallel size (PP)", "int"),
        col("dp", "data parallel size (DP)", "int"),
        col("ep", "expert parallel size (EP)", "int"),
        col("gpus", "tp * pp * dp", "int"),
        col("conc", "concurrency: live session trees (agentx) or requests in flight", "int"),
        col("spec_method", "speculative method, or none"),
        col("spec_tokens", "draft tokens a step", "int"),
        col("rejection", "none, standard, block or synthetic"),
        col("target_acceptance_length", "what synthetic rejection was told to reach", "float"),
        col("repeat", "number of the pair, from 1", "int"),
        col("slot", "place of the arm in the campaign's list; 0 is the baseline side", "int"),
        col("launch", "server launch of the campaign", "int"),
        col("duration_s", "profiling time asked for", "float", "s"),
        col("seed", "random seed of the client", "int"),
        col("corpus", "name of the public corpus, or synthetic:<sha256>"),
        col("canonical", "whether the run follows the leaderboard's client and corpus", "bool"),
        col("non_canonical_why", "what departs from them"),
    ]


def _serving() -> list[Column]:
    cols: list[Column] = []

    def col(
        name: str,
        group: str,
        unit: str,
        direction: Direction,
        formula: str,
        *,
        basis: str = "per request",
    ) -> None:
        cols.append(Column(name, group, formula, unit, direction, basis, "client records"))

    per_token = "per request, output tokens, per token and not per chunk"
    itl = "(last content - first content) / (output tokens - 1)"
    for q in QUANTILES:
        col(
            f"interactivity_p{q}",
            "interactivity",
            "tok/s/user",
            "higher",
            f"1 / p{q}(ITL): the slow tail of the speed, not p{q} of the rate",
            basis=per_token,
        )
    for q in QUANTILES:
        col(
            f"e2e_interactivity_p{q}",
            "interactivity",
            "tok/s/user",
            "higher",
            f"1 / p{q}(request latency / output tokens)",
            basis="per request, output tokens",
        )
    col("itl_mean_ms", "latency", "ms", "lower", f"mean of ITL = {itl}", basis=per_token)
    for q in QUANTILES:
        col(f"itl_p{q}_ms", "latency", "ms", "lower", f"p{q}(ITL)", basis=per_token)
    col("ttft_mean_ms", "latency", "ms", "lower", "mean of TTFT = first content - request start")
    for q in QUANTILES:
        col(f"ttft_p{q}_ms", "latency", "ms", "lower", f"p{q}(TTFT)")
    col("e2e_latency_mean_s", "latency", "s", "lower", "mean of last content - request start")
    for q in QUANTILES:
        col(f"e2e_latency_p{q}_s", "latency", "s", "lower", f"p{q}(last content - request start)")

    for kind, tokens in (
        ("total", "(input + output tokens)"),
        ("input", "input tokens"),
        ("output", "output tokens"),
    ):
        for per_gpu in (False, True):
            col(
                f"{kind}_throughput" + ("_per_gpu" if per_gpu else ""),
                "throughput",
                "tok/s/GPU" if per_gpu else "tok/s",
                "higher",
                f"sum of {tokens} / measured_s" + (" / gpus" if per_gpu else ""),
                basis=f"{kind} tokens",
            )
    col(
        "request_throughput",
        "throughput",
        "req/s",
        "higher",
        "completed / measured_s",
        basis="requests",
    )
    col(
        "goodput",
        "throughput",
        "req/s",
        "higher",
        "completed requests that meet every SLO of the recipe / measured_s; a request of one "
        "output token has no ITL to miss",
        basis="requests",
    )
    col(
        "goodput_fraction",
        "throughput",
        "fraction",
        "higher",
        "requests that meet every SLO / (completed + errors)",
        basis="requests",
    )
    return cols


def _server() -> list[Column]:
    cols: list[Column] = []

    def col(
        name: str,
        group: str,
        unit: str,
        direction: Direction,
        formula: str,
        *,
        basis: str,
        kind: Kind = "float",
    ) -> None:
        source = "server counters over the profiling window"
        cols.append(Column(name, group, formula, unit, direction, basis, source, kind))

    drafts = "vllm:spec_decode_num_drafts_total"
    accepted = "vllm:spec_decode_num_accepted_tokens_total"
    col(
        "acceptance_length",
        "acceptance",
        "tokens/step",
        "higher",
        f"1 + delta({accepted}) / delta({drafts}); the bonus token included",
        basis="verification steps",
    )
    col(
        "acceptance_rate",
        "acceptance",
        "fraction",
        "higher",
        "accepted_tokens / draft_tokens",
        basis="draft tokens",
    )
    for i in range(SPEC_POSITIONS):
        col(
            f"acceptance_rate_pos{i}",
            "acceptance",
            "fraction",
            "higher",
            f"delta(vllm:spec_decode_num_accepted_tokens_per_pos_total[{i}]) / drafts; "
            "positions count from 0 as the server's do",
            basis="verification steps",
        )
    col("drafts", "acceptance", "steps", "none", f"delta({drafts})", basis="steps", kind="int")
    col(
        "draft_tokens",
        "acceptance",
        "tokens",
        "none",
        "delta(vllm:spec_decode_num_draft_tokens_total)",
        basis="draft tokens",
        kind="int",
    )
    col(
        "accepted_tokens",
        "acceptance",
        "tokens",
        "none",
        f"delta({accepted})",
        basis="draft tokens",
        kind="int",
    )
    col(
        "prefix_cache_hit_rate",
        "cache",
        "fraction",
        "higher",
        "prompt tokens from a cache / all prompt tokens (vllm:prompt_tokens_by_source_total); "
        "else prefix cache hits / queries; empty when the server looks nothing up (caching off)",
        basis="input tokens",
    )
    cols.append(
        Column(
            "prefix_cache_hit_rate_client",
            "cache",
            "hit blocks / blocks of the replayed prompts, given a cache that never evicts",
            "fraction",
            "none",
            "blocks of the trace",
            "complete summary",
        )
    )
    col(
        "preemptions",
        "cache",
        "requests",
        "lower",
        "delta(vllm:num_preemptions_total)",
        basis="requests",
        kind="int",
    )
    col(
        "kv_cache_usage_max",
        "cache",
        "fraction",
        "none",
        "largest vllm:kv_cache_usage_perc of a scrape, mean over data-parallel engines",
        basis="KV cache blocks",
    )
    return cols


def _accuracy() -> list[Column]:
    cols: list[Column] = []

    def col(name: str, unit: str, direction: Direction, formula: str, kind: Kind = "float") -> None:
        cols.append(
            Column(f"gsm8k_{name}", "accuracy", formula, unit, direction, "items", "lm-eval", kind)
        )

    for name, regex in (
        ("strict", r"strict-match: `#### (\-?[0-9\.\,]+)`"),
        ("flexible", r"flexible-extract: `(-?[$0-9.,]{2,})|(-?[0-9]+)`"),
    ):
        col(name, "fraction", "higher", f"exact matches / items, {regex}, last match")
        col(f"{name}_stderr", "fraction", "none", f"standard error of gsm8k_{name}")
        col(f"{name}_correct", "items", "none", f"exact matches, {name}", "int")
    col("n", "items", "none", "items answered", "int")
    col("floor", "fraction", "none", "least score on the whole test set (recipe)")
    col("margin", "fraction", "none", "largest loss against the baseline arm accepted (recipe)")
    col("empty_rate", "fraction", "lower", "answers without text / items")
    col("truncation_rate", "fraction", "lower", "answers cut off at max_tokens / items")
    col(
        "reasoning_fallback_rate",
        "fraction",
        "none",
        "answers taken from reasoning_content because content was empty / items",
    )
    col("protocol", "", "none", "sha256 of all that must agree between arms", "str")
    col("fewshot", "examples", "none", "examples before each question", "int")
    col("fewshot_form", "", "none", "how they are sent: multi-turn chat, or one message", "str")
    col("max_tokens", "tokens", "none", "longest answer allowed", "int")
    col("temperature", "", "none", "sampling temperature")
    col("top_p", "", "none", "nucleus sampling bound")
    col("prompts_sha256", "", "none", "sha256 over all prompts sent, in item order", "str")
    col("lm_eval", "", "none", "lm-eval version and commit", "str")
    col("endpoint", "", "none", "endpoint that was asked", "str")
    return cols


def _rest() -> list[Column]:
    cols: list[Column] = []

    def col(
        name: str,
        group: str,
        formula: str,
        *,
        unit: str = "",
        direction: Direction = "none",
        source: str = "client records",
        kind: Kind = "float",
        basis: str = "",
    ) -> None:
        cols.append(Column(name, group, formula, unit, direction, basis, source, kind))

    power = "node sampler"
    col("mean_power", "energy", "mean of the summed GPU power", unit="W", source=power)
    col("energy", "energy", "mean_power * measured_s", unit="J", direction="lower", source=power)
    col(
        "joules_per_output_token",
        "energy",
        "energy / output_tokens",
        unit="J/tok",
        direction="lower",
        basis="output tokens",
        source=power,
    )
    col(
        "joules_per_total_token",
        "energy",
        "energy / (input_tokens + output_tokens)",
        unit="J/tok",
        direction="lower",
        basis="total tokens",
        source=power,
    )

    counts = {
        "records": "lines in the client's record file, all phases",
        "warmup_records": "records of warm-up, dropped",
        "warmup_errors": "records of warm-up with an error, dropped",
        "profiled": "records of the profiling phase",
        "completed": "profiled requests that succeeded: what every metric is made from",
        "errors": "profiled requests with an error, dropped from the metrics",
        "cancelled": "profiled requests cancelled, at the drain or before",
        "context_overflow_skips": "requests skipped because the context was too small",
        "single_token": "completed requests of fewer than two output tokens: TTFT but no ITL",
        "input_tokens": "input tokens of the completed requests",
        "output_tokens": "output tokens of the completed requests",
    }
    for name, formula in counts.items():
        unit = "tokens" if name.endswith("tokens") else "requests"
        col(name, "accounting", formula, unit=unit, kind="int")
    col("errors_by_category", "accounting", "errors by type and code, as JSON", kind="str")
    col(
        "error_rate",
        "accounting",
        "errors / (completed + errors)",
        unit="fraction",
        direction="lower",
    )
    col(
        "measured_s",
        "accounting",
        "max(request end) - min(request start) over completed requests",
        unit="s",
    )
    col("coverage", "accounting", "measured_s / duration_s", unit="fraction", direction="higher")

    col("valid", "validity", "whether the row may enter a ratio", kind="bool", source="rules")
    col("invalid_reasons", "validity", "why not, one rule a sentence", kind="str", source="rules")
    col(
        "cache_hit_tolerance",
        "validity",
        "largest difference of the arms' hit rates (recipe); empty: the rule is not applied",
        unit="fraction",
        source="point.json",
    )

    provenance = {
        "source": "records, summary (record file with holes), samples, or a document and its table",
        "token_count_source": "server (usage field) or client (tokenizer)",
        "node": "host the server ran on and the start of its node fingerprint",
        "image": "image digest; without an image a digest of the server's packages",
        "server": "server and version",
        "client": "client and version",
        "started": "start, UTC",
        "ended": "end, UTC",
        "note": "anything a reader must know",
    }
    for name, formula in provenance.items():
        col(name, "provenance", formula, kind="str", source="run.json, node.json, server.json")
    return cols


COLUMNS: tuple[Column, ...] = (
    Column("schema", "identity", "version of these columns", kind="int"),
    *_identity(),
    *_serving(),
    *_server(),
    *_accuracy(),
    *_rest(),
)
BY_NAME: dict[str, Column] = {c.name: c for c in COLUMNS}

COMPARISON_COLUMNS: tuple[Column, ...] = (
    Column("schema", "comparison", "version of these columns", kind="int"),
    Column("kind", "comparison", "as in the rows", kind="str"),
    Column("recipe", "comparison", "as in the rows", kind="str"),
    Column("config", "comparison", "as in the rows", kind="str"),
    Column("conc", "comparison", "as in the rows", kind="int"),
    Column("metric", "comparison", "the column compared", kind="str"),
    Column("unit", "comparison", "its unit", kind="str"),
    Column("direction", "comparison", "which way is better", kind="str"),
    Column("baseline", "comparison", "arm the ratio is taken against", kind="str"),
    Column("arm", "comparison", "arm compared", kind="str"),
    Column("slot", "comparison", "place of that arm in the campaign's list", kind="int"),
    Column("pairing", "comparison", "pairs of one campaign, or whole runs", kind="str"),
    Column("baseline_value", "comparison", "geometric mean, in the metric's unit (GSM8K: mean)"),
    Column("arm_value", "comparison", "geometric mean, in the metric's unit (GSM8K: mean)"),
    Column("n", "comparison", "valid pairs; between runs: valid rows of the arm", kind="int"),
    Column("dropped", "comparison", "pairs left out: invalid, or without the metric", kind="int"),
    Column("ratio", "comparison", "geometric mean over pairs of arm / baseline"),
    Column("low", "comparison", "lower end of the ratio's 95 % interval"),
    Column("high", "comparison", "upper end of the ratio's 95 % interval"),
    Column("p", "comparison", "sign-flip permutation p of the pairs; GSM8K: exact McNemar p"),
    Column("p_holm", "comparison", "p, adjusted (Holm) over the points of one metric and arm"),
    Column("floor", "comparison", "A/A noise floor, as a relative change", unit="fraction"),
    Column("verdict", "comparison", "faster, slower, no difference seen; empty: none", kind="str"),
    Column("why", "comparison", "what the verdict, or its absence, rests on", kind="str"),
)

KEY = (
    "schema",
    "campaign",
    "point",
    "recipe",
    "arm",
    "config",
    "gpus",
    "conc",
    "repeat",
    "slot",
)
"""Columns that open every CSV of one group."""

CLOSING = ("valid", "invalid_reasons", "source", "note")

FILES: dict[str, tuple[str, ...]] = {
    "interactivity.csv": ("interactivity", "latency"),
    "throughput.csv": ("throughput", "energy"),
    "acceptance.csv": ("acceptance", "cache"),
    "accuracy.csv": ("accuracy",),
}
"""Groups of each CSV beside ``points.csv``, which holds every column."""


def file_columns(name: str) -> tuple[Column, ...]:
    """Columns of one CSV of a campaign, in order."""
    if name == "points.csv":
        return COLUMNS
    if name == "comparison.csv":
        return COMPARISON_COLUMNS
    groups = FILES[name]
    body = tuple(c for c in COLUMNS if c.group in groups)
    return (*(BY_NAME[k] for k in KEY), *body, *(BY_NAME[k] for k in CLOSING))


def markdown() -> str:
    """The text of ``docs/columns.md``."""
    lines = [
        "# Columns",
        "",
        "Generated from `results/columns.py` by `python -m results.columns`; do not edit.",
        "",
        f"Schema version {SCHEMA}, in the column `schema` of every CSV; a file with a higher "
        "version is refused. An empty cell means not measured or not applicable; it is never "
        "written as 0 or NaN. Records with an error or of a phase other than profiling are "
        "dropped from every metric. Percentiles are interpolated linearly.",
        "",
        "A percentile is left empty when fewer values than these were measured, because not one "
        "value would be expected beyond it: "
        + ", ".join(f"p{q} {min_samples(q)}" for q in QUANTILES)
        + ".",
        "",
        "`points.csv` holds every column. "
        + " ".join(f"`{name}` holds {' and '.join(groups)}." for name, groups in FILES.items())
        + " Each of these opens with "
        + ", ".join(f"`{k}`" for k in KEY)
        + " and closes with "
        + ", ".join(f"`{k}`" for k in CLOSING)
        + ".",
        "",
    ]
    for group, about in GROUPS.items():
        lines += [f"## {group.capitalize()}: {about}", ""]
        lines += _table([c for c in COLUMNS if c.group == group])
    lines += ["## Comparison: `comparison.csv`", "", *_table(list(COMPARISON_COLUMNS))]
    return "\n".join(lines).rstrip() + "\n"


def _table(columns: list[Column]) -> list[str]:
    head = ["column", "unit", "better", "formula", "basis", "source"]
    rows = [head, ["---"] * len(head)]
    for c in columns:
        better = "" if c.direction == "none" else c.direction
        cells = [f"`{c.name}`", c.unit, better, c.formula, c.basis, c.source]
        rows.append([cell.replace("|", r"\|") for cell in cells])
    return ["| " + " | ".join(r) + " |" for r in rows] + [""]


def main() -> None:
    """Rewrite ``docs/columns.md`` of this checkout."""
    write_text(Path(__file__).parent.parent / "docs" / "columns.md", markdown())


if __name__ == "__main__":
    main()
