"""The laws of the generated corpora, their shape, and what bad input says."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.traces import (
    BLOCK_SIZE,
    MIN_TURNS,
    LogNormal,
    TraceSpec,
    agentic,
    corpus_sha256,
    describe,
    make_spec,
    prompt_overhead,
    session,
    smoke,
    summarise,
    write_traces,
)
from samenode.errors import UserError

Entry = dict[str, Any]

# Short sessions keep an example fast; the other distributions are the shipped ones.
_short = st.builds(
    lambda seed, context, turns: agentic(context, seed=seed, turns=LogNormal(turns, 0.5, 3, 60)),
    st.integers(0, 2**32),
    st.integers(16_384, 200_000),
    st.integers(3, 40),
)
specs = st.one_of(
    st.builds(
        lambda context, seed: smoke(context, seed=seed), st.integers(2600, 40_000), st.integers()
    ),
    _short,
)
indices = st.integers(0, 9)
law = settings(deadline=None, max_examples=60)


def agents(trace: Entry) -> list[list[Entry]]:
    """The requests of the main agent and of each subagent."""
    main = [entry for entry in trace["requests"] if entry["type"] == "s"]
    return [main, *(e["requests"] for e in trace["requests"] if e["type"] == "subagent")]


@law
@given(specs, indices)
def test_every_request_fits_the_context(spec: TraceSpec, index: int) -> None:
    for requests in agents(session(spec, index)):
        for turn, request in enumerate(requests, start=1):
            needed = request["in"] + prompt_overhead(request["in"], turn) + request["out"]
            assert needed <= spec.max_model_len
            assert request["in"] <= spec.longest_prompt
            assert request["out"] >= 1


def test_a_long_session_ends_at_the_longest_prompt() -> None:
    spec = smoke(32_768, turns=LogNormal(40, 0, 40, 40))
    for index in range(8):
        last = agents(session(spec, index))[0][-1]
        # The next prompt would have been an answer (1 block) and a result (6 at most) longer.
        assert spec.longest_prompt - 7 * BLOCK_SIZE <= last["in"] <= spec.longest_prompt == 2560


@law
@given(specs, indices)
def test_prompts_are_whole_blocks_and_grow_by_the_answer_and_a_result(
    spec: TraceSpec, index: int
) -> None:
    for requests in agents(session(spec, index)):
        for request in requests:
            assert request["in"] == BLOCK_SIZE * len(request["hash_ids"])
        for before, after in pairwise(requests):
            kept = len(before["hash_ids"])
            answer = -(-before["out"] // BLOCK_SIZE)
            assert after["hash_ids"][:kept] == before["hash_ids"]
            assert len(after["hash_ids"]) >= kept + answer + 1


@law
@given(specs, indices)
def test_a_prompt_is_never_sent_twice_and_an_answer_is_new_text(
    spec: TraceSpec, index: int
) -> None:
    trace = session(spec, index)
    prompts = [tuple(request["hash_ids"]) for each in agents(trace) for request in each]
    assert len(set(prompts)) == len(prompts)
    for requests in agents(trace):
        for before, after in pairwise(requests):
            first_new = after["hash_ids"][len(before["hash_ids"])]
            assert first_new not in before["hash_ids"]


@law
@given(specs, indices)
def test_subagents_share_only_the_head_with_their_parent(spec: TraceSpec, index: int) -> None:
    main, *others = agents(session(spec, index))
    head = main[0]["hash_ids"]
    shared = head[: spec.shared_tokens // BLOCK_SIZE]
    seen = {block for request in main for block in request["hash_ids"]}
    for requests in others:
        own = {block for request in requests for block in request["hash_ids"]}
        assert own & seen <= set(shared)
        assert own - seen
        assert requests[0]["hash_ids"][: len(shared)] == shared[: len(requests[0]["hash_ids"])]
        seen |= own


@law
@given(specs, indices)
def test_the_timeline_is_end_to_start_and_waits_for_subagents(spec: TraceSpec, index: int) -> None:
    trace = session(spec, index)
    main, *others = agents(trace)
    assert len(main) >= MIN_TURNS
    assert trace["requests"][-1]["type"] == "s"
    for requests in others:
        for before, after in pairwise(requests):
            gap = after["t"] - before["t"] - before["api_time"]
            assert gap == pytest.approx(after["think_time"], abs=1e-6)
    done = 0.0
    for entry in trace["requests"]:
        if entry["type"] == "s":
            assert entry["t"] == pytest.approx(done + entry["think_time"], abs=1e-6)
            done = end = entry["t"] + entry["api_time"]
        else:
            assert entry["t"] == pytest.approx(end, abs=1e-6)
            assert entry["requests"][0]["t"] == entry["t"]
            last = entry["requests"][-1]
            finished = entry["t"] + entry["duration_ms"] / 1000
            assert finished == pytest.approx(last["t"] + last["api_time"], abs=1e-6)
            done = max(done, finished)


@law
@given(specs)
def test_subagent_sessions_are_the_stated_share_and_the_first_is_one(spec: TraceSpec) -> None:
    with_agents = [len(agents(session(spec, index))) > 1 for index in range(8)]
    assert with_agents[0]
    assert sum(with_agents) == 8 * spec.subagent_share


@settings(law, max_examples=15)
@given(spec=specs)
def test_same_spec_same_bytes_and_sessions_do_not_depend_on_their_number(
    spec: TraceSpec, tmp_path_factory: pytest.TempPathFactory
) -> None:
    once, again, more = (tmp_path_factory.mktemp("corpus") for _ in range(3))
    changed = make_spec(
        spec.profile, spec.max_model_len, seed=spec.seed, turns=spec.turns, sessions=2
    )
    assert write_traces(changed, once) == write_traces(changed, again) == corpus_sha256(once)
    write_traces(
        make_spec(spec.profile, spec.max_model_len, seed=spec.seed, turns=spec.turns, sessions=3),
        more,
    )
    for path in sorted(once.iterdir()):
        assert path.read_bytes() == (again / path.name).read_bytes()
        assert path.read_bytes() == (more / path.name).read_bytes()


def test_the_shipped_smoke_corpus_stays_what_it_is(tmp_path: Path) -> None:
    """Runs on different versions of this code are comparable only on the same corpus."""
    digest = "468f66bb20df23aa360335f58ad74f6e57dda5548064b005239dda4dd0b153bb"
    assert write_traces(smoke(4096), tmp_path) == digest


def test_no_two_sessions_have_an_id_or_a_shape_in_common() -> None:
    traces = [session(spec, i) for spec in (smoke(), smoke(seed=1)) for i in range(8)]
    assert len({trace["id"] for trace in traces}) == 16
    assert len({tuple(entry["t"] for entry in trace["requests"]) for trace in traces}) == 16


def test_another_seed_is_another_corpus(tmp_path: Path) -> None:
    one = write_traces(smoke(seed=1, sessions=3), tmp_path / "one")
    assert one != write_traces(smoke(seed=2, sessions=3), tmp_path / "two")


# ---------------------------------------------------------------------- distributions


@law
@given(
    st.floats(1, 1e5),
    st.floats(0, 3),
    st.floats(0.01, 1),
    st.floats(1, 100),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_quantiles_rise_within_the_cut(
    median_: float, sigma: float, under: float, over: float, p: float, q: float
) -> None:
    cut = LogNormal(median_, sigma, median_ * under, median_ * over)
    low, high = sorted((p, q))
    assert cut.low <= cut.quantile(low) <= cut.quantile(high) <= cut.high


def test_an_uncut_lognormal_has_its_median_and_deciles() -> None:
    wide = LogNormal(100, 0.5, 1e-3, 1e7)
    assert wide.quantile(0.5) == pytest.approx(100)
    assert wide.quantile(0.9) == pytest.approx(100 * 2.718281828 ** (0.5 * 1.2815516))


def test_a_cut_rescales_the_ranks_instead_of_heaping_values_on_its_ends() -> None:
    upper_half = LogNormal(100, 0.5, 100, 1e7)
    assert upper_half.quantile(0.5) == pytest.approx(LogNormal(100, 0.5, 1e-3, 1e7).quantile(0.75))


def test_samples_follow_the_stated_distributions() -> None:
    spec = smoke(seed=7)
    requests = [r for i in range(150) for each in agents(session(spec, i)) for r in each]
    outputs = [r["out"] for r in requests]
    waits = [r["think_time"] for r in requests if r["think_time"]]
    for values, stated in ((outputs, spec.output), (waits, spec.tool_wait)):
        assert stated.low - 0.5 <= min(values) <= max(values) <= stated.high + 0.5
        for p in (0.25, 0.5, 0.75, 0.9):
            under = sum(value <= stated.quantile(p) + 1e-3 for value in values) / len(values)
            assert under == pytest.approx(p, abs=0.07)


def test_the_smoke_profile_is_what_a_cpu_can_show(tmp_path: Path) -> None:
    write_traces(smoke(4096), tmp_path)
    held = summarise(tmp_path)
    assert held.sessions == 32
    assert held.sessions_with_subagents == 24
    assert 0.70 <= held.prefix_reuse <= 0.85
    assert held.longest < 2700
    assert 150 <= held.new_tokens.mean <= 230
    assert 500 <= held.input_tokens.mean <= 1000
    assert held.output_tokens.max <= 40
    assert held.waits is not None
    assert held.waits.p90 < 1.0
    assert held.turns.max >= 10


def test_the_agentic_profile_has_the_public_corpus_shape() -> None:
    """Figures of semianalysisai/cc-traces-weka-062126 (sources in docs/traces.md)."""
    spec = agentic(1_048_576)
    traces = [session(spec, index) for index in range(48)]
    requests = [r for trace in traces for each in agents(trace) for r in each]
    of_subagents = sum(len(each) for trace in traces for each in agents(trace)[1:])
    assert fmean(len(agents(trace)[0]) for trace in traces) == pytest.approx(144.5, rel=0.2)
    assert of_subagents / len(requests) == pytest.approx(0.425, abs=0.08)
    assert fmean(r["in"] for r in requests) == pytest.approx(218_922, rel=0.2)
    assert median(r["in"] for r in requests) == pytest.approx(104_000, rel=0.25)
    assert fmean(r["out"] for r in requests) == pytest.approx(1_077, rel=0.1)
    assert median(r["out"] for r in requests) == pytest.approx(339, rel=0.15)
    assert sum(r["in"] > 300_000 for r in requests) > 0.2 * len(requests)


# ---------------------------------------------------------------------- files and bad input


def test_an_interrupted_corpus_is_completed(tmp_path: Path) -> None:
    spec = smoke(sessions=4)
    whole = write_traces(spec, tmp_path / "whole")
    half = tmp_path / "half"
    half.mkdir()
    (half / "session-00000.json").write_text("{")
    (half / ".session-00001.json.tmp").write_text("{")
    assert write_traces(spec, half) == whole


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    write_traces(smoke(sessions=4), tmp_path)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match=r"holds other files \(session-00002\.json, …\)"):
        write_traces(smoke(sessions=2), tmp_path)
    assert kept == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_a_file_in_the_folder_s_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("")
    with pytest.raises(UserError, match="is a file, not a folder"):
        write_traces(smoke(sessions=1), tmp_path / "traces")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: smoke(4096, sessions=0), "sessions must be at least 1"),
        (lambda: smoke(1024), "needs a max_model_len of at least"),
        (lambda: smoke(4096, longest_prompt=500), "needs a longest_prompt of at least"),
        (lambda: agentic(8192), "at least 16384 tokens"),
        (lambda: smoke(4096, subagent_share=1.5), "between 0 and 1"),
        (lambda: smoke(4096, shared_tokens=-1), "must not be negative"),
        (lambda: smoke(4096, seeds=1), "no field 'seeds'"),
        (lambda: make_spec("big", 4096), "choose one of smoke, agentic"),
        (lambda: LogNormal(5, 1, 6, 9), "low <= median <= high"),
        (lambda: LogNormal(5, -1, 1, 9), "sigma >= 0"),
    ],
)
def test_bad_numbers_say_what_and_how_to_mend(make: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_the_smallest_context_named_by_the_error_is_enough() -> None:
    with pytest.raises(UserError) as caught:
        smoke(1500)
    needed = int(str(caught.value).split("at least ")[1].split()[0])
    assert len(agents(session(smoke(needed, longest_prompt=needed), 0))[0]) >= MIN_TURNS


def test_shorter_pieces_make_do_with_a_shorter_context() -> None:
    short = LogNormal(64, 0, 64, 64)
    spec = smoke(
        1024, first_prompt=short, subagent_prompt=short, tool_result=short, shared_tokens=0
    )
    assert len(agents(session(spec, 0))[0]) >= MIN_TURNS


def test_describe_tells_what_a_corpus_holds(tmp_path: Path) -> None:
    digest = write_traces(smoke(sessions=6), tmp_path)
    held = summarise(tmp_path)
    text = describe(tmp_path)
    assert digest in text
    assert f"6 sessions, {held.requests:,} requests, block size 64" in text
    assert f"theoretical prefix reuse: {100 * held.prefix_reuse:.1f} %" in text


def test_summarise_counts_a_hand_made_trace(tmp_path: Path) -> None:
    def request(t: float, ids: list[int], out: int) -> Entry:
        return {
            "t": t,
            "type": "n",
            "in": 64 * len(ids),
            "out": out,
            "hash_ids": ids,
            "api_time": 1.0,
        }

    def subagent(t: float, ids: list[int]) -> Entry:
        return {"t": t, "type": "subagent", "requests": [request(t, ids, 5)]}

    requests = [
        request(0.0, [0, 1], 10),
        subagent(1.5, [0, 9, 8, 7]),
        subagent(1.2, [0, 9]),
        request(4.0, [0, 1, 2, 3], 20),
        request(6.0, [0, 1, 2, 3, 4], 30),
    ]
    (tmp_path / "one.json").write_text(json.dumps({"block_size": 64, "requests": requests}))
    held = summarise(tmp_path)
    assert (held.sessions, held.subagents, held.requests, held.subagent_requests) == (1, 2, 5, 2)
    # By start: 0 of 2, 1 of 2 (block 0), 2 of 4 (0 and 9), 2 of 4, 4 of 5.
    assert held.prefix_reuse == pytest.approx(9 / 17)
    assert held.new_tokens.max == 128
    assert held.new_tokens.mean == pytest.approx(64 * 8 / 5)
    assert held.output_tokens.mean == 14
    assert held.output_tokens.p50 == 10
    # The gap before t=4 is the subagents'; between t=4 and t=6 a second remains.
    assert held.waits is not None
    assert held.waits.mean == held.waits.max == 1.0
    assert held.longest == 350


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"block_size": 64, "requests": [{}]}', "7"])
def test_a_file_that_is_no_trace_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "odd.json").write_text(content)
    with pytest.raises(UserError, match=r"odd\.json is not a weka_trace file"):
        summarise(tmp_path)


def test_empty_corpora_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no trace files"):
        describe(tmp_path)
    with pytest.raises(UserError, match="holds no trace files"):
        corpus_sha256(tmp_path / "missing")
    (tmp_path / "empty.json").write_text('{"block_size": 64, "requests": []}')
    with pytest.raises(UserError, match="hold no request"):
        summarise(tmp_path)
