"""Every rule of ``docs/validity.md``, provoked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from point_folder import (
    AFTER,
    BEFORE,
    DATA,
    FIRST_NS,
    LAST_NS,
    MakePoint,
    arm_row,
    edit_summary,
    reasons,
    write_samples,
    write_scrapes,
)

from results import validity
from results.columns import Row
from results.compare import compare
from results.score import score
from results.validity import PAIR_RULES, RULES, check_arms
from serve.samples import Sample, judge

ROOT = Path(validity.__file__).parent.parent
SECOND = 1_000_000_000
KERNELS = 'dsv41_dispatches_total{kernel="%s"}'


def point(folder: Path, **changes: Any) -> None:
    path = folder / "point.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes), encoding="utf-8")


def run(folder: Path, **changes: Any) -> None:
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes), encoding="utf-8")


def seen_by_the_runner(rule: str) -> Callable[[Path], None]:
    return lambda folder: run(folder, invalid=[{"rule": rule, "detail": "as the runner says"}])


def sampled(**cells: Any) -> Callable[[Path], None]:
    """A GPU whose samples, from the middle of the run on, have these cells."""

    def change(folder: Path) -> None:
        good: dict[str, Any] = {
            "throttle": "none",
            "power_limit_w": 700.0,
            "processes": "10:vllm:own",
        }
        ticks = list(range(FIRST_NS - SECOND, LAST_NS + 2 * SECOND, SECOND))
        half = len(ticks) // 2
        samples = [Sample(t, "gpu0", **good) for t in ticks[:half]]
        if cells.get("gone"):
            samples += [Sample(t, "gpu0", **good) for t in ticks[half + 8 :]]
        else:
            samples += [Sample(t, "gpu0", **{**good, **cells}) for t in ticks[half:]]
        write_samples(folder, samples)
        run(folder, invalid=judge(samples, FIRST_NS, LAST_NS))

    return change


def stolen(folder: Path) -> None:
    ticks = range(FIRST_NS - SECOND, LAST_NS + 2 * SECOND, SECOND)
    samples = [Sample(t, "cpu", util_pct=50.0, steal_pct=5.0) for t in ticks]
    write_samples(folder, samples)
    run(folder, invalid=judge(samples, FIRST_NS, LAST_NS))


def dispatched(**counts: float) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        before = BEFORE | {KERNELS % name: 5.0 for name in counts}
        after = AFTER | {KERNELS % name: 5.0 + count for name, count in counts.items()}
        write_scrapes(folder, [(FIRST_NS, before), (LAST_NS, after)])
        point(folder, must_dispatch=["mono_k1"], must_not_dispatch=["mono_k9"])

    return change


def acceptance(length: float) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        drafts, accepted = "num_drafts_total", "num_accepted_tokens_total"
        spec = {f"vllm:spec_decode_{drafts}": 0.0, f"vllm:spec_decode_{accepted}": 0.0}
        after = {
            f"vllm:spec_decode_{drafts}": 1000.0,
            f"vllm:spec_decode_{accepted}": 1000.0 * (length - 1),
        }
        write_scrapes(folder, [(FIRST_NS, BEFORE | spec), (LAST_NS, AFTER | after)])
        point(folder, rejection="synthetic", target_acceptance_length=3.51)

    return change


def fail(share: int) -> Callable[[Path], None]:
    """Every ``share``-th profiled request failed."""

    def change(folder: Path) -> None:
        path = folder / "aiperf" / "profile_export.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()]
        profiled = [r for r in records if r["metadata"]["benchmark_phase"] == "profiling"]
        for record in profiled[::share]:
            record["error"] = {"code": 500, "type": "HTTPError", "message": "no"}
        path.write_text("".join(json.dumps(r) + "\n" for r in records))
        left = len(profiled) - len(profiled[::share])
        edit_summary(folder, request_count={"unit": "requests", "avg": float(left)})

    return change


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def count_tokens_twice(folder: Path) -> None:
    made = BEFORE["vllm:generation_tokens_total"] + 300
    short = AFTER | {"vllm:generation_tokens_total": made}
    write_scrapes(folder, [(FIRST_NS, BEFORE), (LAST_NS, short)])


def restart(folder: Path) -> None:
    write_scrapes(folder, [(FIRST_NS, BEFORE), (LAST_NS, dict.fromkeys(AFTER, 1.0))])


def evaluate(**settings: Any) -> Callable[[Path], None]:
    """A GSM8K point with 6 of 12 strict matches."""

    def change(folder: Path) -> None:
        for path in sorted((DATA / "lm_eval").rglob("*.json*")):
            target = folder / "lm_eval" / path.relative_to(DATA / "lm_eval")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
        point(folder, kind="gsm8k", gsm8k=settings)
        if settings.get("broken"):
            (folder / "lm_eval" / "gsm8k.json").unlink()

    return change


BREAK: dict[str, list[Callable[[Path], None]]] = {
    "no-point": [remove("point.json")],
    "unfinished": [remove("run.json")],
    "interrupted": [lambda f: run(f, interrupted=True)],
    "client-failed": [lambda f: run(f, client_exit=1), seen_by_the_runner("client-failed")],
    "client-incomplete": [
        lambda f: edit_summary(f, is_complete=False, incomplete_reason="it stalled"),
        lambda f: edit_summary(f, was_cancelled=True),
    ],
    "disk-short": [seen_by_the_runner("disk-short")],
    "summary": [remove("aiperf/profile_export_aiperf.json")],
    "records": [remove("aiperf/profile_export.jsonl")],
    "counters": [remove("prometheus.jsonl")],
    "nothing-completed": [fail(1)],
    "errors": [fail(5)],
    "short": [lambda f: point(f, duration_s=30)],
    "token-counts": [count_tokens_twice],
    "acceptance": [acceptance(3.48), acceptance(3.54)],
    "kernel-missing": [dispatched(), dispatched(mono_k1=0.0)],
    "kernel-in-off-arm": [dispatched(mono_k1=7.0, mono_k9=1.0)],
    "server-died": [seen_by_the_runner("server-died")],
    "server-restarted": [restart],
    "sampler-gap": [sampled(gone=True), remove("samples.csv")],
    "telemetry-missing": [sampled(processes=None)],
    "throttled": [sampled(throttle="hw_thermal")],
    "power-limit-changed": [sampled(power_limit_w=500.0)],
    "cpu-steal": [stolen],
    "foreign-process": [sampled(processes="10:vllm:own|99:other")],
    "gsm8k": [evaluate(broken=True)],
    "floor": [evaluate(floor=0.90)],
}


@pytest.mark.parametrize(
    ("rule", "change"), [(rule, change) for rule, changes in BREAK.items() for change in changes]
)
def test_a_broken_rule_makes_the_row_invalid_and_is_named(
    make_point: MakePoint, rule: str, change: Callable[[Path], None]
) -> None:
    folder = make_point()
    change(folder)
    row = score(folder)
    assert row["valid"] is False
    assert f"{rule}: " in reasons(row)
    assert str(folder) not in reasons(row)


@pytest.mark.parametrize(
    "change",
    [
        lambda f: None,
        fail(22),
        acceptance(3.50),
        dispatched(mono_k1=7.0, mono_k9=0.0),
        sampled(throttle="power_cap"),
        evaluate(floor=0.40),
        lambda f: point(f, duration_s=23),
    ],
)
def test_what_keeps_the_rules_is_valid(
    make_point: MakePoint, change: Callable[[Path], None]
) -> None:
    folder = make_point()
    change(folder)
    row = score(folder)
    assert row["valid"] is True, reasons(row)


def test_limits_come_from_the_recipe(make_point: MakePoint) -> None:
    strict = make_point("a", validity={"max_error_ratio": 0.01, "acceptance_tolerance": 0.001})
    fail(22)(strict)
    assert "errors: 1 errors to 21 completed, above 0.01" in reasons(score(strict))
    strict = make_point("b", validity={"max_error_ratio": 0.01, "acceptance_tolerance": 0.001})
    acceptance(3.50)(strict)
    assert "acceptance: " in reasons(score(strict))


def pair(base: dict[str, Any], arm: dict[str, Any]) -> Row:
    rows = check_arms([arm_row(0, 10.0, **base), arm_row(1, 12.0, **arm)])
    assert rows[0]["valid"] is True
    assert bool(compare(rows)[0].n) == rows[1]["valid"]
    return rows[1]


PAIRS: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "cache-hit": [
        ({"prefix_cache_hit_rate": 0.80}, {"prefix_cache_hit_rate": 0.77}),
        ({"prefix_cache_hit_rate": 0.80}, {"prefix_cache_hit_rate": None}),
    ],
    "environment": [({}, {"image": "packages:1"}), ({"server": "vllm 1"}, {"server": "vllm 2"})],
    "protocol": [({"gsm8k_protocol": "a"}, {"gsm8k_protocol": "b"})],
}


@pytest.mark.parametrize(
    ("rule", "base", "arm"), [(rule, *sides) for rule, pairs in PAIRS.items() for sides in pairs]
)
def test_arms_that_differ_leave_the_pair_out_of_every_ratio(
    rule: str, base: dict[str, Any], arm: dict[str, Any]
) -> None:
    tolerance = {"cache_hit_tolerance": 0.02}
    row = pair(base | tolerance, arm | tolerance)
    assert row["valid"] is False
    assert f"{rule}: " in reasons(row)


def test_hit_rates_within_two_points_or_without_the_rule_are_valid() -> None:
    near = {"prefix_cache_hit_rate": 0.80}, {"prefix_cache_hit_rate": 0.785}
    tolerance = {"cache_hit_tolerance": 0.02}
    assert pair(near[0] | tolerance, near[1] | tolerance)["valid"] is True
    apart = {"prefix_cache_hit_rate": None}, {"prefix_cache_hit_rate": 0.8}
    off = {"cache_hit_tolerance": None}
    assert pair(apart[0] | off, apart[1] | off)["valid"] is True


def test_checking_the_arms_twice_changes_nothing_and_leaves_the_rows_given_alone() -> None:
    rows = [arm_row(0, 10.0), arm_row(1, 12.0, image="other")]
    once = check_arms(rows)
    assert rows[1]["valid"] is True
    assert check_arms(once) == once
    assert str(once[1]["invalid_reasons"]).count("environment") == 1


def test_every_rule_is_provoked_and_documented() -> None:
    assert {*BREAK, *PAIRS} == set(RULES)
    assert set(PAIRS) == set(PAIR_RULES)
    assert (ROOT / "docs" / "validity.md").read_text(encoding="utf-8") == validity.markdown(), (
        "run python -m results.validity"
    )


def test_no_rule_is_used_that_is_not_documented() -> None:
    used = set()
    for path in (
        *ROOT.glob("results/*.py"),
        ROOT / "serve/samples.py",
        ROOT / "samenode/campaign.py",
    ):
        text = path.read_text(encoding="utf-8")
        used |= set(re.findall(r'findings\.add\(\s*"([a-z0-9-]+)"', text))
        used |= set(re.findall(r'"rule": "([a-z0-9-]+)"', text))
    assert used
    assert used <= set(RULES)
