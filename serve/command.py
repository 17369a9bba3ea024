"""The command line and environment of one arm's server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from recipes.schema import Flag, Recipe, SearchSpace
from serve.models import Model

Phase = Literal["throughput", "accuracy"]


@dataclass(frozen=True)
class ServerCommand:
    """What starts a server: ``argv`` without the executable's folder, and what is added to the
    environment. Two equal commands are the same server."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    port: int
    model: str

    @property
    def url(self) -> str:
        """Base URL; servers listen on the loopback interface only."""
        return f"http://127.0.0.1:{self.port}"

    def shell(self) -> str:
        """The command as a person would type it."""
        import shlex

        return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in self.env), shlex.join(self.argv)])


def speculative_config(recipe: Recipe, space: SearchSpace, phase: Phase) -> dict[str, Any] | None:
    """vLLM's --speculative-config for ``phase``, or None where nothing is drafted."""
    if space.spec_decoding == "none":
        return None
    settings = recipe.speculative[space.spec_decoding]
    return settings.throughput if phase == "throughput" else settings.accuracy


def server_command(
    recipe: Recipe, arm: str, space: SearchSpace, phase: Phase, conc: int, model: Model, port: int
) -> ServerCommand:
    """Build the server of ``arm`` for the parallel config ``space``.

    ``conc`` is the largest concurrency that this server will see: batch and graph limits follow
    it, and are the same in every arm. Later flags win: recipe, config, arm.
    """
    server = recipe.server
    flags: dict[str, Flag] = {
        "served-model-name": model.name,
        "host": "127.0.0.1",
        "port": port,
        "tensor-parallel-size": space.tp,
    }
    if model.revision:
        flags |= {"revision": model.revision, "tokenizer-revision": model.revision}
    if space.pp > 1:
        flags["pipeline-parallel-size"] = space.pp
    if space.dp > 1:
        flags["data-parallel-size"] = space.dp
    if space.ep > 1:
        flags["enable-expert-parallel"] = True
    if server.seqs_per_conc:
        seqs = server.seqs_per_conc * conc
        flags["max-num-seqs"] = seqs
        if server.capture_tokens_per_seq:
            wanted = max(1, seqs * server.capture_tokens_per_seq)
            flags["max-cudagraph-capture-size"] = min(
                1 << (wanted - 1).bit_length(), server.capture_limit
            )
    flags |= {**server.flags, **space.flags, **recipe.arms[arm].flags}
    spec = speculative_config(recipe, space, phase)
    if spec:
        flags["speculative-config"] = json.dumps(spec, separators=(",", ":"))
    env = {**model.server_env, **server.env, **recipe.arms[arm].env}
    return ServerCommand(
        argv=("vllm", "serve", model.path, *render(flags)),
        env=tuple(sorted(env.items())),
        port=port,
        model=model.name,
    )


def render(flags: Mapping[str, Flag]) -> list[str]:
    """Flags as arguments: true ``--flag``, false ``--no-flag``, null nothing, else ``--flag x``."""
    argv: list[str] = []
    for name, value in flags.items():
        if value is True:
            argv.append(f"--{name}")
        elif value is False:
            argv.append(f"--no-{name}")
        elif value is not None:
            argv += [f"--{name}", str(value)]
    return argv
