"""The GPU tools: NVML's own structures, amdsmi's dictionaries, and the amdgpu driver's files.

No GPU is needed: the vendors' libraries are played, and only what turns their answers into
readings is tested here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samenode.errors import UserError
from serve import gpu
from serve.gpu import (
    AmdSmi,
    AmdSysfs,
    Gpu,
    GpuReading,
    GpuToolError,
    Nvml,
    amd_reading,
    nvml_reasons,
    wait_free,
)
from serve.sampler import gpu_sample, limited_shares


def pci_device(root: Path, address: str, vendor: str, kind: str) -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")


# ---- which tool


def test_a_node_without_gpus_has_no_tool(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:00:01.0", "0x1af4", "0x020000")
    pci_device(tmp_path, "0000:00:02.0", "0x1002", "0x030000")  # a processor's own graphics
    pci_device(tmp_path, "0000:00:03.0", "0x10de", "0x040300")  # a graphics card's sound
    assert gpu.hardware(tmp_path) == set()
    assert gpu.open_tool(tmp_path) is None


@pytest.mark.parametrize(
    ("vendor", "kind", "expected"),
    [
        ("0x10de", "0x030200", "nvidia"),  # H200
        ("0x10de", "0x030000", "nvidia"),
        ("0x1002", "0x120000", "amd"),  # MI300X, MI355X
        ("0x1002", "0x038000", "amd"),  # MI210
    ],
)
def test_gpus_are_known_from_the_bus_even_without_a_driver(
    tmp_path: Path, vendor: str, kind: str, expected: str
) -> None:
    pci_device(tmp_path, "0000:19:00.0", vendor, kind)
    assert gpu.hardware(tmp_path) == {expected}


def test_gpus_passed_to_a_container_are_known_from_their_device_files(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    assert gpu.hardware(tmp_path) == {"nvidia"}


@pytest.mark.skipif(bool(gpu.hardware()), reason="this machine has a GPU")
def test_nvidia_gpus_without_nvml_fail_closed(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:19:00.0", "0x10de", "0x030200")
    with pytest.raises(GpuToolError, match="NVML does not answer"):
        gpu.open_tool(tmp_path)


@pytest.mark.skipif(bool(gpu.hardware()), reason="this machine has a GPU")
def test_amd_gpus_without_amdsmi_or_driver_fail_closed(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:19:00.0", "0x1002", "0x120000")
    with pytest.raises(GpuToolError, match="amdsmi does not answer"):
        gpu.open_tool(tmp_path)


# ---- NVML


@given(st.integers(0, 2**64 - 1))
def test_no_bit_of_the_mask_is_lost(mask: int) -> None:
    names = nvml_reasons(mask)
    known = {bit for bit, name in gpu.NVML_REASONS.items() if name in names}
    unknown = [int(name.removeprefix("unknown_"), 16) for name in names if "unknown_" in name]
    assert sum(known) + sum(unknown) == mask


def test_the_names_are_nvml_s_bits() -> None:
    named = {
        "idle": pynvml.nvmlClocksEventReasonGpuIdle,
        "app_clocks": pynvml.nvmlClocksEventReasonApplicationsClocksSetting,
        "power_cap": pynvml.nvmlClocksEventReasonSwPowerCap,
        "hw_slowdown": pynvml.nvmlClocksEventReasonHwSlowdown,
        "sync_boost": pynvml.nvmlClocksEventReasonSyncBoost,
        "sw_thermal": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
        "hw_thermal": pynvml.nvmlClocksEventReasonHwThermalSlowdown,
        "power_brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
        "display_clocks": pynvml.nvmlClocksEventReasonDisplayClockSetting,
        "board_limit": pynvml.nvmlClocksThrottleReasonBoardLimit,
        "reliability": pynvml.nvmlClocksThrottleReasonReliability,
    }
    assert named == {name: bit for bit, name in gpu.NVML_REASONS.items()}
    assert gpu.NVML_LIMIT_FIELDS == {
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP: "power_cap",
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN: "sw_thermal",
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN: "hw_thermal",
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN: "power_brake",
    }


def field_values(values: dict[int, int], failed: int = 0) -> Callable[..., Any]:
    def answer(handle: object, fields: list[int]) -> Any:
        array = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for slot, number in zip(array, fields, strict=True):
            slot.fieldId = number
            slot.value.ullVal = values[number]
            slot.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED if number == failed else 0
        return array

    return answer


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """pynvml as on a node with one H200; what it answers can be changed."""
    memory = SimpleNamespace(total=143771 * 2**20, used=120000 * 2**20)
    answers: dict[str, Any] = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetUUID": "GPU-5e2c",
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetEnforcedPowerLimit": 700000,
        "nvmlDeviceGetPowerUsage": 412345,
        "nvmlDeviceGetTotalEnergyConsumption": 9_000_500,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97, memory=41),
        "nvmlDeviceGetTemperature": 61,
        "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1980, 2: 3201}[kind],
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4,
        "nvmlDeviceGetFieldValues": field_values({74: 10**9, 269: 0, 270: 0, 271: 0}),
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=4711)],
        "nvmlSystemGetDriverVersion": "580.159.03",
        "nvmlSystemGetCudaDriverVersion": 13000,
    }

    def play(name: str) -> Callable[..., Any]:
        def call(*args: object) -> Any:
            answer = answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer(*args) if callable(answer) else answer

        return call

    for name in answers:
        assert hasattr(pynvml, name)
        monkeypatch.setattr(pynvml, name, play(name))
    return answers


def test_an_nvidia_gpu_is_described_and_read_in_our_units(nvml: dict[str, Any]) -> None:
    tool = Nvml()
    assert tool.gpus() == [gpu.Gpu(0, "NVIDIA H200", "GPU-5e2c", "nvidia", 143771.0, 700.0)]
    assert tool.drivers() == {"nvidia": "580.159.03", "cuda": "13.0"}
    reading = tool.read(0)
    assert (reading.clock_mhz, reading.memory_clock_mhz) == (1980, 3201)
    assert (reading.power_w, reading.power_limit_w, reading.energy_j) == (412.345, 700.0, 9000.5)
    assert (reading.util_pct, reading.temperature_c, reading.memory_used_mib) == (97, 61, 120000)
    assert reading.reasons == frozenset({"power_cap"})
    assert reading.pids == frozenset({4711})
    nvml["nvmlDeviceGetFieldValues"] = field_values({74: 10**9, 269: 10**6, 270: 0, 271: 0})
    assert limited_shares(reading, tool.read(0))["sw_thermal"] > 0


def test_what_a_gpu_does_not_support_is_not_known_and_the_rest_is_read(
    nvml: dict[str, Any],
) -> None:
    nvml["nvmlDeviceGetTotalEnergyConsumption"] = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    nvml["nvmlDeviceGetComputeRunningProcesses"] = pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
    nvml["nvmlDeviceGetCurrentClocksThrottleReasons"] = pynvml.NVMLError(
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    )
    reading = Nvml().read(0)
    assert (reading.energy_j, reading.pids, reading.reasons) == (None, None, None)
    assert reading.power_w == 412.345


def test_a_counter_that_is_missing_makes_all_of_them_unknown(nvml: dict[str, Any]) -> None:
    values = {74: 10**9, 269: 0, 270: 0, 271: 0}
    nvml["nvmlDeviceGetFieldValues"] = field_values(values, failed=271)
    assert Nvml().read(0).limited == {}


def test_a_gpu_that_fell_off_the_bus_is_an_error_and_not_a_clean_reading(
    nvml: dict[str, Any],
) -> None:
    tool = Nvml()
    nvml["nvmlDeviceGetUtilizationRates"] = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    with pytest.raises(GpuToolError, match="GPU is lost"):
        tool.read(0)


def test_nvml_that_sees_no_gpu_where_there_is_one_is_an_error(nvml: dict[str, Any]) -> None:
    nvml["nvmlDeviceGetCount"] = 0
    with pytest.raises(GpuToolError, match="NVML shows none"):
        Nvml()


# ---- amdsmi

# The keys are those of amdsmi 7.0.2's amdsmi_get_gpu_metrics_info; the two counters' values are
# the example of AMD SMI's changelog for an MI300X at rest.
METRICS: dict[str, Any] = {
    "temperature_edge": "N/A",
    "temperature_hotspot": 54,
    "average_gfx_activity": 93,
    "average_socket_power": "N/A",
    "current_socket_power": 871,
    "current_gfxclk": 2098,
    "current_gfxclks": [2100, 2096, 2098, 2098, 2100, 2100, 2096, 2096],
    "current_uclk": 1900,
    "throttle_status": "N/A",
    "indep_throttle_status": "N/A",
    "accumulation_counter": 1226415116,
    "prochot_residency_acc": 0,
    "ppt_residency_acc": 12,
    "socket_thm_residency_acc": 0,
    "vr_thm_residency_acc": 0,
    "hbm_thm_residency_acc": 0,
}


def test_amd_metrics_are_read_in_our_units() -> None:
    reading = amd_reading(METRICS)
    assert (reading.clock_mhz, reading.memory_clock_mhz) == (2098, 1900)
    assert (reading.power_w, reading.util_pct, reading.temperature_c) == (871, 93, 54)
    assert reading.reasons == frozenset()
    assert reading.limited["power_cap"] == 12


def test_amd_limits_are_shares_of_the_firmware_s_cycles() -> None:
    later = {
        **METRICS,
        "accumulation_counter": METRICS["accumulation_counter"] + 1000,
        "ppt_residency_acc": 912,
        "hbm_thm_residency_acc": 20,
    }
    row = gpu_sample(0, "gpu0", amd_reading(METRICS), amd_reading(later), [])
    assert (row.power_cap_pct, row.throttle_pct) == (90.0, 2.0)
    assert row.throttle == "hbm_thermal|power_cap"


def test_amd_metrics_without_the_limit_counters_leave_throttling_unknown() -> None:
    old = {**METRICS, "prochot_residency_acc": "N/A"}
    reading = amd_reading(old)
    assert (reading.reasons, reading.limited, reading.elapsed) == (None, {}, None)
    assert amd_reading({}) == gpu.GpuReading()


class PlayedAmdSmi(SimpleNamespace):
    """amdsmi as on a node with one MI355X."""

    class AmdSmiException(Exception):
        """amdsmi's base class."""

    def __init__(self) -> None:
        super().__init__(
            amdsmi_init=lambda: None,
            amdsmi_shut_down=lambda: None,
            amdsmi_get_processor_handles=lambda: ["handle"],
            amdsmi_get_gpu_kfd_info=lambda handle: {"kfd_id": 45518, "node_id": 2},
            amdsmi_get_gpu_asic_info=lambda handle: {"market_name": "AMD Instinct MI355X"},
            amdsmi_get_gpu_device_uuid=lambda handle: "75ff75a3-0000-1000-80b1-5b0f1f1b0a2c",
            amdsmi_get_gpu_vram_info=lambda handle: {"vram_size": 294896},
            amdsmi_get_gpu_vram_usage=lambda handle: {"vram_total": 294896, "vram_used": 250000},
            amdsmi_get_power_cap_info=lambda handle: {"power_cap": 1_400_000_000},
            amdsmi_get_energy_count=lambda handle: {
                "energy_accumulator": 2_000_000, "counter_resolution": 15.3, "timestamp": 1,
            },
            amdsmi_get_gpu_metrics_info=lambda handle: METRICS,
            amdsmi_get_gpu_driver_info=lambda handle: {"driver_version": "6.16.6"},
        )  # fmt: skip


