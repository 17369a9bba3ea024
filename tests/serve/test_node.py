"""The facts of a node, on this machine and on trees that look like others."""

from __future__ import annotations

import copy
import json
import os
import platform
import subprocess
import sys
import venv
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from samenode.errors import UserError
from samenode.files import write_json
from serve import node
from serve.gpu import GpuToolError


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    return node.collect(Path(sys.executable))


def on_gpus(facts: dict[str, Any], *uuids: str, driver: str = "580.159.03") -> dict[str, Any]:
    """The same node with H200s in it."""
    changed = copy.deepcopy(facts)
    changed["gpus"] = [{"index": i, "name": "NVIDIA H200", "uuid": u} for i, u in enumerate(uuids)]
    changed["drivers"] = {"nvidia": driver}
    return changed


# ---- this machine


def test_this_node_is_described(here: dict[str, Any]) -> None:
    assert here["schema"] == node.SCHEMA
    assert here["host"]["name"] == platform.node()
    assert here["host"]["kernel"] == platform.release()
    assert here["cpu"]["threads"] == len(os.sched_getaffinity(0))
    assert 1 <= here["cpu"]["cores"] <= here["cpu"]["threads"]
    assert here["cpu"]["model"] not in ("", node.UNKNOWN)
    assert here["memory_mib"] == psutil.virtual_memory().total // 2**20
    assert here["python"]["client"] == here["python"]["server"] == platform.python_version()
    assert here["image"] == {"digest": None}


def test_the_record_is_valid_json_and_comes_back(here: dict[str, Any], tmp_path: Path) -> None:
    write_json(tmp_path / "node.json", here)
    assert node.read(tmp_path / "node.json") == here


def test_packages_are_those_that_the_interpreter_itself_sees(here: dict[str, Any]) -> None:
    from importlib.metadata import version

    assert here["packages"]["client"]["psutil"] == version("psutil")
    assert here["packages"]["server"] == here["packages"]["client"]
    assert "lm-eval" in here["packages"]["client"]


