"""Synthetic agent traces: weka_trace files for aiperf where the public corpus is out of reach.

One file is one session: a coding agent that sends a prompt, waits for a tool, sends the grown
prompt, and now and then hands work to subagents. docs/traces.md gives the source of every
distribution and says which figures are measured and which are only chosen.

What a corpus promises (tests/evals/test_traces*.py hold it to this):

- the same spec gives the same bytes, and session ``i`` does not depend on how many there are;
- every request fits the model's context: prompt, chat template, aiperf's cache-bust marker and
  output together (``prompt_overhead``);
- a prompt is its predecessor's blocks plus at least two more, so no prompt is sent twice and
  aiperf only ever appends to the conversation;
- sessions share no text: aiperf draws a block's text from (trace id, hash id), and no two
  traces have the same id.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice, pairwise, takewhile
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any, NamedTuple

from samenode.errors import UserError
from samenode.files import write_text

MODEL = "samenode"
"""Model named in the traces. aiperf puts the served model's name in its place."""

BLOCK_SIZE = 64
"""Tokens of one hash id. aiperf 0.13 reads every local weka_trace with blocks of 64, whatever the
file says, and so does the public corpus. Prompts are whole blocks: with a last block partly
filled, aiperf sends fewer tokens than the trace declares or resends the whole conversation."""

MIN_TURNS = 3
"""Main-agent turns every session has at least, whatever the context cuts off."""

_STANDARD = NormalDist()


@dataclass(frozen=True)
class LogNormal:
    """A log-normal distribution cut to [``low``, ``high``]; ``sigma`` 0 is the constant ``median``.

    ``median`` is that of the uncut distribution; ``quantile(0.5)`` gives that of the cut one.
    """

    median: float
    sigma: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not (self.sigma >= 0 and 0 < self.low <= self.median <= self.high < math.inf):
            raise UserError(
                f"A trace distribution needs 0 < low <= median <= high and sigma >= 0, "
                f"but got {self}; mend the numbers."
            )

    def quantile(self, p: float) -> float:
        """The value below which a share ``p`` (0 to 1) of the cut distribution lies."""
        if self.sigma == 0:
            return self.median
        mu = math.log(self.median)
        below = _STANDARD.cdf((math.log(self.low) - mu) / self.sigma)
        above = _STANDARD.cdf((math.log(self.high) - mu) / self.sigma)
        rank = min(max(below + p * (above - below), 1e-12), 1 - 1e-12)
        value = math.exp(mu + self.sigma * _STANDARD.inv_cdf(rank))
        return min(max(value, self.low), self.high)

    def sample(self, rng: random.Random) -> float:
        return self.quantile(rng.random())

    def count(self, rng: random.Random) -> int:
        """A sample rounded to a whole number of at least 1."""
        return max(1, round(self.sample(rng)))


