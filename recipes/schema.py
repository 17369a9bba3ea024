"""What a recipe may say. Field names are InferenceX's where it has them.

A recipe describes servers and workloads; it knows nothing of processes. ``docs/recipes.md`` shows
a whole file.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from recipes.strict import Strict

Flag = str | int | float | bool | None
"""A server flag's value: true gives ``--flag``, false ``--no-flag``, null leaves the flag out."""

ArmName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
"""Lower-case letters, digits, dots and hyphens: arm names become file names."""

PositiveInt = Annotated[int, Field(ge=1)]


class SearchSpace(Strict):
    """One parallel config and its concurrencies.

    ``tp`` · ``pp`` · ``dp`` GPUs serve it. InferenceX writes attention data parallelism as
    ``dp-attn`` over tp GPUs; here the replicas are counted (``dp``), because that is what the
    server is told, and ``ep`` is the number of ranks that share the experts.
    """

    tp: PositiveInt = 1
    pp: PositiveInt = 1
    dp: PositiveInt = 1
    ep: PositiveInt = 1
    spec_decoding: str = "none"
    kv_offloading: Literal["none"] = "none"
    conc_list: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] | None = None
    conc_start: PositiveInt | None = None
    conc_end: PositiveInt | None = None
    flags: dict[str, Flag] = {}
    """Server flags of this config alone."""
    accuracy: bool = True
    """Whether GSM8K is run on this config."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        span = (self.conc_start, self.conc_end)
        if (self.conc_list is None) == (span == (None, None)) or (span.count(None) == 1):
            raise ValueError("give either conc-list, or conc-start and conc-end")
        if self.conc_start and self.conc_end and self.conc_end < self.conc_start:
            raise ValueError("conc-end is smaller than conc-start")
        if self.ep not in (1, self.tp * self.dp):
            raise ValueError(f"ep must be 1 or tp·dp = {self.tp * self.dp}")
        return self

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """Live session trees, ascending; a start and an end are walked in steps of ×2."""
        if self.conc_list is not None:
            return tuple(sorted(set(self.conc_list)))
        assert self.conc_start and self.conc_end
        values = []
        conc = self.conc_start
        while conc < self.conc_end:
            values.append(conc)
            conc *= 2
        return (*values, self.conc_end)

    @property
    def gpus(self) -> int:
        """Devices that one server of this config takes: tp · pp · dp."""
        return self.tp * self.pp * self.dp

    @property
    def name(self) -> str:
        """A short name, unique within a recipe: ``tp2-dspark``, ``tp1-dp2-ep2-dspark``."""
        parts = [f"tp{self.tp}"]
        parts += [
            f"{k}{v}" for k, v in (("pp", self.pp), ("dp", self.dp), ("ep", self.ep)) if v > 1
        ]
        parts += [self.spec_decoding] if self.spec_decoding != "none" else []
        return "-".join(parts)


class AgenticCoding(Strict):
    """An agentic-coding scenario: the parallel configs under which the traces are replayed."""

    search_space: Annotated[tuple[SearchSpace, ...], Field(min_length=1)]


class Scenarios(Strict):
    """The scenarios that a recipe runs."""

    agentic_coding: Annotated[tuple[AgenticCoding, ...], Field(min_length=1)]


class LocalModel(Strict):
    """A model file inside a package of the server environment, for nodes without a hub.

    ``sha256`` is checked before the file is converted, so that two nodes serve the same weights.
    """

    package: str
    file: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    name: str
    """The name under which it is served and reported."""


class Server(Strict):
    """How every arm's server is started. Flags are vLLM's, without the leading dashes."""

    env: dict[str, str] = {}
    flags: dict[str, Flag] = {}
    seqs_per_conc: PositiveInt | None = None
    """--max-num-seqs = this · CONC: a session tree's subagents are requests beside its own."""
    capture_tokens_per_seq: PositiveInt | None = None
    """--max-cudagraph-capture-size = the power of two ≥ max-num-seqs · this, within the limit."""
    capture_limit: PositiveInt = 2048
    ready_timeout_s: PositiveInt = 3600
    stop_grace_s: PositiveInt = 60


class Arm(Strict):
    """One side of the comparison: what its server has that the others have not."""

    baseline: bool = False
    about: str = ""
    env: dict[str, str] = {}
    flags: dict[str, Flag] = {}
    must_dispatch: tuple[str, ...] = ()
    """Kernels that must have run in this arm, and in no arm that does not name them."""


