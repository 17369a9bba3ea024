"""The command line as a person meets it: sentences, exit codes, no tracebacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SAMENODE = Path(sys.executable).with_name("samenode")
ROOT = Path(__file__).resolve().parents[2]


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [str(SAMENODE), *args], capture_output=True, text=True, check=False,
        env={**os.environ, **env}, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        (["agentx", "--recipe", "smoke"], 2, "unknown recipe 'smoke'; did you mean 'smoke-cpu'?"),
        (
            ["agentx", "--recipe", "smoke-cpu", "--arms", "prefix-of"],
            2,
            "did you mean 'prefix-off'",
        ),
        (["agentx", "--recipe", "smoke-cpu", "--tp", "2"], 2, "no config with TP=2"),
        (
            ["agentx", "--recipe", "smoke-cpu", "--conc", "0"],
            2,
            "--conc is 0; it must be at least 1",
        ),
        (["agentx", "--recipe", "h200-dense", "--tp", "2"], 2, "needs 2 GPUs and this node has"),
        (["resume", "nothing-like-it"], 2, "no run called 'nothing-like-it'"),
        (["import-recipe", "none.yaml", "--key", "k"], 2, "none.yaml: No such file"),
        (["gsm8k", "--runtime", "vm"], 2, "invalid choice: 'vm'"),
        (
            ["agentx", "--recipe", "smoke-cpu", "--image", "samenode:cpu"],
            2,
            "IMAGE names the image of RUNTIME=docker; give that too",
        ),
        (["nonsense"], 2, "invalid choice: 'nonsense'"),
    ],
)
def test_bad_input_is_one_sentence_and_an_exit_code(
    tmp_path: Path, args: list[str], code: int, sentence: str
) -> None:
    done = run(*args, SAMENODE_RUNS=str(tmp_path / "runs"))
    assert done.returncode == code, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("runs/*/plan.json"))


def test_a_model_that_is_nowhere_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = run(
        "agentx", "--recipe", "smoke-cpu", "--model", "no/such/model",
        SAMENODE_RUNS=str(tmp_path), HF_HUB_OFFLINE="1",
    )  # fmt: skip
    assert done.returncode == 2
    assert "no model 'no/such/model': neither a folder here nor a repository" in done.stderr


@pytest.mark.parametrize("command", [["agentx"], ["serve", "--arm", "prefix-on"]])
def test_containers_without_an_engine_are_refused_before_anything_starts(
    tmp_path: Path, command: list[str]
) -> None:
    done = run(
        *command, "--recipe", "smoke-cpu", "--runtime", "docker",
        DOCKER_HOST=f"unix://{tmp_path}/none.sock", SAMENODE_RUNS=str(tmp_path / "runs"),
        HF_HUB_OFFLINE="1",
    )  # fmt: skip
    assert done.returncode == 2
    assert "docker" in done.stderr and "RUNTIME=process" in done.stderr
    assert done.stderr.count("\n") == 1 and not list(tmp_path.glob("runs/*/plan.json"))


def test_plan_names_the_image_and_needs_no_engine(tmp_path: Path) -> None:
    done = run(
        "plan", "--recipe", "smoke-cpu", "--runtime", "docker", "--image", "mine:1",
        DOCKER_HOST=f"unix://{tmp_path}/none.sock", HF_HUB_OFFLINE="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "image    mine:1" in done.stdout


def test_plan_shows_every_server_and_client_and_starts_nothing(tmp_path: Path) -> None:
    done = run(
        "plan", "--recipe", "smoke-cpu", "--kind", "both", "--conc", "2", "--limit", "8",
        SAMENODE_RUNS=str(tmp_path / "runs"), SAMENODE_CACHE=str(tmp_path / "cache"),
        HF_HUB_OFFLINE="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    out = done.stdout
    assert out.count("vllm serve") == 4 and out.count(" profile --scenario") == 4
    assert out.count("-m evals.lm_eval_client") == 2
    assert "--no-enable-prefix-caching" in out and "4 servers, 6 points, about" in out
    assert not (tmp_path / "runs").exists() and not (tmp_path / "cache").exists()


def test_the_flagship_can_be_planned_on_any_machine() -> None:
    done = run(
        "plan", "--recipe", "dsv41flash-fp4-mi355x-vllm-agentic-dspark", "--tp", "2", "--conc", "8",
        HF_HUB_OFFLINE="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "vllm serve deepseek-ai/DeepSeek-V4.1-Flash" in done.stdout
    assert "synthetic_acceptance_length" in done.stdout


def test_help_is_there_for_every_command() -> None:
    text = run("--help").stdout
    for command in ("agentx", "gsm8k", "run", "plan", "resume", "serve", "compare", "traces",
                    "recipes", "import-recipe", "doctor"):  # fmt: skip
        assert f"\n    {command}" in text
    assert "A/A" in run("agentx", "--help").stdout


def test_output_in_a_c_locale_is_utf8() -> None:
    done = subprocess.run(
        [str(SAMENODE), "traces", "--help"], capture_output=True, check=True,
        env={"LC_ALL": "C", "PATH": "/usr/bin:/bin", "PYTHONUTF8": "0"},
    )  # fmt: skip
    done.stdout.decode("utf-8")


def test_the_makefile_hands_its_variables_on() -> None:
    done = subprocess.run(
        ["make", "-n", "agentx", "TP=2", "CONC=1 8", "ARMS=off,off", "REPEATS=3", "DURATION=60"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "samenode agentx" in done.stdout
    for words in ("--tp 2", "--conc 1 8", "--arms off,off", "--repeats 3", "--duration 60"):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("accelerator", "base"),
    [
        ("rocm", "vllm/vllm-openai-rocm:v0.33.0"),
        ("cuda", "vllm/vllm-openai:v0.33.0"),
        ("cpu", "python:3.11-slim-bookworm"),
    ],
)
def test_the_makefile_builds_an_image_for_each_accelerator_and_runs_it(
    accelerator: str, base: str
) -> None:
    def printed(*words: str) -> str:
        return subprocess.run(
            ["make", "-n", *words, f"ACCEL={accelerator}"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    built = printed("image", "BUILD_ARGS=--network host")
    for words in (f"ACCEL={accelerator} ", f"BASE_IMAGE={base} ", "--network host",
                  f"-t samenode:{accelerator} ."):  # fmt: skip
        assert words in built
    assert "BASE_IMAGE=mine:1 " in printed("image", "BASE_IMAGE=mine:1")
    assert f"--profile {accelerator} up -d --no-build server-{accelerator}" in printed("up")
    assert f"--profile {accelerator} down" in printed("down")
    words = printed("agentx", "RUNTIME=docker", "IMAGE=mine:1")
    assert "--runtime docker --image mine:1" in words


def test_the_command_line_starts_without_what_few_commands_need() -> None:
    script = "import sys, samenode.cli; print(*{'scipy', 'pandas', 'docker'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.strip()
