"""AgentX: replay agentic traces against a running server with aiperf.

The scenario (``inferencex-agentx-mvp``) is aiperf's; this module only builds the command. A result
is *canonical* when the leaderboard's client replays the public corpus for the full hour; anything
else says why it is not.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from recipes.schema import AgentX
from samenode.errors import UserError
from serve.models import Model

SCENARIO = "inferencex-agentx-mvp"
CANONICAL_DURATION_S = 3600
PUBLIC_CORPUS_TRACES = 393
SCENARIO_MIN_S = 900
"""Below this the scenario refuses to run without --unsafe-override."""


@dataclass(frozen=True)
class Aiperf:
    """An aiperf program. ``leaderboard``: it is the AgentX fork, known by its own flags."""

    program: str
    version: str
    leaderboard: bool


@cache
def probe(program: str) -> Aiperf:
    """Ask an aiperf program what it is (a few seconds).

    Raises:
        UserError: it is missing or does not run.
    """
    try:
        version = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=True, timeout=120
        ).stdout.split()[-1]
        flags = subprocess.run(
            [program, "profile", "--help"], capture_output=True, text=True, check=True,
            timeout=120, env={**os.environ, "COLUMNS": "300"},
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise UserError(f"{program} does not run ({error}); run 'make setup'") from error
    return Aiperf(program, version, "--warmup-requests-per-lane" in flags)


@dataclass(frozen=True)
class Corpus:
    """What is replayed: aiperf's name of a public dataset, or a folder of generated traces."""

    name: str
    public: str | None = None
    folder: Path | None = None


def corpus_repository(public: str) -> str:
    """The hub's dataset behind one of aiperf's SemiAnalysis corpora."""
    return f"semianalysisai/{public.removeprefix('semianalysis_').replace('_', '-')}"


def why_not_canonical(client: Aiperf, corpus: Corpus, duration_s: int) -> list[str]:
    """Every way in which a result differs from a leaderboard result; empty when it is one."""
    reasons = []
    if not client.leaderboard:
        reasons.append(f"aiperf {client.version} warms up by time, the leaderboard client by count")
    if corpus.public is None:
        reasons.append("generated traces instead of the public corpus")
    if duration_s != CANONICAL_DURATION_S:
        reasons.append(f"{duration_s} s a point instead of {CANONICAL_DURATION_S} s")
    return reasons


def command(
    settings: AgentX, client: Aiperf, corpus: Corpus, model: Model, url: str, conc: int, out: Path
) -> list[str]:
    """The aiperf command line for one point; artefacts go to ``out``.

    ``conc`` counts live session trees. Every run of aiperf puts a prefix of its own before each
    session, so no point finds another's prompts in the server's prefix cache.
    """
    # The hub-cache view of a local tokenizer works offline only, and a public corpus is not.
    local = model.source != "hub" and corpus.public
    argv = [
        client.program, "profile",
        "--scenario", SCENARIO,
        "--model", model.name,
        "--tokenizer", model.path if local else model.tokenizer,
        "--url", url,
        "--endpoint-type", "chat",
        "--streaming",
        "--concurrency", str(conc),
        "--benchmark-duration", str(settings.duration_s),
        "--random-seed", str(settings.seed),
        "--failed-request-threshold", "0.10",
        "--trajectory-start-min-ratio", "0.25",
        "--trajectory-start-max-ratio", "0.75",
        "--use-server-token-count",
        "--slice-duration", str(settings.slice_s),
        "--server-metrics", f"{url}/metrics",
        "--no-gpu-telemetry",
        "--ui", "none",
        "--artifact-dir", str(out),
    ]  # fmt: skip
    if model.revision:
        argv += ["--tokenizer-revision", model.revision]
    if client.leaderboard:
        argv += [
            "--warmup-requests-per-lane", str(settings.warmup_requests_per_lane),
            "--trace-idle-gap-cap-seconds", "300",
            "--warmup-grace-period", str(settings.warmup_grace_s),
        ]  # fmt: skip
    else:
        argv += [
            "--agentic-cache-warmup-duration", str(settings.warmup_s),
            "--agentic-warmup-grace-period", str(settings.warmup_grace_s),
        ]  # fmt: skip
    if corpus.public:
        argv += ["--public-dataset", corpus.public]
        argv += ["--num-dataset-entries", str(PUBLIC_CORPUS_TRACES)]
    else:
        argv += ["--custom-dataset-type", "weka_trace", "--input-file", str(corpus.folder)]
    if corpus.public is None or settings.duration_s < SCENARIO_MIN_S:
        argv.append("--unsafe-override")
    return argv