@dataclass(frozen=True)
class TraceSpec:
    """Everything that decides a corpus's bytes. Token counts are those of the model's tokenizer.

    ``smoke`` and ``agentic`` build the two shipped profiles.

    Raises:
        UserError: a number is out of range, or the context cannot hold ``MIN_TURNS`` turns.
    """

    profile: str
    """Name written into trace ids and ``totals``; it also seeds the sampling."""
    seed: int
    sessions: int
    """Files to write. Enough that a point does not go round: a lane takes a new session when its
    own is finished. (Going round is harmless: aiperf marks each replay's prompts as its own.)"""
    max_model_len: int
    """The served model's context in tokens (vLLM's ``--max-model-len``)."""
    longest_prompt: int
    """A session ends before its prompt would pass this many tokens (or the context)."""
    turns: LogNormal
    """Requests of the main agent, before the cuts of ``longest_prompt`` and the context."""
    first_prompt: LogNormal
    """Tokens of a session's first prompt: tool definitions, system prompt and task."""
    tool_result: LogNormal
    """Tokens a turn adds besides the replayed output of the turn before it."""
    output: LogNormal
    """Output tokens of a request (exact: the scenario sets ``ignore_eos``)."""
    tool_wait: LogNormal
    """Seconds from the end of a request to the start of the next of that agent."""
    reread_share: float
    """Share of tool results that repeat one of the session's earlier results (a file read again).
    The text recurs inside the prompt, which is what an ngram drafter looks for; it is no prefix,
    so it adds nothing to the prefix-cache hit rate."""
    subagent_share: float
    """Share of sessions that use subagents, dealt out evenly; the first session is one of them."""
    spawns: LogNormal
    """Turns after which such a session starts subagents and waits for them."""
    fan_out: LogNormal
    """Subagents started together; they run at the same time."""
    subagent_turns: LogNormal
    subagent_prompt: LogNormal
    """Tokens of a subagent's first prompt."""
    shared_tokens: int
    """Leading tokens a subagent's prompt has in common with its parent's (tool definitions)."""
    ttft_s: float
    """Recorded seconds to the first token. With ``itl_s`` it only shapes the recorded timeline
    (where in a session a lane starts); the replay waits for the real server."""
    itl_s: float
    """Recorded seconds per output token."""

    def __post_init__(self) -> None:
        for name in ("sessions", "max_model_len", "longest_prompt"):
            if getattr(self, name) < 1:
                raise UserError(
                    f"{name} must be at least 1 in a trace corpus, "
                    f"but is {getattr(self, name)}; give a larger number."
                )
        for name in ("reread_share", "subagent_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(
                    f"{name} must lie between 0 and 1, but is {getattr(self, name)}; mend it."
                )
        if self.shared_tokens < 0 or self.ttft_s < 0 or self.itl_s < 0:
            raise UserError("shared_tokens, ttft_s and itl_s must not be negative; mend them.")
        first, answer, result = (
            math.ceil(tokens / BLOCK_SIZE)
            for tokens in (
                max(self.first_prompt.high, self.subagent_prompt.high),
                self.output.high,
                self.tool_result.high,
            )
        )
        prompt = BLOCK_SIZE * (first + (MIN_TURNS - 1) * (answer + result))
        needed = prompt + prompt_overhead(prompt, MIN_TURNS) + math.ceil(self.output.high)
        for have, need, name in (
            (self.max_model_len, needed, "max_model_len"),
            (self.longest_prompt, prompt, "longest_prompt"),
        ):
            if have < need:
                raise UserError(
                    f"The trace profile '{self.profile}' needs a {name} of at least {need} tokens "
                    f"for {MIN_TURNS} turns at their largest, but it is {have}; raise it or take a "
                    f"smaller profile."
                )

    def fits(self, prompt_tokens: int, output_tokens: int, turn: int) -> bool:
        """Whether turn number ``turn`` (from 1) may send this prompt and ask for this output."""
        needed = prompt_tokens + prompt_overhead(prompt_tokens, turn) + output_tokens
        return prompt_tokens <= self.longest_prompt and needed <= self.max_model_len


def prompt_overhead(prompt_tokens: int, turn: int) -> int:
    """Tokens to keep free for what the server counts beyond the trace's prompt on turn ``turn``.

    64 for the chat template's own system prompt, the generation prompt and aiperf's cache-bust
    marker; 8 for each of the 2 * turn - 1 messages' template; 3 % because the text of joined
    blocks does not always encode back to the same number of tokens.
    """
    return 64 + 8 * (2 * turn - 1) + math.ceil(0.03 * prompt_tokens)


def smoke(
    max_model_len: int = 4096, *, seed: int = 42, sessions: int = 32, **changes: Any
) -> TraceSpec:
    """A corpus that a small model on two CPU cores gets through: many short turns in 20-30 s.

    All token counts are chosen, none measured; ``changes`` replaces fields of the spec.

    Raises:
        UserError: the context is too small, or a change is out of range or of unknown name.
    """
    return _spec(
        changes,
        profile="smoke",
        seed=seed,
        sessions=sessions,
        max_model_len=max_model_len,
        longest_prompt=min(2560, max_model_len),
        turns=LogNormal(7, 0.35, 4, 16),
        first_prompt=LogNormal(256, 0.25, 192, 448),
        tool_result=LogNormal(64, 0.8, 32, 384),
        output=LogNormal(17, 0.4, 12, 40),
        tool_wait=LogNormal(0.2, 0.7, 0.1, 1.0),
        reread_share=0.25,
        subagent_share=0.75,
        spawns=LogNormal(1, 0, 1, 1),
        fan_out=LogNormal(1, 0, 1, 1),
        subagent_turns=LogNormal(2.5, 0.4, 2, 4),
        subagent_prompt=LogNormal(256, 0.2, 192, 384),
        shared_tokens=128,
        ttft_s=0.2,
        itl_s=0.03,
    )