@pytest.fixture
def amdsmi(monkeypatch: pytest.MonkeyPatch) -> PlayedAmdSmi:
    played = PlayedAmdSmi()
    monkeypatch.setitem(sys.modules, "amdsmi", played)
    return played


def kfd_process(root: Path, pid: int, gpu_id: int, vram: int) -> None:
    folder = root / f"sys/class/kfd/kfd/proc/{pid}"
    folder.mkdir(parents=True)
    (folder / f"vram_{gpu_id}").write_text(f"{vram}\n")


def test_an_amd_gpu_is_described_and_read_in_our_units(
    tmp_path: Path, amdsmi: PlayedAmdSmi
) -> None:
    kfd_process(tmp_path, 4711, 45518, 2**30)
    kfd_process(tmp_path, 4712, 45518, 0)
    kfd_process(tmp_path, 4713, 99, 2**30)
    (tmp_path / "opt/rocm/.info").mkdir(parents=True)
    (tmp_path / "opt/rocm/.info/version").write_text("7.0.2\n")
    tool = AmdSmi(tmp_path)
    (described,) = tool.gpus()
    assert (described.name, described.vendor) == ("AMD Instinct MI355X", "amd")
    assert (described.memory_mib, described.power_limit_w) == (294896, 1400.0)
    assert tool.drivers() == {"amdgpu": "6.16.6", "rocm": "7.0.2"}
    reading = tool.read(0)
    assert reading.power_limit_w == 1400.0
    assert reading.energy_j == pytest.approx(30.6)
    assert reading.memory_used_mib == 250000
    assert reading.pids == frozenset({4711})
    assert reading.power_w == 871


