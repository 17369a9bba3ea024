"""What samples prove: rules, thresholds and the file they are kept in."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samenode.errors import UserError
from serve.samples import (
    COLUMNS,
    NOT_THROTTLING,
    Process,
    Sample,
    decode_processes,
    encode,
    encode_header,
    encode_processes,
    judge,
    mean_power_w,
    read_samples,
)

S = 1_000_000_000
T0 = 1_796_000_000 * S
OWN = encode_processes([Process(4711, "VLLM::Worker", True)])


def gpu(second: float, **cells: object) -> Sample:
    """A sample of a loaded GPU with nothing wrong."""
    well: dict[str, object] = {
        "clock_mhz": 1980.0,
        "power_w": 412.5,
        "power_limit_w": 700.0,
        "util_pct": 100.0,
        "throttle": "none",
        "throttle_pct": 0.0,
        "power_cap_pct": 0.0,
        "processes": OWN,
    }
    return Sample(T0 + round(second * S), "gpu0", **{**well, **cells})  # type: ignore[arg-type]


def cpu(second: float, **cells: object) -> Sample:
    """A sample of a busy CPU with nothing wrong."""
    well = {"util_pct": 90.0, "steal_pct": 0.0}
    return Sample(T0 + round(second * S), "cpu", **{**well, **cells})  # type: ignore[arg-type]


def minute(**cells: object) -> list[Sample]:
    """A minute of GPU samples at 1 s, from a second before the window to a second after it."""
    return [gpu(second, **cells) for second in range(-1, 62)]


def rules(samples: list[Sample], seconds: float = 60) -> list[str]:
    return [finding["rule"] for finding in judge(samples, T0, T0 + round(seconds * S))]


def test_a_minute_with_nothing_wrong_is_clean() -> None:
    assert judge([*minute(), *map(cpu, range(-1, 62))], T0, T0 + 60 * S) == []


def test_no_sample_at_all_is_a_gap() -> None:
    assert rules([]) == ["sampler-gap"]


def test_a_window_without_any_sample_is_a_gap_even_if_it_is_short() -> None:
    assert rules([cpu(-1), cpu(3)], seconds=2) == ["sampler-gap"]


@given(st.integers(0, 57), st.floats(0.1, 20))
def test_a_hole_is_a_gap_exactly_when_it_is_longer_than_three_seconds(
    start: int, length: float
) -> None:
    times = [t for t in range(-1, 62) if not start < t < start + length]
    inside = [0.0, *(t for t in times if 0 <= t <= 60), 60.0]
    longest = max(b - a for a, b in pairwise(inside))
    assert rules([cpu(t) for t in times]) == (["sampler-gap"] if longest > 3 else [])


def test_a_sampler_that_starts_late_or_ends_early_leaves_a_gap() -> None:
    assert rules([cpu(t) for t in range(4, 62)]) == ["sampler-gap"]
    assert rules([cpu(t) for t in range(-1, 57)]) == ["sampler-gap"]


def test_a_gap_of_one_device_is_named() -> None:
    samples = [
        *map(cpu, range(-1, 62)),
        *(s for s in minute() if not 10 * S < s.t_ns - T0 < 20 * S),
    ]
    (finding,) = judge(samples, T0, T0 + 60 * S)
    assert finding == {
        "rule": "sampler-gap",
        "detail": "gpu0: no sample for 10.0 s, 10 s into the window",
    }


def test_a_clock_that_goes_back_is_a_gap() -> None:
    samples = [cpu(t) for t in (*range(-1, 30), *range(25, 62))]
    assert rules(samples) == ["sampler-gap"]


def test_a_gpu_that_cannot_be_read_is_not_clean() -> None:
    blind = [Sample(T0 + t * S, "gpu", error="NVML does not answer") for t in range(-1, 62)]
    (finding,) = judge([*map(cpu, range(-1, 62)), *blind], T0, T0 + 60 * S)
    assert finding == {"rule": "telemetry-missing", "detail": "gpu: NVML does not answer"}


def test_a_gpu_lost_in_the_middle_is_a_gap_that_says_why() -> None:
    samples = minute()
    lost = [Sample(s.t_ns, "gpu0", error="NVML: GPU is lost") for s in samples[30:]]
    (finding,) = judge([*samples[:30], *lost], T0, T0 + 60 * S)
    assert finding["rule"] == "sampler-gap"
    assert "GPU is lost" in finding["detail"]


def test_unknown_throttle_reasons_are_not_clean() -> None:
    assert rules(minute(throttle=None, throttle_pct=None)) == ["telemetry-missing"]


@given(st.floats(0, 100))
def test_counted_throttling_is_judged_by_its_share_of_the_window(share: float) -> None:
    samples = minute(throttle="sw_thermal", throttle_pct=share)
    # The mean of equal shares may differ from them in its last digit.
    expected = ["throttled"] if share > 1 + 1e-9 else []
    if abs(share - 1) > 1e-9:
        assert rules(samples) == expected


@pytest.mark.parametrize(("share", "expected"), [(0.95, []), (1.05, ["throttled"])])
def test_one_percent_of_the_window_is_the_limit_of_throttling(
    share: float, expected: list[str]
) -> None:
    assert rules(minute(throttle="sw_thermal", throttle_pct=share)) == expected


@pytest.mark.parametrize(("steal", "expected"), [(1.95, []), (2.05, ["cpu-steal"])])
def test_two_percent_of_the_cpu_time_wanted_is_the_limit_of_steal(
    steal: float, expected: list[str]
) -> None:
    samples = [cpu(t, util_pct=100 - steal, steal_pct=steal) for t in range(-1, 62)]
    assert rules(samples) == expected


@pytest.mark.parametrize(("second", "expected"), [(13.0, []), (13.1, ["sampler-gap"])])
def test_three_seconds_are_the_limit_of_a_gap(second: float, expected: list[str]) -> None:
    times = [*range(-1, 11), second, *range(14, 62)]
    assert rules([cpu(t) for t in times]) == expected


def test_where_a_counter_has_a_hole_the_samples_themselves_are_judged() -> None:
    samples = minute()
    samples[30] = replace(samples[30], throttle="sw_thermal", throttle_pct=None)
    assert rules(samples) == ["throttled"]


def test_throttling_outside_the_window_does_not_count() -> None:
    samples = [gpu(t, throttle="hw_thermal", throttle_pct=100.0) for t in range(-30, 0)]
    samples += [gpu(t) for t in range(62)]
    samples += [gpu(t, throttle="hw_thermal", throttle_pct=100.0) for t in range(62, 70)]
    assert rules(samples) == []


def test_a_share_that_looks_back_before_the_window_counts_only_for_its_part_in_it() -> None:
    # One span reaches from 0.9 s before the window to 0.1 s into it: 0.1 s of 10 s is 1 %.
    samples = [gpu(-0.9), gpu(0.1, throttle="hw_thermal", throttle_pct=90.0)]
    samples += [gpu(0.1 + t) for t in range(1, 11)]
    assert rules(samples, seconds=10) == []


@pytest.mark.parametrize("reason", sorted(NOT_THROTTLING))
def test_settings_idleness_and_power_caps_are_not_throttling(reason: str) -> None:
    assert rules(minute(throttle=reason, power_cap_pct=100.0)) == []
    assert rules(minute(throttle=reason, throttle_pct=None)) == []


@pytest.mark.parametrize("reason", ["sw_thermal", "hw_thermal", "power_brake", "unknown_0x800"])
def test_without_counters_one_sample_in_a_minute_is_throttling(reason: str) -> None:
    samples = minute(throttle_pct=None)
    samples[30] = replace(samples[30], throttle=f"idle|{reason}")
    (finding,) = judge(samples, T0, T0 + 60 * S)
    assert finding == {
        "rule": "throttled",
        "detail": f"gpu0: 1 of 61 samples ({reason})",
    }


def test_without_counters_one_sample_in_an_hour_is_not_throttling() -> None:
    samples = [gpu(t, throttle_pct=None) for t in range(-1, 3602)]
    samples[1000] = replace(samples[1000], throttle="sw_thermal")
    assert rules(samples, seconds=3600) == []


def test_an_unknown_reason_is_throttling_beside_counters_that_do_not_tell_of_it() -> None:
    assert rules(minute(throttle="unknown_0x800")) == ["throttled"]


def test_one_sample_of_a_hardware_slowdown_is_a_change_of_clocks_and_two_are_throttling() -> None:
    samples = minute()
    samples[10] = replace(samples[10], throttle="hw_slowdown")
    assert rules(samples) == []
    samples[11] = replace(samples[11], throttle="hw_slowdown")
    assert rules(samples) == ["throttled"]


def test_a_hardware_slowdown_with_its_cause_is_left_to_the_cause_s_counter() -> None:
    samples = minute()
    for index in (10, 11):
        samples[index] = replace(
            samples[index], throttle="hw_slowdown|hw_thermal", throttle_pct=0.5
        )
    assert rules(samples) == []


def test_a_cpu_without_thermal_counters_is_not_called_throttled() -> None:
    assert rules([cpu(t, throttle=None) for t in range(-1, 62)]) == []


def test_a_cpu_that_counts_thermal_throttling_is() -> None:
    samples = [cpu(t, throttle="thermal", throttle_pct=2.0) for t in range(-1, 62)]
    assert rules(samples) == ["throttled"]


@given(st.floats(0.1, 50), st.floats(1, 50))
def test_steal_is_judged_against_the_cpu_time_wanted(steal: float, busy: float) -> None:
    samples = [cpu(t, util_pct=busy, steal_pct=steal) for t in range(-1, 62)]
    share = steal / (steal + busy)
    if abs(share - 0.02) > 1e-9:
        assert rules(samples) == (["cpu-steal"] if share > 0.02 else [])


def test_a_power_limit_changed_within_the_window_is_found_and_one_changed_before_is_not() -> None:
    changed = [replace(s, power_limit_w=500.0) if s.t_ns < T0 else s for s in minute()]
    assert rules(changed) == []
    changed = [replace(s, power_limit_w=500.0) if s.t_ns < T0 + 9 * S else s for s in minute()]
    (finding,) = judge(changed, T0, T0 + 60 * S)
    assert finding == {
        "rule": "power-limit-changed",
        "detail": "gpu0: between 500 and 700 W",
    }


def test_a_process_that_is_not_the_server_s_is_foreign_and_named() -> None:
    samples = minute()
    both = encode_processes([Process(4711, "VLLM::Worker", True), Process(99, "train|x", False)])
    samples[20] = replace(samples[20], processes=both)
    (finding,) = judge(samples, T0, T0 + 60 * S)
    assert finding == {
        "rule": "foreign-process",
        "detail": "gpu0: pid 99 (train_x): not the server's",
    }
    assert judge(samples, T0, T0 + 60 * S, own_pids=[99]) == []


def test_a_process_later_known_as_the_server_s_is_not_foreign() -> None:
    samples = minute()
    samples[1] = replace(samples[1], processes="4711:python")
    assert rules(samples) == []


def test_a_list_of_processes_that_lacks_the_server_rules_nothing_out() -> None:
    assert rules(minute(processes="none")) == ["telemetry-missing"]


def test_a_list_of_processes_that_cannot_be_read_rules_nothing_out() -> None:
    samples = minute()
    samples[30] = replace(samples[30], processes=None)
    assert rules(samples) == ["telemetry-missing"]


def test_the_same_finding_of_several_gpus_is_told_once() -> None:
    samples = [
        replace(sample, device=device)
        for device in ("gpu0", "gpu1")
        for sample in minute(throttle="hw_thermal", throttle_pct=50.0)
    ]
    (finding,) = judge(samples, T0, T0 + 60 * S)
    assert finding["detail"] == "gpu0, gpu1: 50.0 % of the window (hw_thermal)"


def test_a_window_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ValueError, match="ends before"):
        judge([cpu(0)], T0, T0)


# ---- power


def test_mean_power_comes_from_the_energy_counters_at_the_window_s_ends() -> None:
    # 100 W until 0.5 s, 300 W after: the samples' own power (412.5 W) is not used.
    joules = [100 * min(t, 0.5) + 300 * max(t - 0.5, 0) for t in range(4)]
    samples = [gpu(t, energy_j=joules[t]) for t in range(4)]
    assert mean_power_w(samples, T0 + S, T0 + 3 * S) == pytest.approx(300)
    assert mean_power_w(samples, T0 + S // 2, T0 + 5 * S // 2) == pytest.approx(275)


def test_mean_power_without_energy_counters_weights_each_sample_with_its_time() -> None:
    samples = [gpu(0, power_w=0.0), gpu(1, power_w=100.0), gpu(4, power_w=300.0)]
    assert mean_power_w(samples, T0, T0 + 4 * S) == pytest.approx((100 + 3 * 300) / 4)


@given(st.floats(1, 1000), st.integers(1, 8))
def test_mean_power_of_equal_gpus_is_the_sum(power: float, count: int) -> None:
    samples = [
        replace(gpu(t, energy_j=power * t), device=f"gpu{index}")
        for index in range(count)
        for t in range(10)
    ]
    assert mean_power_w(samples, T0 + S, T0 + 8 * S) == pytest.approx(count * power)


def test_mean_power_is_not_known_where_one_gpu_s_is_not_or_there_is_none() -> None:
    samples = [*minute(), *(replace(s, device="gpu1", power_w=None) for s in minute())]
    assert mean_power_w(samples, T0, T0 + 60 * S) is None
    assert mean_power_w([cpu(t) for t in range(60)], T0, T0 + 60 * S) is None


def test_the_power_of_gpus_that_the_server_does_not_use_is_left_out() -> None:
    idle = [replace(s, device="gpu1", power_w=80.0, processes="none") for s in minute()]
    assert mean_power_w([*minute(), *idle], T0, T0 + 60 * S) == pytest.approx(412.5)
    nobody_s = [replace(s, processes="none") for s in minute()]
    assert mean_power_w([*nobody_s, *idle], T0, T0 + 60 * S) == pytest.approx(492.5)


# ---- the file

numbers = st.none() | st.floats(-1e12, 1e12).map(lambda value: round(value, 3))
texts = st.none() | st.text().map(lambda text: " ".join(text.split())).filter(bool)
names = st.text(
    st.characters(categories=("L", "N", "P", "Zs"), exclude_characters="|:"), max_size=20
)
processes = st.builds(
    Process, st.integers(1, 2**31), names.map(lambda name: " ".join(name.split())), st.booleans()
)
samples_strategy = st.builds(
    Sample,
    t_ns=st.integers(0, 2**63),
    device=st.sampled_from(["cpu", "gpu0", "gpu11"]),
    throttle=texts,
    processes=st.none() | st.lists(processes, unique_by=lambda p: p.pid).map(encode_processes),
    error=texts,
    **{
        name: numbers
        for name in COLUMNS
        if name not in ("t_ns", "device", "throttle", "processes", "error")
    },
)


@given(st.lists(samples_strategy, max_size=5))
def test_samples_survive_the_file(
    tmp_path_factory: pytest.TempPathFactory, samples: list[Sample]
) -> None:
    path = tmp_path_factory.mktemp("samples") / "samples.csv"
    path.write_bytes(encode_header() + encode(samples))
    assert read_samples(path) == samples


@given(st.lists(processes, unique_by=lambda p: p.pid))
def test_processes_survive_their_cell(some: list[Process]) -> None:
    assert decode_processes(encode_processes(some)) == sorted(some, key=lambda p: p.pid)


def test_a_half_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    path.write_bytes((encode_header() + encode([cpu(0), cpu(1)]))[:-7])
    assert read_samples(path) == [cpu(0)]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", ":1: not the columns"),
        (b"t_ns,device,volts\n", ":1: not the columns"),
        (encode_header() + b"1,cpu\n", f":2: not a sample: 2 cells where {len(COLUMNS)} belong"),
        (encode_header() + b"soon,cpu" + b"," * (len(COLUMNS) - 2) + b"\n", ":2: not a sample"),
        (encode_header() + b"1,cpu,nan" + b"," * (len(COLUMNS) - 3) + b"\n", "clock_mhz is nan"),
        (b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_a_file_that_is_not_ours_is_refused_in_one_sentence(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "samples.csv"
    path.write_bytes(content)
    with pytest.raises(UserError) as refusal:
        read_samples(path)
    assert str(refusal.value).startswith(str(path))
    assert complaint in str(refusal.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_samples(tmp_path / "samples.csv")