def agentic(max_model_len: int, *, seed: int = 42, sessions: int = 64, **changes: Any) -> TraceSpec:
    """A corpus of the public corpus's shape: sessions that grow until the context is full.

    At 1,048,576 tokens nothing is cut down. A smaller context ends sessions earlier and caps the
    single pieces (first prompt at a quarter of it, a tool result and an output at a sixteenth);
    what one turn adds stays as it is. ``changes`` replaces fields of the spec.

    Raises:
        UserError: the context is under 16,384 tokens, or a change is out of range or unknown.
    """
    if max_model_len < 16384:
        raise UserError(
            f"The trace profile 'agentic' needs a context of at least 16384 tokens, but it is "
            f"{max_model_len}; serve with a larger max_model_len or use the profile 'smoke'."
        )

    def capped(whole: LogNormal, share: float) -> LogNormal:
        high = min(whole.high, max_model_len * share)
        return LogNormal(min(whole.median, high / 2), whole.sigma, min(whole.low, high / 4), high)

    return _spec(
        changes,
        profile="agentic",
        seed=seed,
        sessions=sessions,
        max_model_len=max_model_len,
        longest_prompt=max_model_len,
        turns=LogNormal(105, 1.0, 20, 800),
        first_prompt=capped(LogNormal(24_000, 0.7, 10_000, 90_000), 1 / 4),
        tool_result=capped(LogNormal(600, 1.6, 32, 60_000), 1 / 16),
        output=capped(LogNormal(340, 1.6, 16, 20_000), 1 / 16),
        tool_wait=LogNormal(1.5, 1.5, 0.05, 300),
        reread_share=0.1,
        subagent_share=0.75,
        spawns=LogNormal(4.5, 0.7, 1, 20),
        fan_out=LogNormal(2, 0.6, 1, 6),
        subagent_turns=LogNormal(8, 0.7, 2, 60),
        subagent_prompt=capped(LogNormal(20_000, 0.6, 6_000, 90_000), 1 / 8),
        shared_tokens=int(min(8192, max_model_len / 64)),
        ttft_s=1.0,
        itl_s=0.02,
    )


PROFILES: dict[str, Callable[..., TraceSpec]] = {"smoke": smoke, "agentic": agentic}


def make_spec(profile: str, max_model_len: int, **changes: Any) -> TraceSpec:
    """A shipped profile's spec; ``changes`` may hold ``seed``, ``sessions`` and any other field.

    Raises:
        UserError: no such profile, or what the profile itself raises.
    """
    if profile not in PROFILES:
        raise UserError(
            f"There is no trace profile '{profile}'; choose one of {', '.join(PROFILES)}."
        )
    return PROFILES[profile](max_model_len, **changes)


def _spec(changes: dict[str, Any], **defaults: Any) -> TraceSpec:
    for name in changes:
        if name not in defaults:
            raise UserError(
                f"A trace spec has no field '{name}'; its fields are {', '.join(defaults)}."
            )
    return TraceSpec(**(defaults | changes))


def _blocks(tokens: float) -> int:
    """The whole number of blocks, at least 1, that is nearest to ``tokens``."""
    return max(1, round(tokens / BLOCK_SIZE))


class _Turn(NamedTuple):
    hash_ids: list[int]
    output: int
    wait_ms: int