class Speculative(Strict):
    """Speculative decoding, apart for throughput and for accuracy.

    Throughput runs may use synthetic rejection at a golden acceptance length, so that arms draft
    and accept alike; accuracy runs must reject for real. The two are vLLM's --speculative-config.
    """

    throughput: dict[str, Any]
    accuracy: dict[str, Any]
    golden_acceptance: str = ""
    """Where a synthetic acceptance length comes from."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, config in (("throughput", self.throughput), ("accuracy", self.accuracy)):
            if not isinstance(config.get("method"), str):
                raise ValueError(f"{name} must name a method")
        if self.accuracy.get("rejection_sample_method") == "synthetic":
            raise ValueError("accuracy must not use synthetic rejection: it makes answers up")
        length = self.throughput.get("synthetic_acceptance_length")
        if length is not None:
            tokens = int(self.throughput.get("num_speculative_tokens", 0))
            if not 1 <= length <= tokens + 1:
                raise ValueError(f"synthetic_acceptance_length must lie in [1, {tokens + 1}]")
        return self


class Traces(Strict):
    """Generated traces, replayed where the public corpus cannot be had."""

    profile: Literal["smoke", "agentic"] = "agentic"
    sessions: PositiveInt = 32
    seed: int = 42


class AgentX(Strict):
    """How the agentic traces are replayed."""

    duration_s: PositiveInt = 3600
    seed: int = 42
    public_dataset: str | None = "semianalysis_cc_traces_weka_062126"
    traces: Traces = Traces()
    warmup_requests_per_lane: PositiveInt = 10
    """Used by the leaderboard client; PyPI's aiperf warms up for a time instead."""
    warmup_s: PositiveInt = 60
    warmup_grace_s: PositiveInt = 1800
    slice_s: Annotated[float, Field(gt=0)] = 1.0


class Gsm8k(Strict):
    """GSM8K and what an arm must reach.

    ``floor`` is the least exact match for a valid score on the full test set; ``margin`` is how
    far an arm may fall below the baseline arm (non-inferiority).
    """

    shots: Annotated[int, Field(ge=0, le=16)] = 5
    max_tokens: PositiveInt = 12288
    concurrency: PositiveInt = 8
    ep_concurrency: PositiveInt = 64
    """Used instead where experts are shared between ranks (ep > 1)."""
    limit: PositiveInt | None = None
    floor: Annotated[float, Field(ge=0, le=1)] | None = None
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.02


class Validity(Strict):
    """What invalidates a row; see docs/validity.md for the rules that have no setting."""

    max_error_ratio: Annotated[float, Field(ge=0, le=1)] = 0.10
    """Errors / completed requests."""
    cache_hit_tolerance: Annotated[float, Field(gt=0, le=1)] | None = 0.02
    """Largest difference in prefix-cache hit rate between the arms of a pair. null where the arms
    differ in caching on purpose."""
    acceptance_tolerance: Annotated[float, Field(gt=0)] = 0.02
    """Largest distance of the acceptance length from a synthetic target."""


class Slo(Strict):
    """Limits that a request must keep to count for goodput, in milliseconds."""

    ttft_ms: Annotated[float, Field(gt=0)] | None = None
    itl_ms: Annotated[float, Field(gt=0)] | None = None


class Recipe(Strict):
    """A whole recipe file."""

    name: str
    """The file's name without its ending."""
    about: str = ""
    image: str
    model: str
    model_revision: str | None = None
    model_prefix: str
    fallback_model: LocalModel | None = None
    precision: str
    framework: Literal["vllm"]
    runner: str
    multinode: Literal[False] = False
    accelerator: Literal["rocm", "cuda", "cpu"]
    gpu_arch: str | None = None
    """An architecture that the node's GPUs must have, such as gfx950."""
    scenarios: Scenarios
    arms: Annotated[dict[ArmName, Arm], Field(min_length=1)]
    speculative: dict[str, Speculative] = {}
    server: Server = Server()
    agentx: AgentX = AgentX()
    gsm8k: Gsm8k = Gsm8k()
    slo: Slo | None = None
    validity: Validity = Validity()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        baselines = [name for name, arm in self.arms.items() if arm.baseline]
        if len(baselines) != 1:
            raise ValueError(f"exactly one arm must say 'baseline: true', not {len(baselines)}")
        names = [space.name for space in self.search_space]
        for space in self.search_space:
            if space.spec_decoding not in ("none", *self.speculative):
                known = ", ".join(("none", *self.speculative))
                raise ValueError(f"spec-decoding '{space.spec_decoding}' is not one of: {known}")
            if names.count(space.name) > 1:
                raise ValueError(f"two search-space entries are both called {space.name}")
        return self

    @property
    def baseline(self) -> str:
        """The arm against which the others are compared."""
        return next(name for name, arm in self.arms.items() if arm.baseline)

    @property
    def search_space(self) -> tuple[SearchSpace, ...]:
        """Every parallel config of every agentic-coding scenario."""
        return tuple(s for scenario in self.scenarios.agentic_coding for s in scenario.search_space)

    def fingerprint(self, space: SearchSpace) -> str:
        """What makes two runs of one parallel config the same experiment.

        sha256 of the canonical JSON (sorted keys, no spaces) of the recipe narrowed to ``space``,
        without concurrencies and without names and descriptions.
        """
        body = self.model_dump(mode="json", exclude={"name", "about", "model_prefix", "runner"})
        body["scenarios"] = space.model_dump(
            mode="json", exclude={"conc_list", "conc_start", "conc_end"}
        )
        for arm in body["arms"].values():
            del arm["about"]
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()
