"""The server's command line, from a recipe."""

from __future__ import annotations

import json

from recipes.load import load
from serve.command import render, server_command
from serve.models import Model

MODEL = Model("m", "org/m", "org/m", "hub", "abc")


def flags(argv: tuple[str, ...]) -> dict[str, str]:
    """Flags that take a value."""
    pairs = zip(argv, (*argv[1:], "--"), strict=True)
    return {a: b for a, b in pairs if a.startswith("--") and not b.startswith("--")}


def test_the_flagship_server_is_sized_by_its_concurrency() -> None:
    recipe = load("dsv41flash-fp4-mi355x-vllm-agentic-dspark")
    tp2, _tp4, ep2 = recipe.search_space
    command = server_command(recipe, "mono-on", tp2, "throughput", 8, MODEL, 8001)
    found = flags(command.argv)
    assert command.argv[:3] == ("vllm", "serve", "org/m")
    assert found["--tensor-parallel-size"] == "2"
    assert found["--max-num-seqs"] == "16"
    assert found["--max-cudagraph-capture-size"] == "128"  # the power of two ≥ 16 · 6
    assert found["--revision"] == "abc"
    spec = json.loads(found["--speculative-config"])
    assert (spec["rejection_sample_method"], spec["synthetic_acceptance_length"]) == (
        "synthetic",
        3.51,
    )
    env = dict(command.env)
    assert env["DSV41_KERNELS"] == "mono"
    assert env["VLLM_ROCM_USE_AITER"] == "1"

    accuracy = server_command(recipe, "mono-off", tp2, "accuracy", 8, MODEL, 8001)
    spec = json.loads(flags(accuracy.argv)["--speculative-config"])
    assert spec["rejection_sample_method"] == "block"
    assert "synthetic_acceptance_length" not in spec

    wide = flags(server_command(recipe, "mono-off", ep2, "throughput", 64, MODEL, 8001).argv)
    assert wide["--data-parallel-size"] == "2"
    assert wide["--max-num-seqs"] == "128"
    assert wide["--max-cudagraph-capture-size"] == "1024"  # the config's own limit
    assert wide["--max-num-batched-tokens"] == "8192"
    upstream = server_command(recipe, "upstream-mono", tp2, "throughput", 8, MODEL, 8001)
    assert "--monokernel" in upstream.argv


def test_only_the_arm_differs_between_arms() -> None:
    recipe = load("smoke-cpu")
    space = recipe.search_space[1]
    off = server_command(recipe, "prefix-off", space, "throughput", 4, MODEL, 8000)
    on = server_command(recipe, "prefix-on", space, "throughput", 4, MODEL, 8000)
    assert set(off.argv) ^ set(on.argv) == {"--no-enable-prefix-caching", "--enable-prefix-caching"}
    assert off.env == on.env


def test_a_server_listens_on_the_loopback_interface_only() -> None:
    recipe = load("smoke-cpu")
    command = server_command(
        recipe, "prefix-on", recipe.search_space[0], "throughput", 1, MODEL, 8000
    )
    assert flags(command.argv)["--host"] == "127.0.0.1"


def test_flags_render_by_the_kind_of_their_value() -> None:
    assert render({"a": True, "b": False, "c": None, "d": 3, "e": "x y"}) == [
        "--a", "--no-b", "--d", "3", "--e", "x y",
    ]  # fmt: skip