def _turns(
    spec: TraceSpec, rng: random.Random, head: list[int], wanted: int, fresh: Iterator[int]
) -> list[_Turn]:
    """The requests of one agent whose first prompt is ``head``; ``fresh`` yields unused ids."""
    turns: list[_Turn] = []
    results: list[list[int]] = []
    blocks = head
    while len(turns) < wanted:
        output = spec.output.count(rng)
        if not spec.fits(len(blocks) * BLOCK_SIZE, output, len(turns) + 1):
            break
        turns.append(_Turn(blocks, output, round(1000 * spec.tool_wait.sample(rng))))
        size = _blocks(spec.tool_result.sample(rng))
        if results and rng.random() < spec.reread_share:
            result = rng.choice(results)[:size]
        else:
            result = list(islice(fresh, size))
            results.append(result)
        # The replayed answer first, in new blocks: so nothing after the old prompt is a prefix.
        # aiperf rounds an answer up to whole blocks.
        blocks = [*blocks, *islice(fresh, math.ceil(output / BLOCK_SIZE)), *result]
    return turns


def _timeline(
    spec: TraceSpec, turns: list[_Turn], start_ms: int, spawned: dict[int, list[list[_Turn]]]
) -> tuple[list[dict[str, Any]], int]:
    """One agent's entries from ``start_ms`` on, and the time (ms) at which all its work is done.

    ``spawned`` maps a turn's index to the subagents started when it ends; the next turn waits for
    them.
    """
    entries: list[dict[str, Any]] = []
    agents = 0
    done = start_ms
    for k, turn in enumerate(turns):
        first, last = k == 0, k == len(turns) - 1
        at = start_ms if first else done + turn.wait_ms
        api_ms = round(1000 * (spec.ttft_s + turn.output * spec.itl_s))
        entries.append(
            {
                "t": at / 1000,
                "type": "s",
                "model": MODEL,
                "in": len(turn.hash_ids) * BLOCK_SIZE,
                "out": turn.output,
                "hash_ids": turn.hash_ids,
                "input_types": ["text" if first else "tool_result"],
                "output_types": ["text" if last else "tool_use"],
                "stop": "end_turn" if last else "tool_use",
                "api_time": api_ms / 1000,
                "think_time": 0.0 if first else turn.wait_ms / 1000,
                "ttft": spec.ttft_s,
            }
        )
        end = done = at + api_ms
        for agent in spawned.get(k, []):
            agents += 1
            requests, agent_done = _timeline(spec, agent, end, {})
            entries.append(
                {
                    "t": end / 1000,
                    "type": "subagent",
                    "agent_id": f"agent_{agents:03d}",
                    "subagent_type": "general-purpose",
                    "duration_ms": agent_done - end,
                    "total_tokens": sum(r["in"] + r["out"] for r in requests),
                    "tool_use_count": len(requests) - 1,
                    "status": "completed",
                    "models": [MODEL],
                    "tool_tokens": 0,
                    "system_tokens": 0,
                    "requests": requests,
                }
            )
            done = max(done, agent_done)
    return entries, done


