"""The generated corpora under aiperf's own code: its models, its replay, its counts."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiperf.dataset.loader.weka_agent_chains import detect_agent_chains
from aiperf.dataset.loader.weka_metric_prepass import (
    MetricRecord,
    compute_shared_prefix_cache_metrics,
)
from aiperf.dataset.loader.weka_synth_buf import (
    ConversationReconstructor,
    compute_asst_block_caps,
)
from aiperf.dataset.loader.weka_trace import WekaTraceLoader
from aiperf.dataset.loader.weka_trace_models import WekaSubagentEntry, WekaTrace

from evals.traces import BLOCK_SIZE, agentic, session, smoke, summarise, write_traces

SPECS = [smoke(4096), agentic(32_768, sessions=8), agentic(131_072, sessions=8)]


def agents(trace: WekaTrace) -> list[list[Any]]:
    main = [r for r in trace.requests if not isinstance(r, WekaSubagentEntry)]
    return [main, *(r.requests for r in trace.requests if isinstance(r, WekaSubagentEntry))]


def parsed(spec: Any, sessions: int = 6) -> list[WekaTrace]:
    return [WekaTrace.model_validate(session(spec, index)) for index in range(sessions)]


def test_aiperf_reads_the_folder(tmp_path: Path) -> None:
    write_traces(smoke(sessions=3), tmp_path)
    assert WekaTraceLoader.can_load(filename=tmp_path)


def test_aiperf_replays_local_traces_with_our_block_size() -> None:
    """aiperf 0.13 takes it from the plugin's metadata and ignores the file's ``block_size``."""
    plugins = yaml.safe_load((resources.files("aiperf") / "plugin/plugins.yaml").read_text())
    loader = plugins["custom_dataset_loader"]["weka_trace"]
    assert loader["metadata"]["default_block_size"] == BLOCK_SIZE


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.profile}-{spec.max_model_len}")
def test_the_replayed_conversation_only_grows_and_has_the_declared_length(spec: Any) -> None:
    for trace in parsed(spec):
        for requests in agents(trace):
            replay = ConversationReconstructor(
                block_size=BLOCK_SIZE,
                decode_block_tokens=lambda ids: [token for i in ids for token in [i] * BLOCK_SIZE],
                sample_partial_tail_tokens=lambda n, seed: [-1] * n,
                decode_tokens_to_text=lambda tokens: " ".join(map(str, tokens)),
            )
            caps = compute_asst_block_caps(
                [(r.hash_ids, r.input_length) for r in requests], BLOCK_SIZE
            )
            for k, request in enumerate(requests):
                if k == 0:
                    replay.init_turn_0(request.hash_ids, request.input_length, 0, 0, "seed")
                else:
                    before = requests[k - 1]
                    replay.advance_turn(
                        before.hash_ids,
                        before.input_length,
                        before.output_length,
                        request.hash_ids,
                        request.input_length,
                        "seed",
                        max_asst_blocks=caps[k],
                    )
                delta = replay.turn_delta()
                assert not delta.reset_context
                roles = [message["role"] for message in delta.delta_messages]
                assert roles == (["user"] if k == 0 else ["assistant", "user"])
                sent = [token for segment in replay._segments for token in segment.tokens]
                assert sent == [i for i in request.hash_ids for _ in range(BLOCK_SIZE)]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.profile}-{spec.max_model_len}")
def test_aiperf_finds_no_agent_but_those_declared(spec: Any) -> None:
    for trace in parsed(spec):
        for requests in agents(trace):
            found = detect_agent_chains(list(enumerate(requests)))
            assert found.worker_indices == []
            assert found.seams_merged == 0


def test_prefix_reuse_is_counted_as_aiperf_counts_it(tmp_path: Path) -> None:
    spec = agentic(65_536, sessions=5)
    write_traces(spec, tmp_path)
    hits = total = 0
    for trace in parsed(spec, spec.sessions):
        records = [
            MetricRecord((request.t, outer, 0, k), f"{outer}", k, request.hash_ids)
            for outer, entry in enumerate(trace.requests)
            for k, request in enumerate(
                entry.requests if isinstance(entry, WekaSubagentEntry) else [entry]
            )
        ]
        for hit, blocks in compute_shared_prefix_cache_metrics(records).values():
            hits += hit
            total += blocks
    assert summarise(tmp_path).prefix_reuse == hits / total