def test_the_accelerator_is_the_gpus_vendor_s(
    here: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert here["accelerator"] == ("cpu" if not here["gpus"] else here["accelerator"])
    for vendor, accelerator in (("nvidia", "cuda"), ("amd", "rocm")):
        gpus = [{"vendor": vendor, "uuid": "GPU-0"}]
        monkeypatch.setattr(node, "_gpus", partial(tuple, (gpus, {}, None)))
        assert node.collect(None)["accelerator"] == accelerator


def test_gpus_that_cannot_be_read_are_unknown_and_not_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise GpuToolError("NVIDIA GPUs are here but NVML does not answer")

    monkeypatch.setattr(node, "open_tool", refuse)
    facts = node.collect(None)
    assert facts["gpus"] is None
    assert "NVML does not answer" in facts["gpu_error"]
    assert facts["accelerator"] == "cpu"
    assert facts["packages"]["server"] is None


# ---- environments


def make_environment(folder: Path, *distributions: tuple[str, str, str | None]) -> Path:
    """A real virtual environment with the metadata of distributions: name, version, commit."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name, version, commit in distributions:
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        if commit:
            origin = {"url": "https://x", "vcs_info": {"vcs": "git", "commit_id": commit}}
            (info / "direct_url.json").write_text(json.dumps(origin))
    return folder / "bin/python"


def test_another_environment_is_asked_through_its_own_interpreter(tmp_path: Path) -> None:
    python = make_environment(
        tmp_path / "env", ("vllm", "0.33.0", None), ("Flash_Attn", "2.9", "deadbeef")
    )
    found = node.environment_of(python)
    assert found["packages"] == {"vllm": "0.33.0", "flash-attn": "2.9 @ deadbeef"}
    assert found["python"] == platform.python_version()


def test_pythonpath_and_the_working_folder_add_no_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = make_environment(tmp_path / "env")
    stray = tmp_path / "stray/ghost-1.0.dist-info"
    stray.mkdir(parents=True)
    (stray / "METADATA").write_text("Metadata-Version: 2.1\nName: ghost\nVersion: 1.0\n")
    monkeypatch.setenv("PYTHONPATH", str(stray.parent))
    monkeypatch.chdir(stray.parent)
    assert node.environment_of(python)["packages"] == {}


@pytest.mark.parametrize("program", [None, "#!/bin/sh\nexit 3\n", "#!/bin/sh\necho hello\n"])
def test_an_interpreter_that_does_not_answer_is_unknown(
    tmp_path: Path, program: str | None
) -> None:
    python = tmp_path / "python"
    if program:
        python.write_text(program)
        python.chmod(0o755)
    assert node.environment_of(python) == {"python": "unknown", "packages": "unknown"}


# ---- git


def run_git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_a_checkout_has_a_revision_and_is_dirty_when_a_file_is_new(tmp_path: Path) -> None:
    run_git(tmp_path, "init", "--quiet")
    run_git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "first")
    head = run_git(tmp_path, "rev-parse", "HEAD")
    assert node.git(tmp_path) == {"revision": head, "dirty": False}
    (tmp_path / "new").write_text("")
    assert node.git(tmp_path) == {"revision": head, "dirty": True}


def test_outside_a_checkout_the_revision_is_unknown(tmp_path: Path) -> None:
    assert node.git(tmp_path) == {"revision": "unknown", "dirty": "unknown"}


def test_a_folder_inside_another_checkout_is_not_taken_for_it(tmp_path: Path) -> None:
    run_git(tmp_path, "init", "--quiet")
    run_git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "first")
    (tmp_path / "lib").mkdir()
    assert node.git(tmp_path / "lib")["revision"] == "unknown"


# ---- environment variables


def test_variables_that_matter_are_kept_and_others_are_not() -> None:
    variables = {
        "VLLM_ROCM_USE_AITER": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE": "163840",
        "LD_LIBRARY_PATH": "/opt/rocm/lib",
        "HF_HUB_OFFLINE": "1",
        "HOME": "/root",
        "EDITOR": "vi",
    }
    kept = node.environment(variables)
    assert kept == {k: v for k, v in variables.items() if k not in ("HOME", "EDITOR")}
    assert list(kept) == sorted(kept)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "hf_abcdefghijklmnop"),
        ("HF_TOKENS", "a,b"),
        ("VLLM_API_KEY", "x"),
        ("HF_HUB_PASSWORD", "12345"),
        ("NVIDIA_SECRET_PIN", "1234"),
        ("VLLM_AUTH_HEADER", "Bearer x"),
        ("AITER_credentials", "x"),
        ("HF_ENDPOINT", "https://user:word@mirror.example.org"),
        ("VLLM_EXTRA", "--header hf_abcdefghijklmnop"),
        ("VLLM_EXTRA", "ghp_abcdefghijklmnop0123"),
        ("VLLM_EXTRA", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.x"),
    ],
)
def test_what_looks_like_a_secret_is_dropped(name: str, value: str) -> None:
    assert node.environment({name: value}) == {}


secret_words = st.sampled_from(
    ["TOKEN", "API_KEY", "KEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIALS", "AUTH"]
)
parts = st.text(st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWXYZ_"), max_size=12)


@given(st.sampled_from(node.ENVIRONMENT), parts, secret_words, parts, st.text(min_size=1))
def test_no_name_that_says_secret_gets_through(
    prefix: str, before: str, word: str, after: str, value: str
) -> None:
    name = f"{prefix}{before}{word}{after}"
    assume("TOKENIZER" not in name and not ("TOKENS" in name and value.isdecimal()))
    assert node.environment({name: value}) == {}


# ---- other machines' CPUs


def cpu_tree(root: Path) -> Path:
    """A server with two sockets of two cores, two threads each, and two NUMA nodes."""
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: AMD EPYC 9575F 64-Core Processor\nflags\t\t: fpu sse2 ht\n"
    )
    for number in range(8):
        folder = root / f"sys/devices/system/cpu/cpu{number}"
        (folder / "topology").mkdir(parents=True)
        (folder / "topology/physical_package_id").write_text(f"{number // 4}\n")
        (folder / "topology/core_id").write_text(f"{number % 2}\n")
        (folder / "cpufreq").mkdir()
        (folder / "cpufreq/scaling_governor").write_text("performance\n")
    (root / "sys/devices/system/cpu/cpufreq").mkdir()
    (root / "sys/devices/system/cpu/cpufreq/boost").write_text("1\n")
    for number in (0, 1):
        folder = root / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{4 * number}-{4 * number + 3}\n")
        (folder / "meminfo").write_text(f"Node {number} MemTotal:  1056768000 kB\n")
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/cpu.max").write_text("600000 100000\n")
    return root


def test_a_server_s_cpu_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert node.cpu(cpu_tree(tmp_path)) == {
        "model": "AMD EPYC 9575F 64-Core Processor",
        "sockets": 2,
        "cores": 4,
        "threads": 8,
        "quota": 6.0,
        "governor": "performance",
        "boost": True,
        "virtual": False,
        "numa": [
            {"node": 0, "cpus": "0-3", "memory_mib": 1032000},
            {"node": 1, "cpus": "4-7", "memory_mib": 1032000},
        ],
    }


def test_only_the_cpus_that_may_be_used_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    described = node.cpu(cpu_tree(tmp_path))
    assert (described["sockets"], described["cores"], described["threads"]) == (1, 2, 3)


def test_what_the_kernel_does_not_show_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    described = node.cpu(tmp_path)
    assert (described["governor"], described["boost"]) == ("unknown", "unknown")
    assert (described["cores"], described["quota"], described["numa"]) == (4, None, [])


# ---- comparing


def test_a_node_is_itself_whenever_it_is_described(here: dict[str, Any]) -> None:
    later = {**here, "collected": "2099-01-01T00:00:00+00:00", "environment": {"VLLM_X": "1"}}
    assert node.fingerprint(later) == node.fingerprint(here)
    assert node.diff(here, {**here, "collected": "2099-01-01T00:00:00+00:00"}) == {}


def test_the_order_in_which_gpus_are_listed_does_not_matter(here: dict[str, Any]) -> None:
    assert node.fingerprint(on_gpus(here, "GPU-a", "GPU-b")) == node.fingerprint(
        on_gpus(here, "GPU-b", "GPU-a")
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda n: n["host"].update(name="another"),
        lambda n: n["cpu"].update(model="another"),
        lambda n: n["gpus"][0].update(uuid="GPU-z"),
        lambda n: n["gpus"].pop(),
        lambda n: n["drivers"].update(nvidia="590.1"),
    ],
)
def test_another_host_cpu_gpu_or_driver_is_another_node(here: dict[str, Any], change: Any) -> None:
    one = on_gpus(here, "GPU-a", "GPU-b")
    other = copy.deepcopy(one)
    change(other)
    assert node.fingerprint(other) != node.fingerprint(one)


def test_unknown_gpus_match_nothing(here: dict[str, Any]) -> None:
    unknown = {**here, "gpus": None, "gpu_error": "no NVML"}
    again = {**unknown, "collected": "2099-01-01T00:00:00+00:00"}
    assert node.fingerprint(unknown) != node.fingerprint(again)
    assert node.fingerprint(unknown) != node.fingerprint(here)


def test_a_difference_is_named_by_its_path(here: dict[str, Any]) -> None:
    other = copy.deepcopy(on_gpus(here, "GPU-a"))
    other["packages"]["server"]["vllm"] = "0.33.0"
    found = node.diff(here, other)
    assert found["packages.server.vllm"] == (here["packages"]["server"].get("vllm"), "0.33.0")
    assert found["gpus.0.uuid"] == (None, "GPU-a")
    assert node.diff(other, here) == {path: (b, a) for path, (a, b) in found.items()}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)
records = st.dictionaries(st.text("abc", min_size=1, max_size=2), json_values, max_size=4)


@given(records, records)
def test_nothing_differs_exactly_when_the_records_are_equal(
    a: dict[str, Any], b: dict[str, Any]
) -> None:
    assert (node.diff(a, b) == {}) == (a == b)
    assert node.diff(a, copy.deepcopy(a)) == {}


def test_a_campaign_goes_on_where_it_began(here: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    write_json(path, here)
    changed = copy.deepcopy(here)
    changed["git"]["revision"] = "another"
    changed["packages"]["client"]["ruff"] = "another"
    node.require_same(path, changed)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda n: n["host"].update(name="other"), "host was here and is other"),
        (
            lambda n: n["drivers"].update(nvidia="590.1"),
            "drivers.nvidia was 580.159.03 and is 590.1",
        ),
        (
            lambda n: n["packages"]["server"].update(vllm="0.33.0"),
            "server packages.vllm was 0.32.0 and is 0.33.0",
        ),
        (
            lambda n: n["packages"]["client"].pop("aiperf"),
            "client packages.aiperf was 0.13.0 and is missing",
        ),
        (lambda n: n.update(gpus=None, gpu_error="NVML is gone"), "cannot be told: NVML is gone"),
        (lambda n: n["packages"].update(server="unknown"), "packages cannot be read"),
    ],
)
def test_a_campaign_does_not_go_on_elsewhere(
    here: dict[str, Any], tmp_path: Path, change: Any, named: str
) -> None:
    began = on_gpus(here, "GPU-a")
    began["host"]["name"] = "here"
    began["packages"] = {"client": {"aiperf": "0.13.0"}, "server": {"vllm": "0.32.0"}}
    path = tmp_path / "node.json"
    write_json(path, began)
    now = copy.deepcopy(began)
    change(now)
    with pytest.raises(UserError) as refusal:
        node.require_same(path, now)
    assert named in str(refusal.value)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read"),
        ("{", "not a node.json"),
        ("[]", "not a node.json"),
        ('{"schema": 99}', "schema 99"),
    ],
)
def test_a_node_file_that_is_not_ours_is_refused_in_one_sentence(
    tmp_path: Path, content: str | None, complaint: str
) -> None:
    path = tmp_path / "node.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError) as refusal:
        node.read(path)
    assert str(refusal.value).startswith(str(path))
    assert complaint in str(refusal.value)
