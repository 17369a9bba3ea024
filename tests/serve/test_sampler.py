"""The sampler on this machine's CPU, and on GPUs that a script plays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from samenode.errors import UserError
from serve.gpu import Gpu, GpuReading, GpuToolError
from serve.sampler import CpuReader, Sampler, cpu_ticks, gpu_sample, limited_shares
from serve.samples import Process, encode_header, judge, read_samples

ROOT = Path(__file__).resolve().parents[2]


class ScriptedGpus:
    """A GpuTool that plays readings: the last one stays."""

    name = "script"

    def __init__(self, *readings: GpuReading | str) -> None:
        self.readings = list(readings)
        self.closed = False

    def gpus(self) -> list[Gpu]:
        return [Gpu(0, "Scripted", "GPU-0", "nvidia", 81920.0, 700.0)]

    def read(self, index: int) -> GpuReading:
        reading = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        if isinstance(reading, str):
            raise GpuToolError(reading)
        return reading

    def drivers(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        self.closed = True


def sample_for(sampler: Sampler, ticks: int) -> None:
    deadline = time.monotonic() + 20
    with sampler:
        while sampler.ticks < ticks:
            assert time.monotonic() < deadline
            time.sleep(0.005)


def test_this_machine_s_cpu_is_sampled(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "samples.csv"
    before = time.time_ns()
    sampler = Sampler(path, gpus=(), interval_s=0.05)
    spin = threading.Event()
    worker = threading.Thread(target=lambda: [None for _ in iter(spin.is_set, True)])
    worker.start()
    sample_for(sampler, 8)
    spin.set()
    worker.join()
    samples = read_samples(path)
    assert len(samples) == sampler.ticks >= 8
    assert {sample.device for sample in samples} == {"cpu"}
    times = [sample.t_ns for sample in samples]
    assert before <= times[0] and times == sorted(times) and times[-1] <= time.time_ns()
    assert max(sample.util_pct or 0 for sample in samples) > 0
    assert all(0 <= (sample.util_pct or 0) <= 100 for sample in samples)
    last = samples[-1]
    assert last.memory_available_mib == pytest.approx(
        psutil.virtual_memory().available / 2**20, rel=0.2
    )
    assert last.disk_free_mib == pytest.approx(shutil.disk_usage(tmp_path).free / 2**20, rel=0.2)
    assert {finding["rule"] for finding in judge(samples, times[0], times[-1])} <= {"cpu-steal"}


def test_the_first_sample_is_there_when_start_returns_and_the_last_when_stop_does(
    tmp_path: Path,
) -> None:
    path = tmp_path / "samples.csv"
    sampler = Sampler(path, gpus=(), interval_s=60)
    sampler.start()
    started = time.time_ns()
    assert len(read_samples(path)) == 1
    began = time.monotonic()
    sampler.stop()
    assert time.monotonic() - began < 5
    first, last = read_samples(path)
    assert first.t_ns <= started <= last.t_ns


def test_ticks_keep_to_the_interval(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    sample_for(Sampler(path, gpus=(), interval_s=0.1), 12)
    times = [sample.t_ns for sample in read_samples(path)][:11]
    # A busy machine may make ticks late; they are never made up for by a burst.
    assert (times[-1] - times[0]) / 10 > 0.8e8


def test_ticks_missed_while_a_driver_hangs_are_not_made_up_for(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    tool = ScriptedGpus(*(reading(t) for t in range(200)))
    play, hung = tool.read, []

    def hang_once(index: int) -> GpuReading:
        if len(tool.readings) == 195:
            time.sleep(0.6)
            hung.append(time.time_ns())
        return play(index)

    tool.read = hang_once  # type: ignore[method-assign]
    sample_for(Sampler(path, interval_s=0.05, tool=tool), 16)
    soon = [s for s in read_samples(path) if s.device == "cpu" and 0 < s.t_ns - hung[0] < 10**8]
    assert len(soon) <= 3


def test_the_cost_is_counted_and_small(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    sampler = Sampler(path, gpus=(), interval_s=0.02)
    sample_for(sampler, 50)
    # A tenth of a percent of a core at one tick a second; measured here: 0.4 ms a tick.
    assert 0 < sampler.cpu_s / sampler.ticks < 0.005
    stated = [sample.sampler_cpu_ms or 0.0 for sample in read_samples(path)]
    assert stated == sorted(stated)
    assert stated[-1] <= sampler.cpu_s * 1e3


def test_a_second_sampler_appends_and_mends_a_half_line(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    sample_for(Sampler(path, gpus=(), interval_s=0.02), 3)
    kept = len(read_samples(path))
    with path.open("ab") as handle:
        handle.write(b"1796000000,cp")
    sample_for(Sampler(path, gpus=(), interval_s=0.02), 3)
    samples = read_samples(path)
    assert len(samples) >= kept + 3
    assert path.read_bytes().count(encode_header()) == 1


def test_a_half_header_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    path.write_bytes(encode_header()[:10])
    sample_for(Sampler(path, gpus=(), interval_s=0.02), 2)
    assert len(read_samples(path)) >= 2


def test_a_file_with_other_columns_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    path.write_text("time,watts\n1,2\n")
    with pytest.raises(UserError, match="not the columns"):
        Sampler(path, gpus=()).start()
    assert path.read_text() == "time,watts\n1,2\n"


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        Sampler(tmp_path / "file" / "samples.csv", gpus=()).start()


def test_a_disk_that_fails_while_sampling_is_noted_and_sampling_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "point"
    sampler = Sampler(folder / "samples.csv", gpus=(), interval_s=0.02)
    with sampler:
        shutil.rmtree(folder)
        ticks = sampler.ticks
        deadline = time.monotonic() + 10
        while sampler.ticks < ticks + 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sampler.ticks >= ticks + 3
        assert sampler.error == "No such file or directory"


def test_a_kill_loses_no_finished_tick(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    child = subprocess.Popen([sys.executable, "-m", "serve.sampler", str(path)], cwd=ROOT)
    try:
        deadline = time.monotonic() + 30
        while not (path.exists() and path.read_bytes().count(b"\n") >= 3):
            assert time.monotonic() < deadline and child.poll() is None
            time.sleep(0.05)
    finally:
        child.kill()
        child.wait()
    assert len(read_samples(path)) >= 2


def test_the_command_line_states_the_cost_and_refuses_in_one_sentence(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "serve.sampler"]
    path = tmp_path / "samples.csv"
    done = subprocess.run(
        [*argv, str(path), "--seconds", "1.2"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "% of one core" in done.stdout
    assert len(read_samples(path)) >= 2
    path.write_text("not ours\n")
    done = subprocess.run([*argv, str(path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


# ---- GPUs


def reading(second: float, **cells: object) -> GpuReading:
    """An NVML reading in nanoseconds of counters: nothing has limited the clocks yet."""
    limited = {"power_cap": 0.0, "sw_thermal": 0.0, "hw_thermal": 0.0, "power_brake": 0.0}
    well: dict[str, object] = {
        "clock_mhz": 1980,
        "reasons": frozenset(),
        "limited": {**limited, **cells.pop("limited", {})},  # type: ignore[dict-item]
        "elapsed": second * 1e9,
        "pids": frozenset({os.getpid()}),
    }
    return GpuReading(**{**well, **cells})  # type: ignore[arg-type]


def test_gpu_rows_stand_beside_the_cpu_s_and_the_tool_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    tool = ScriptedGpus(*(reading(t) for t in range(200)))
    sample_for(Sampler(path, own_pids=lambda: {os.getpid()}, interval_s=0.02, tool=tool), 5)
    samples = read_samples(path)
    assert [sample.device for sample in samples[:4]] == ["cpu", "gpu0"] * 2
    gpu = [sample for sample in samples if sample.device == "gpu0"]
    assert gpu[0].throttle_pct is None and gpu[1].throttle_pct == 0
    assert gpu[1].processes is not None and gpu[1].processes.endswith(":own")
    assert tool.closed
    findings = judge(samples, samples[0].t_ns, samples[-1].t_ns)
    assert [f for f in findings if f["rule"] != "cpu-steal"] == []


def test_a_gpu_that_stops_answering_gives_rows_that_say_so(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    tool = ScriptedGpus(reading(0), reading(1), "NVML: GPU is lost")
    sample_for(Sampler(path, interval_s=0.02, tool=tool), 6)
    errors = [s.error for s in read_samples(path) if s.device == "gpu0"]
    assert errors[:3] == [None, None, "NVML: GPU is lost"]


def test_a_gpu_index_that_the_node_has_not_is_refused(tmp_path: Path) -> None:
    sampler = Sampler(tmp_path / "samples.csv", gpus=(0, 3), tool=ScriptedGpus(reading(0)))
    with pytest.raises(UserError, match="no GPU 3 to sample; this node has 1"):
        sampler.start()


def test_gpus_that_no_tool_reads_fail_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise GpuToolError("NVIDIA GPUs are here but NVML does not answer")

    monkeypatch.setattr("serve.sampler.open_tool", refuse)
    path = tmp_path / "samples.csv"
    sample_for(Sampler(path, interval_s=0.02), 4)
    samples = read_samples(path)
    rules = [f["rule"] for f in judge(samples, samples[0].t_ns, samples[-1].t_ns)]
    assert "telemetry-missing" in rules


def test_the_server_s_processes_are_asked_for_only_when_a_new_one_is_met(tmp_path: Path) -> None:
    asked: list[set[int]] = []

    def own() -> set[int]:
        asked.append({1, os.getpid()})
        return asked[-1]

    path = tmp_path / "samples.csv"
    readings = [reading(t, pids=frozenset({os.getpid()})) for t in range(5)]
    readings += [reading(t, pids=frozenset({os.getpid(), 1})) for t in range(5, 200)]
    sampler = Sampler(path, own_pids=own, interval_s=0.02, tool=ScriptedGpus(*readings))
    sample_for(sampler, 12)
    assert len(asked) == 2


def test_a_stranger_on_the_gpu_is_marked_with_its_name() -> None:
    me = psutil.Process().name()
    row = gpu_sample(
        0, "gpu0", None, reading(0), [Process(4711, "VLLM::Worker", True), Process(7, me, False)]
    )
    assert row.processes == f"7:{me.replace(':', '_')}|4711:VLLM__Worker:own"


def test_shares_are_what_the_counters_grew_by_over_the_time_between() -> None:
    before = reading(10, limited={"sw_thermal": 5e9, "power_cap": 1e9})
    after = reading(12, limited={"sw_thermal": 5.5e9, "power_cap": 3e9})
    assert limited_shares(before, after) == {
        "power_cap": 100.0,
        "sw_thermal": 25.0,
        "hw_thermal": 0.0,
        "power_brake": 0.0,
    }
    row = gpu_sample(0, "gpu0", before, after, [])
    assert (row.throttle_pct, row.power_cap_pct) == (25.0, 100.0)
    # Whatever held the clocks down since the last row is named, even if it does not now.
    assert row.throttle == "power_cap|sw_thermal"
    assert row.processes == "none"


def test_shares_are_not_known_without_a_reading_before_or_when_a_counter_went_back() -> None:
    assert limited_shares(None, reading(1)) == {}
    assert limited_shares(reading(1, limited={"sw_thermal": 9.0}), reading(2)) == {}
    assert limited_shares(reading(2), reading(2)) == {}
    assert limited_shares(reading(1, elapsed=None), reading(2)) == {}


def test_reasons_that_are_not_known_stay_unknown() -> None:
    row = gpu_sample(0, "gpu0", None, GpuReading(), None)
    assert (row.throttle, row.throttle_pct, row.processes) == (None, None, None)


# ---- the CPU's files


def test_cpu_ticks_leave_guests_out() -> None:
    assert cpu_ticks("cpu  100 20 30 1000 50 4 6 40 90 10") == (160.0, 40.0, 1250.0)


def cpu_tree(root: Path, cpus: int) -> Path:
    """A /proc and /sys as an Intel server has them."""
    (root / "proc").mkdir()
    (root / "proc/stat").write_text("cpu  100 0 0 100 0 0 0 0 0 0\nintr 1\n")
    for number in range(cpus):
        folder = root / f"sys/devices/system/cpu/cpu{number}"
        (folder / "cpufreq").mkdir(parents=True)
        (folder / "cpufreq/scaling_cur_freq").write_text(f"{2_000_000 + 1000 * number}\n")
        (folder / "thermal_throttle").mkdir()
        for what in ("core", "package"):
            (folder / f"thermal_throttle/{what}_throttle_total_time_ms").write_text("1000\n")
            (folder / f"thermal_throttle/{what}_throttle_count").write_text("7\n")
    sensors = {
        "hwmon0": ("nvme", "Composite", 70000),
        "hwmon1": ("coretemp", "Package id 0", 81000),
    }
    for name, (driver, label, value) in sensors.items():
        folder = root / "sys/class/hwmon" / name
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{driver}\n")
        (folder / "temp1_label").write_text(f"{label}\n")
        (folder / "temp1_input").write_text(f"{value}\n")
    (root / "sys/class/hwmon/hwmon1/temp2_label").write_text("Core 0\n")
    (root / "sys/class/hwmon/hwmon1/temp2_input").write_text("95000\n")
    return root


def test_an_intel_server_s_clocks_temperature_and_thermal_counters_are_read(tmp_path: Path) -> None:
    root = cpu_tree(tmp_path, cpus=4)
    reader = CpuReader(root, tmp_path)
    first = reader.sample(10**9)
    assert first.clock_mhz == pytest.approx(2001.5)
    assert first.temperature_c == 81.0
    assert first.throttle_pct is None and first.util_pct is None
    (root / "proc/stat").write_text("cpu  130 0 0 160 0 0 0 10 0 0\n")
    throttled = root / "sys/devices/system/cpu/cpu0/thermal_throttle"
    (throttled / "package_throttle_total_time_ms").write_text("1200\n")
    (throttled / "core_throttle_total_time_ms").write_text("1100\n")
    second = reader.sample(2 * 10**9)
    assert (second.util_pct, second.steal_pct) == (30.0, 10.0)
    # 200 ms of the second on one of four CPUs.
    assert second.throttle_pct == pytest.approx(5.0)
    assert second.throttle == "thermal"


def test_no_more_than_sixteen_clocks_are_read_on_a_large_node(tmp_path: Path) -> None:
    root = cpu_tree(tmp_path, cpus=100)
    for number in range(100):
        clock = root / f"sys/devices/system/cpu/cpu{number}/cpufreq/scaling_cur_freq"
        clock.write_text("1000000\n")
    reader = CpuReader(root, tmp_path)
    assert len(reader._clocks) <= 16
    assert reader.sample(0).clock_mhz == 1000.0