def session(spec: TraceSpec, index: int) -> dict[str, Any]:
    """Session number ``index`` (from 0) of the corpus: the content of one weka_trace file."""
    trace_id = f"{spec.profile}-{spec.seed}-{index:05d}"
    rng = random.Random(trace_id)
    fresh = count()
    head = list(islice(fresh, _blocks(spec.first_prompt.sample(rng))))
    turns = _turns(spec, rng, head, max(MIN_TURNS, spec.turns.count(rng)), fresh)
    spawned: dict[int, list[list[_Turn]]] = {}
    share = spec.subagent_share
    if math.ceil((index + 1) * share) > math.ceil(index * share):
        # Never after the last turn: nobody would wait for them.
        starts = min(spec.spawns.count(rng), len(turns) - 1)
        for k in sorted(rng.sample(range(len(turns) - 1), starts)):
            agents = spawned[k] = []
            for _ in range(spec.fan_out.count(rng)):
                size = _blocks(spec.subagent_prompt.sample(rng))
                shared = min(spec.shared_tokens // BLOCK_SIZE, len(head), size - 1)
                prompt = [*head[:shared], *islice(fresh, size - shared)]
                agents.append(_turns(spec, rng, prompt, spec.subagent_turns.count(rng), fresh))
    requests, _ = _timeline(spec, turns, 0, spawned)
    return {
        "id": trace_id,
        "models": [MODEL],
        "block_size": BLOCK_SIZE,
        # 0 and 0, as in the newest public captures: all text follows the cache-bust marker, so
        # nothing of one session or point is left warm for the next.
        "hash_id_scope": "local",
        "tool_tokens": 0,
        "system_tokens": 0,
        "requests": requests,
        "totals": {
            "generator": "samenode",
            "profile": spec.profile,
            "seed": spec.seed,
            "max_model_len": spec.max_model_len,
        },
    }


def write_traces(spec: TraceSpec, folder: Path) -> str:
    """Write the corpus, one file a session, and return its ``corpus_sha256``.

    ``folder`` is made if it is missing. Running again over the same corpus's files, whole or
    half written, is fine; anything else in the folder is refused, because aiperf reads every
    ``*.json`` there.

    Raises:
        UserError: the folder holds other files, or is none.
        OSError: the folder cannot be written or the disk is full.
    """
    names = [f"session-{index:05d}.json" for index in range(spec.sessions)]
    if folder.exists():
        if not folder.is_dir():
            raise UserError(f"{folder} is a file, not a folder for traces; name another folder.")
        # A dot file is a temporary one, left where a run was killed.
        others = sorted(
            path.name
            for path in folder.iterdir()
            if path.name not in names and not path.name.startswith(".")
        )
        if others:
            raise UserError(
                f"The trace folder {folder} holds other files ({others[0]}"
                f"{', …' if len(others) > 1 else ''}); name an empty folder."
            )
    for index, name in enumerate(names):
        text = json.dumps(session(spec, index), separators=(",", ":"), allow_nan=False)
        write_text(folder / name, text + "\n")
    return corpus_sha256(folder)


def corpus_sha256(folder: Path) -> str:
    """SHA-256 (hex) over the names and contents of a corpus's ``*.json`` files, in name order.

    Raises:
        UserError: there is no such folder, or it holds no ``*.json`` file.
    """
    digest = hashlib.sha256()
    for path in _trace_files(folder):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.name}\0{content}\n".encode())
    return digest.hexdigest()


def _trace_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UserError(f"{folder} holds no trace files (*.json); name the folder of a corpus.")
    return files


@dataclass(frozen=True)
class Spread:
    """Mean, percentiles (linear between values) and greatest of some numbers."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        ordered = sorted(values)

        def at(share: float) -> float:
            place = share * (len(ordered) - 1)
            below = ordered[math.floor(place)]
            return below + (place - math.floor(place)) * (ordered[math.ceil(place)] - below)

        return cls(fmean(ordered), at(0.5), at(0.9), at(0.99), ordered[-1])


@dataclass(frozen=True)
class CorpusSummary:
    """What a folder of weka_trace files holds; requests are those of main agents and subagents."""

    sha256: str
    block_sizes: tuple[int, ...]
    sessions: int
    sessions_with_subagents: int
    subagents: int
    requests: int
    subagent_requests: int
    turns: Spread
    """Main-agent requests per session."""
    input_tokens: Spread
    """Prompt tokens per request."""
    new_tokens: Spread
    """Prompt tokens per request that no earlier request of its session had as a prefix."""
    output_tokens: Spread
    """Output tokens per request."""
    waits: Spread | None
    """Seconds from the end of a request to the same agent's next, where no subagent ran between."""
    prefix_reuse: float
    """Σ blocks found as a prefix in earlier requests of the session / Σ blocks: the hit rate of an
    endless prefix cache, counted as aiperf counts ``theoretical_prefix_cache_hit``."""
    longest: int
    """Largest prompt + output of one request, in tokens."""