def test_what_amdsmi_does_not_support_is_not_known(tmp_path: Path, amdsmi: PlayedAmdSmi) -> None:
    def refuse(handle: object) -> None:
        raise amdsmi.AmdSmiException("not supported")

    amdsmi.amdsmi_get_energy_count = refuse
    amdsmi.amdsmi_get_power_cap_info = refuse
    reading = AmdSmi(tmp_path).read(0)
    assert (reading.energy_j, reading.power_limit_w, reading.pids) == (None, None, None)
    amdsmi.amdsmi_get_gpu_metrics_info = refuse
    with pytest.raises(GpuToolError, match="amdsmi: AmdSmiException: not supported"):
        AmdSmi(tmp_path).read(0)


# ---- the amdgpu driver's files


def amd_card(root: Path, card: int, address: str, uuid: str) -> Path:
    device = root / "sys/devices/pci" / address
    hwmon = device / "hwmon/hwmon5"
    hwmon.mkdir(parents=True)
    (device / f"drm/renderD{128 + card}").mkdir(parents=True)
    files = {
        "vendor": "0x1002", "device": "0x75a3", "unique_id": uuid, "gpu_busy_percent": "97",
        "mem_info_vram_total": str(288 * 2**30), "mem_info_vram_used": str(200 * 2**30),
        "hwmon/hwmon5/power1_input": "871000000", "hwmon/hwmon5/power1_cap": "1400000000",
        "hwmon/hwmon5/freq1_input": "2100000000", "hwmon/hwmon5/freq2_input": "1900000000",
        "hwmon/hwmon5/temp2_label": "junction", "hwmon/hwmon5/temp2_input": "54000",
    }  # fmt: skip
    for name, content in files.items():
        (device / name).write_text(f"{content}\n")
    (root / f"sys/class/drm/card{card}").mkdir(parents=True)
    (root / f"sys/class/drm/card{card}/device").symlink_to(device)
    node = root / f"sys/class/kfd/kfd/topology/nodes/{card + 1}"
    node.mkdir(parents=True)
    (node / "gpu_id").write_text(f"{100 + card}\n")
    (node / "properties").write_text(f"simd_count 1024\ndrm_render_minor {128 + card}\n")
    return device


