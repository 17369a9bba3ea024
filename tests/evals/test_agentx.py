"""The aiperf command line, and what makes a result canonical."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from evals.agentx import Aiperf, Corpus, command, corpus_repository, probe, why_not_canonical
from recipes.load import load
from samenode.errors import UserError
from serve.models import Model

SETTINGS = load("dsv41flash-fp4-mi355x-vllm-agentic-dspark").agentx
PYPI = Aiperf("aiperf", "0.13.0", leaderboard=False)
FORK = Aiperf("/opt/fork/aiperf", "0.9", leaderboard=True)
PUBLIC = Corpus("semianalysis_cc_traces_weka_062126", "semianalysis_cc_traces_weka_062126")
MADE = Corpus("synthetic:x", folder=Path("/traces"))
HUB = Model("org/m", "org/m", "org/m", "hub", "rev")
FOLDER = Model("m", "/models/m", "local/m-1", "path", client_env={"HF_HUB_OFFLINE": "1"})


def argv(client: Aiperf, corpus: Corpus, model: Model = HUB, duration_s: int = 3600) -> list[str]:
    settings = SETTINGS.model_copy(update={"duration_s": duration_s})
    return command(settings, client, corpus, model, "http://127.0.0.1:8000", 8, Path("out"))


def value(args: list[str], flag: str) -> str:
    return args[args.index(flag) + 1]


def test_the_leaderboards_client_gets_the_leaderboards_flags() -> None:
    args = argv(FORK, PUBLIC)
    assert args[:2] == ["/opt/fork/aiperf", "profile"]
    assert value(args, "--scenario") == "inferencex-agentx-mvp"
    assert value(args, "--public-dataset") == "semianalysis_cc_traces_weka_062126"
    assert value(args, "--num-dataset-entries") == "393"
    assert value(args, "--warmup-requests-per-lane") == "10"
    assert value(args, "--trace-idle-gap-cap-seconds") == "300"
    assert value(args, "--concurrency") == "8"
    assert value(args, "--tokenizer-revision") == "rev"
    assert "--unsafe-override" not in args
    assert why_not_canonical(FORK, PUBLIC, 3600) == []


def test_pypis_client_gets_the_substitutes_and_says_so() -> None:
    args = argv(PYPI, PUBLIC)
    assert "--warmup-requests-per-lane" not in args and "--trace-idle-gap-cap-seconds" not in args
    assert value(args, "--agentic-cache-warmup-duration") == "60"
    assert "--unsafe-override" not in args
    (why,) = why_not_canonical(PYPI, PUBLIC, 3600)
    assert "warms up by time" in why


def test_made_traces_and_short_points_need_the_override_and_are_not_canonical() -> None:
    args = argv(PYPI, MADE, duration_s=30)
    assert value(args, "--input-file") == "/traces"
    assert value(args, "--custom-dataset-type") == "weka_trace"
    assert "--unsafe-override" in args and "--public-dataset" not in args
    assert len(why_not_canonical(PYPI, MADE, 30)) == 3
    assert "--unsafe-override" in argv(FORK, PUBLIC, duration_s=899)


def test_a_local_model_keeps_its_tokenizer_reachable_offline_and_online() -> None:
    assert value(argv(PYPI, MADE, FOLDER), "--tokenizer") == "local/m-1"
    assert value(argv(PYPI, PUBLIC, FOLDER), "--tokenizer") == "/models/m"


def test_the_corpus_behind_a_name() -> None:
    assert corpus_repository(PUBLIC.name) == "semianalysisai/cc-traces-weka-062126"


def test_the_installed_aiperf_is_pypis() -> None:
    found = probe(str(Path(sys.executable).with_name("aiperf")))
    assert (found.version, found.leaderboard) == ("0.13.0", False)


def test_a_missing_aiperf_says_how_to_mend_it() -> None:
    with pytest.raises(UserError, match="make setup"):
        probe("/nowhere/aiperf")
