"""The GPUs of this node: what they are and what they do at this moment.

Three readers with one face (`GpuTool`): NVML for NVIDIA, amdsmi for AMD Instinct, and the amdgpu
driver's sysfs where amdsmi is not installed. They only read; what a reading means is decided by
`serve.samples.judge`, which needs no GPU.
"""

from __future__ import annotations

import contextlib
import io
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from samenode.errors import UserError

NVML_REASONS = {
    0x001: "idle",
    0x002: "app_clocks",
    0x004: "power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
"""NVML's nvmlClocksEventReason bits by the name used here."""

# Field ids of nvmlDeviceGetFieldValues: nanoseconds during which the reason held the clocks.
NVML_LIMIT_FIELDS = {74: "power_cap", 269: "sw_thermal", 270: "hw_thermal", 271: "power_brake"}

AMD_LIMITS = {
    "ppt_residency_acc": "power_cap",
    "prochot_residency_acc": "prochot",
    "socket_thm_residency_acc": "socket_thermal",
    "vr_thm_residency_acc": "vr_thermal",
    "hbm_thm_residency_acc": "hbm_thermal",
}
"""Keys of amdsmi's gpu_metrics: firmware cycles during which the limit was active."""

COUNTED = frozenset({*NVML_LIMIT_FIELDS.values(), *AMD_LIMITS.values()})
"""Reasons whose time the hardware counts. The others are only seen when a sample meets them."""


class GpuToolError(Exception):
    """The node has GPUs that cannot be read. Its text says why and how to mend it."""


@dataclass(frozen=True)
class Gpu:
    """What a GPU is. ``None`` where its tool does not say."""

    index: int
    name: str
    uuid: str
    vendor: str
    memory_mib: float | None
    power_limit_w: float | None


@dataclass(frozen=True)
class GpuReading:
    """What a GPU does at one moment. ``None``: its tool does not say."""

    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    """Used since the driver was loaded; only differences mean something."""
    util_pct: float | None = None
    temperature_c: float | None = None
    memory_used_mib: float | None = None
    reasons: frozenset[str] | None = None
    """What holds the clocks down now."""
    limited: Mapping[str, float] = field(default_factory=dict)
    """Reason → how long it has held the clocks down so far, in the unit of ``elapsed``.

    Every counted reason that the vendor knows, or nothing: half a count would read as clean."""
    elapsed: float | None = None
    """The time base of ``limited``; both only ever grow."""
    pids: frozenset[int] | None = None
    """Processes with memory on the GPU."""


class GpuTool(Protocol):
    """Reads the GPUs of one vendor."""

    name: str

    def gpus(self) -> list[Gpu]:
        """The GPUs, by index. Raises GpuToolError when one cannot be described."""

    def read(self, index: int) -> GpuReading:
        """Read one GPU now. Raises GpuToolError when it does not answer."""

    def drivers(self) -> dict[str, str]:
        """Driver and runtime versions by name."""

    def close(self) -> None:
        """Release the tool."""


def open_tool(root: Path = Path("/")) -> GpuTool | None:
    """The tool that reads this node's GPUs, or None when the node has no GPU.

    Args:
        root: where /sys, /dev and /proc lie.

    Raises:
        GpuToolError: there are GPUs and nothing can read them.
    """
    vendors = hardware(root)
    if "nvidia" in vendors:
        return Nvml()
    if "amd" in vendors:
        try:
            return AmdSmi(root)
        except GpuToolError as error:
            return AmdSysfs(root, why=str(error))
    return None


def memory_used(tool: GpuTool) -> dict[int, float]:
    """Used memory of every GPU in MiB, by index; a GPU that does not say is left out."""
    found = {gpu.index: tool.read(gpu.index).memory_used_mib for gpu in tool.gpus()}
    return {index: used for index, used in found.items() if used is not None}


def wait_free(tool: GpuTool, before: Mapping[int, float], timeout_s: float) -> None:
    """Wait until no GPU holds more than ``before`` and a tenth of its memory.

    A server's processes can be gone seconds before the driver gives their memory back, and the
    next server would find too little.

    Raises:
        UserError: memory is still held after ``timeout_s`` seconds; the sentence names the GPU.
    """
    deadline = time.monotonic() + timeout_s
    sizes = {gpu.index: gpu.memory_mib or math.inf for gpu in tool.gpus()}
    while True:
        used = memory_used(tool)
        held = [i for i in used if used[i] > before.get(i, 0.0) + 0.1 * sizes[i]]
        if not held:
            return
        if time.monotonic() > deadline:
            raise UserError(
                f"GPU {held[0]} still holds {used[held[0]]:.0f} MiB {timeout_s:.0f} s after the "
                "server's end; find the process that holds it (samenode doctor) and end it",
                exit_code=1,
            )
        time.sleep(1)


def hardware(root: Path = Path("/")) -> set[str]:
    """The vendors ("nvidia", "amd") of the GPUs that the kernel knows of, readable or not.

    AMD: Instinct accelerators only (PCI class 0x0380 or 0x1200, or a KFD device); a processor's
    own graphics serves no model.
    """
    found = set()
    for device in (root / "sys/bus/pci/devices").glob("*"):
        vendor, kind = _text(device / "vendor"), _text(device / "class") or ""
        if vendor == "0x10de" and kind.startswith(("0x0300", "0x0302")):
            found.add("nvidia")
        if vendor == "0x1002" and kind.startswith(("0x0380", "0x1200")):
            found.add("amd")
    if list((root / "dev").glob("nvidia[0-9]*")):
        found.add("nvidia")
    if _kfd_gpu_ids(root):
        found.add("amd")
    return found


# NVIDIA


def nvml_reasons(mask: int) -> frozenset[str]:
    """Name the bits of NVML's clocks-event mask; a bit that is not known is kept as unknown_0x…"""
    names = {name for bit, name in NVML_REASONS.items() if mask & bit}
    rest = mask & ~sum(NVML_REASONS)
    if rest:
        names.add(f"unknown_{rest:#x}")
    return frozenset(names)


class Nvml:
    """NVIDIA's management library, through nvidia-ml-py."""

    name = "nvml"

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise GpuToolError(
                "NVIDIA GPUs are here but nvidia-ml-py is not; pip install nvidia-ml-py"
            ) from error
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        except pynvml.NVMLError as error:
            raise GpuToolError(
                f"NVIDIA GPUs are here but NVML does not answer ({error}); check that nvidia-smi "
                "runs here (in a container: --gpus all)"
            ) from error
        if not self._handles:
            self.close()
            raise GpuToolError(
                "NVIDIA GPUs are here but NVML shows none; check the driver and, in a container, "
                "--gpus all"
            )

    def gpus(self) -> list[Gpu]:
        nvml = self._nvml
        try:
            return [
                Gpu(
                    index=index,
                    name=nvml.nvmlDeviceGetName(handle),
                    uuid=nvml.nvmlDeviceGetUUID(handle),
                    vendor="nvidia",
                    memory_mib=nvml.nvmlDeviceGetMemoryInfo(handle).total / 2**20,
                    power_limit_w=_scaled(
                        self._ask("nvmlDeviceGetEnforcedPowerLimit", handle), 1e3
                    ),
                )
                for index, handle in enumerate(self._handles)
            ]
        except nvml.NVMLError as error:
            raise GpuToolError(f"NVML cannot describe the GPUs: {error}") from error

    def read(self, index: int) -> GpuReading:
        nvml, handle = self._nvml, self._handles[index]
        try:
            util = self._ask("nvmlDeviceGetUtilizationRates", handle)
            memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
            mask = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
            processes = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
            return GpuReading(
                clock_mhz=self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
                memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM),
                power_w=_scaled(self._ask("nvmlDeviceGetPowerUsage", handle), 1e3),
                power_limit_w=_scaled(self._ask("nvmlDeviceGetEnforcedPowerLimit", handle), 1e3),
                energy_j=_scaled(self._ask("nvmlDeviceGetTotalEnergyConsumption", handle), 1e3),
                util_pct=None if util is None else util.gpu,
                temperature_c=self._ask(
                    "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU
                ),
                memory_used_mib=None if memory is None else memory.used / 2**20,
                reasons=None if mask is None else nvml_reasons(mask),
                limited=self._limited(handle),
                elapsed=time.monotonic_ns(),
                pids=None if processes is None else frozenset(p.pid for p in processes),
            )
        except nvml.NVMLError as error:
            raise GpuToolError(f"NVML: {error}") from error

    def _limited(self, handle: Any) -> dict[str, float]:
        values = self._ask("nvmlDeviceGetFieldValues", handle, list(NVML_LIMIT_FIELDS)) or ()
        if any(value.nvmlReturn != self._nvml.NVML_SUCCESS for value in values):
            return {}
        return {NVML_LIMIT_FIELDS[v.fieldId]: float(v.value.ullVal) for v in values}

    def _ask(self, function: str, *args: Any) -> Any:
        """NVML's answer, or None where this GPU, driver or user has none to give."""
        nvml = self._nvml
        try:
            return getattr(nvml, function)(*args)
        except (
            nvml.NVMLError_NotSupported,
            nvml.NVMLError_NoPermission,
            nvml.NVMLError_FunctionNotFound,
        ):
            return None

    def drivers(self) -> dict[str, str]:
        cuda = self._ask("nvmlSystemGetCudaDriverVersion")
        versions = {"nvidia": self._ask("nvmlSystemGetDriverVersion") or "unknown"}
        if cuda is not None:
            versions["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
        return versions

    def close(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()


# AMD


def amd_reading(metrics: Mapping[str, Any]) -> GpuReading:
    """Read amdsmi's gpu_metrics (amdsmi_get_gpu_metrics_info): clocks, power, limits.

    MI300 and later have no throttle bits (``throttle_status`` is N/A); they count the firmware
    cycles spent at each limit beside the cycles in all, which says more.
    """
    elapsed = _number(metrics.get("accumulation_counter"))
    limited = {
        name: value
        for key, name in AMD_LIMITS.items()
        if (value := _number(metrics.get(key))) is not None
    }
    counted = elapsed is not None and len(limited) == len(AMD_LIMITS)
    clocks = [c for c in map(_number, metrics.get("current_gfxclks") or ()) if c is not None]
    return GpuReading(
        clock_mhz=sum(clocks) / len(clocks) if clocks else _number(metrics.get("current_gfxclk")),
        memory_clock_mhz=_number(metrics.get("current_uclk")),
        power_w=_first(metrics, "current_socket_power", "average_socket_power"),
        util_pct=_number(metrics.get("average_gfx_activity")),
        temperature_c=_number(metrics.get("temperature_hotspot")),
        reasons=frozenset() if counted else None,
        limited=limited if counted else {},
        elapsed=elapsed if counted else None,
    )


def kfd_pids(root: Path, gpu_id: int) -> frozenset[int] | None:
    """Processes with memory on the GPU of this KFD id; None where the kernel does not say."""
    folder = root / "sys/class/kfd/kfd/proc"
    try:
        pids = [entry.name for entry in folder.iterdir() if entry.name.isdigit()]
    except OSError:
        return None
    return frozenset(
        int(pid) for pid in pids if int(_text(folder / pid / f"vram_{gpu_id}") or 0) > 0
    )


class AmdSmi:
    """AMD's management library, through the amdsmi package that ROCm brings."""

    name = "amdsmi"

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        try:
            # Without its shared library, amdsmi prints and then fails in ways of its own.
            with contextlib.redirect_stdout(io.StringIO()):
                import amdsmi
            amdsmi.amdsmi_init()
            handles = amdsmi.amdsmi_get_processor_handles()
        except Exception as error:
            raise GpuToolError(
                f"AMD GPUs are here but amdsmi does not answer ({_line(error)}); pip install "
                "/opt/rocm/share/amd_smi"
            ) from error
        if not handles:
            raise GpuToolError(
                "AMD GPUs are here but amdsmi shows none; a container needs /dev/kfd and /dev/dri"
            )
        self._smi: Any = amdsmi
        self._handles = handles
        self._kfd_ids = [self._ask("amdsmi_get_gpu_kfd_info", h).get("kfd_id") for h in handles]

    def gpus(self) -> list[Gpu]:
        found = []
        for index, handle in enumerate(self._handles):
            asic = self._ask("amdsmi_get_gpu_asic_info", handle)
            try:
                uuid = str(self._smi.amdsmi_get_gpu_device_uuid(handle))
            except self._smi.AmdSmiException as error:
                raise GpuToolError(f"amdsmi cannot describe GPU {index}: {_line(error)}") from error
            found.append(
                Gpu(
                    index=index,
                    name=str(asic.get("market_name", "unknown")),
                    uuid=uuid,
                    vendor="amd",
                    memory_mib=_number(
                        self._ask("amdsmi_get_gpu_vram_info", handle).get("vram_size")
                    ),
                    power_limit_w=self._power_limit(handle),
                )
            )
        return found

    def read(self, index: int) -> GpuReading:
        handle = self._handles[index]
        try:
            reading = amd_reading(self._smi.amdsmi_get_gpu_metrics_info(handle))
        except self._smi.AmdSmiException as error:
            raise GpuToolError(f"amdsmi: {_line(error)}") from error
        energy = self._ask("amdsmi_get_energy_count", handle)
        ticks, microjoules = (
            _number(energy.get(key)) for key in ("energy_accumulator", "counter_resolution")
        )
        gpu_id = _number(self._kfd_ids[index])
        return GpuReading(
            **{
                **vars(reading),
                "energy_j": ticks * microjoules / 1e6 if ticks and microjoules else None,
                "power_limit_w": self._power_limit(handle),
                "memory_used_mib": _number(
                    self._ask("amdsmi_get_gpu_vram_usage", handle).get("vram_used")
                ),
                "pids": None if gpu_id is None else kfd_pids(self._root, int(gpu_id)),
            }
        )

    def _power_limit(self, handle: Any) -> float | None:
        """W. amdsmi gave watts in its first releases and microwatts since."""
        cap = _number(self._ask("amdsmi_get_power_cap_info", handle).get("power_cap"))
        return cap if cap is None or cap < 1e5 else cap / 1e6

    def _ask(self, function: str, handle: Any) -> dict[str, Any]:
        """amdsmi's answer, or an empty one where this GPU or driver has none to give."""
        try:
            return dict(getattr(self._smi, function)(handle))
        except self._smi.AmdSmiException:
            return {}

    def drivers(self) -> dict[str, str]:
        info = self._ask("amdsmi_get_gpu_driver_info", self._handles[0])
        return {"amdgpu": str(info.get("driver_version", "unknown")), **_rocm(self._root)}

    def close(self) -> None:
        with contextlib.suppress(self._smi.AmdSmiException):
            self._smi.amdsmi_shut_down()


class AmdSysfs:
    """The amdgpu driver's own files, where amdsmi is missing. They do not say what throttles."""

    name = "amdgpu sysfs"

    def __init__(self, root: Path = Path("/"), why: str = "") -> None:
        self._root = root
        ids = _kfd_gpu_ids(root)
        self._cards = sorted(
            {
                card.resolve()
                for card in (root / "sys/class/drm").glob("card[0-9]*/device")
                if _text(card / "vendor") == "0x1002" and (card / "mem_info_vram_total").exists()
            }
        )
        if not self._cards:
            raise GpuToolError(f"{why}; nor are /dev/dri and the amdgpu driver's files to be seen")
        self._hwmon = [next(iter(sorted(c.glob("hwmon/hwmon*"))), c) for c in self._cards]
        minors = [next(iter(c.glob("drm/renderD*")), None) for c in self._cards]
        self._kfd_ids = [ids.get(minor.name) if minor else None for minor in minors]

    def gpus(self) -> list[Gpu]:
        return [
            Gpu(
                index=index,
                name=_text(card / "product_name") or f"AMD {_text(card / 'device')}",
                uuid=_text(card / "unique_id") or f"pci-{card.name}",
                vendor="amd",
                memory_mib=_scaled(_read_number(card / "mem_info_vram_total"), 2**20),
                power_limit_w=_scaled(_read_number(hwmon / "power1_cap"), 1e6),
            )
            for index, (card, hwmon) in enumerate(zip(self._cards, self._hwmon, strict=True))
        ]

    def read(self, index: int) -> GpuReading:
        card, hwmon, gpu_id = self._cards[index], self._hwmon[index], self._kfd_ids[index]
        power = _read_number(hwmon / "power1_input")
        if power is None:
            power = _read_number(hwmon / "power1_average")
        return GpuReading(
            clock_mhz=_scaled(_read_number(hwmon / "freq1_input"), 1e6),
            memory_clock_mhz=_scaled(_read_number(hwmon / "freq2_input"), 1e6),
            power_w=_scaled(power, 1e6),
            power_limit_w=_scaled(_read_number(hwmon / "power1_cap"), 1e6),
            util_pct=_read_number(card / "gpu_busy_percent"),
            temperature_c=_scaled(self._hotspot(hwmon), 1e3),
            memory_used_mib=_scaled(_read_number(card / "mem_info_vram_used"), 2**20),
            pids=None if gpu_id is None else kfd_pids(self._root, gpu_id),
        )

    @staticmethod
    def _hotspot(hwmon: Path) -> float | None:
        for label in hwmon.glob("temp*_label"):
            if _text(label) == "junction":
                return _read_number(label.with_name(label.name.replace("_label", "_input")))
        return None

    def drivers(self) -> dict[str, str]:
        version = _text(self._root / "sys/module/amdgpu/version") or "in kernel"
        return {"amdgpu": version, **_rocm(self._root)}

    def close(self) -> None:
        return


def _kfd_gpu_ids(root: Path) -> dict[str, int]:
    """Render node ("renderD128") → KFD id, for each GPU that the compute driver knows."""
    ids = {}
    for node in (root / "sys/class/kfd/kfd/topology/nodes").glob("*"):
        gpu_id = int(_text(node / "gpu_id") or 0)
        lines = (_text(node / "properties") or "").splitlines()
        properties = dict(line.split(maxsplit=1) for line in lines if " " in line)
        if gpu_id:
            ids[f"renderD{properties.get('drm_render_minor', '?')}"] = gpu_id
    return ids


def _rocm(root: Path) -> dict[str, str]:
    version = _text(root / "opt/rocm/.info/version")
    return {"rocm": version} if version else {}


def _line(error: Exception) -> str:
    """An error on one line; amdsmi's own have several."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _read_number(path: Path) -> float | None:
    text = _text(path)
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _scaled(value: float | None, divisor: float) -> float | None:
    return None if value is None else value / divisor


def _number(value: Any) -> float | None:
    """A number, or None for amdsmi's "N/A"."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _first(metrics: Mapping[str, Any], *keys: str) -> float | None:
    return next((v for k in keys if (v := _number(metrics.get(k))) is not None), None)