@pytest.mark.skipif(bool(gpu.hardware()), reason="this machine has a GPU")
def test_without_amdsmi_the_driver_s_files_are_read_and_throttling_stays_unknown(
    tmp_path: Path,
) -> None:
    amd_card(tmp_path, 0, "0000:05:00.0", "8f2a01")
    amd_card(tmp_path, 1, "0000:15:00.0", "8f2a02")
    kfd_process(tmp_path, 4711, 101, 2**30)
    tool = gpu.open_tool(tmp_path)
    assert isinstance(tool, AmdSysfs)
    assert [(g.index, g.uuid, g.memory_mib, g.power_limit_w) for g in tool.gpus()] == [
        (0, "8f2a01", 288 * 1024, 1400.0),
        (1, "8f2a02", 288 * 1024, 1400.0),
    ]
    reading = tool.read(1)
    assert (reading.clock_mhz, reading.memory_clock_mhz) == (2100, 1900)
    assert (reading.power_w, reading.util_pct, reading.temperature_c) == (871, 97, 54)
    assert reading.memory_used_mib == 200 * 1024
    assert reading.reasons is None
    assert reading.pids == frozenset({4711})
    assert tool.read(0).pids == frozenset()
    assert tool.drivers() == {"amdgpu": "in kernel"}


class _Draining:
    """A GPU tool whose one GPU frees its memory step by step."""

    def __init__(self, used: list[float]) -> None:
        self.used = used

    def gpus(self) -> list[Gpu]:
        return [Gpu(0, "GPU", "uuid", "nvidia", 1000.0, None)]

    def read(self, index: int) -> GpuReading:
        return GpuReading(memory_used_mib=self.used.pop(0) if len(self.used) > 1 else self.used[0])

    def drivers(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        pass


def test_the_next_server_waits_for_the_last_ones_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("serve.gpu.time.sleep", slept.append)
    wait_free(_Draining([900.0, 500.0, 150.0]), {0: 60.0}, 60)
    assert len(slept) == 2
    with pytest.raises(UserError, match="GPU 0 still holds 900 MiB 0 s after the server's end"):
        wait_free(_Draining([900.0]), {0: 60.0}, 0)