def summarise(folder: Path) -> CorpusSummary:
    """Measure a corpus, ours or any folder of weka_trace files, one file in memory at a time.

    Raises:
        UserError: no such folder, no trace in it, or a file that is not a weka_trace.
    """
    turns: list[int] = []
    inputs: list[int] = []
    new: list[int] = []
    outputs: list[int] = []
    waits: list[float] = []
    block_sizes: set[int] = set()
    with_subagents = subagents = subagent_requests = hits = total = 0
    for path in _trace_files(folder):
        try:
            trace = json.loads(path.read_bytes())
            block_sizes.add(trace["block_size"])
            entries = trace["requests"]
            agents = [entry["requests"] for entry in entries if entry["type"] == "subagent"]
            turns.append(len(entries) - len(agents))
            with_subagents += bool(agents)
            subagents += len(agents)
            subagent_requests += sum(len(agent) for agent in agents)
            for request, found in _prefix_hits(entries):
                hits += found
                total += len(request["hash_ids"])
                inputs.append(request["in"])
                new.append(max(0, request["in"] - found * trace["block_size"]))
                outputs.append(request["out"])
            for agent in (entries, *agents):
                waits += _waits(agent)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path} is not a weka_trace file ({type(error).__name__}: {error}); "
                f"remove it or name another folder."
            ) from error
    if not inputs:
        raise UserError(f"The traces in {folder} hold no request; name another folder.")
    return CorpusSummary(
        sha256=corpus_sha256(folder),
        block_sizes=tuple(sorted(block_sizes)),
        sessions=len(turns),
        sessions_with_subagents=with_subagents,
        subagents=subagents,
        requests=len(inputs),
        subagent_requests=subagent_requests,
        turns=Spread.of(turns),
        input_tokens=Spread.of(inputs),
        new_tokens=Spread.of(new),
        output_tokens=Spread.of(outputs),
        waits=Spread.of(waits) if waits else None,
        prefix_reuse=hits / total if total else 0.0,
        longest=max(i + o for i, o in zip(inputs, outputs, strict=True)),
    )


def _prefix_hits(entries: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], int]]:
    """Each request of a trace with its leading blocks that earlier requests have sent.

    aiperf's order and count: by start, then by place in the file; main agent and subagents share
    the blocks seen.
    """
    placed = [
        (request["t"], outer, k, request)
        for outer, entry in enumerate(entries)
        for k, request in enumerate(entry["requests"] if entry["type"] == "subagent" else [entry])
    ]
    seen: set[int] = set()
    for _, _, _, request in sorted(placed, key=lambda place: place[:3]):
        yield request, sum(1 for _ in takewhile(seen.__contains__, request["hash_ids"]))
        seen.update(request["hash_ids"])


def _waits(entries: list[dict[str, Any]]) -> list[float]:
    """Seconds between one agent's requests, leaving out those that a subagent filled."""
    return [
        max(0.0, after["t"] - before["t"] - (before.get("api_time") or 0.0))
        for before, after in pairwise(entries)
        if "subagent" not in (before["type"], after["type"])
    ]


def describe(folder: Path) -> str:
    """What a corpus holds, as a text of a few lines for the terminal (see ``summarise``).

    Raises:
        UserError: no such folder, no trace in it, or a file that is not a weka_trace.
    """
    held = summarise(folder)
    sizes = ", ".join(map(str, held.block_sizes))
    rows: list[tuple[str, Spread | None, str]] = [
        ("turns per session", held.turns, ",.0f"),
        ("prompt tokens", held.input_tokens, ",.0f"),
        ("new prompt tokens", held.new_tokens, ",.0f"),
        ("output tokens", held.output_tokens, ",.0f"),
        ("tool wait (s)", held.waits, ",.2f"),
    ]
    lines = [
        f"{folder}: {held.sessions} sessions, {held.requests:,} requests, block size {sizes}",
        f"sha256 {held.sha256}",
        f"subagents: {held.subagents} in {held.sessions_with_subagents} sessions, "
        f"{held.subagent_requests:,} of the requests",
        f"theoretical prefix reuse: {100 * held.prefix_reuse:.1f} % of the prompt blocks",
        f"largest prompt + output: {held.longest:,} tokens",
        f"{'':20}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}",
    ]
    for label, spread, form in rows:
        if spread is not None:
            cells = (spread.mean, spread.p50, spread.p90, spread.p99, spread.max)
            lines.append(f"{label:20}" + "".join(f"{cell:>10{form}}" for cell in cells))
    return "\n".join(lines)
