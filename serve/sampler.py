"""A thread that samples the node while a point runs: one row a second and device.

`serve.samples` says what the columns mean and what the rows prove.

    python -m serve.sampler FILE [--seconds N]     samples this node and states its own cost
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from samenode.errors import UserError
from serve.gpu import GpuReading, GpuTool, GpuToolError, open_tool
from serve.samples import (
    NOT_THROTTLING,
    Process,
    Sample,
    encode,
    encode_header,
    encode_processes,
)

INTERVAL_S = 1.0
STOP_TIMEOUT_S = 5.0
"""A GPU driver can hang; the campaign does not wait for it longer than this."""
MAX_CLOCKS = 16
"""CPUs whose clock is read. On a node with hundreds, reading each every second would be felt."""


class Sampler:
    """Samples the node in a thread, once every ``interval_s`` seconds, until stopped.

    Args:
        path: the CSV. Rows are appended, one write a tick, so that a kill loses nothing.
        own_pids: gives the server's processes at the moment. Asked only when a process is on a GPU
            that was not the server's before, since walking the processes of a node costs time.
        gpus: indices of the GPUs to sample; None for all, () for none (a server on the CPU).
        interval_s: seconds between ticks. A tick that is late is not made up for.
        tool: reads the GPUs, and is closed with the sampler; by default this node's own.

    A GPU that cannot be read gives rows with ``error`` set, which `serve.samples.judge` does not
    pass as clean.
    """

    def __init__(
        self,
        path: Path,
        *,
        own_pids: Callable[[], Collection[int]] = frozenset,
        gpus: Sequence[int] | None = None,
        interval_s: float = INTERVAL_S,
        tool: GpuTool | None = None,
    ) -> None:
        self.path = path
        self.ticks = 0
        self.cpu_s = 0.0
        """CPU seconds that sampling has cost so far."""
        self.error: str | None = None
        """Why the last tick could not be written (a full disk); None when it was."""
        self._own_pids = own_pids
        self._wanted = gpus
        self._interval_s = interval_s
        self._tool = tool
        self._cpu = CpuReader(disk=path.parent)
        self._gpus: list[_GpuReader] = []
        self._unreadable: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> Self:
        """Take the first sample and go on in a thread.

        Raises:
            UserError: the file is there with other columns, or cannot be written; or the node has
                no GPU of a wanted index.
        """
        _prepare(self.path)
        self._open_gpus()
        self._tick()
        if self.error:
            raise UserError(f"{self.path}: {self.error}; free space or choose another folder")
        self._thread.start()
        return self

    def stop(self) -> None:
        """Take a last sample and end the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)
        if self._tool and not self._thread.is_alive():
            self._tool.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _open_gpus(self) -> None:
        if self._wanted is not None and not self._wanted:
            return
        try:
            self._tool = self._tool or open_tool()
            count = len(self._tool.gpus()) if self._tool else 0
        except GpuToolError as error:
            self._unreadable = str(error)
            return
        wanted = range(count) if self._wanted is None else self._wanted
        if missing := [index for index in wanted if index >= count]:
            raise UserError(f"no GPU {missing[0]} to sample; this node has {count}")
        if self._tool:
            self._gpus = [_GpuReader(self._tool, index, self._own_pids) for index in wanted]

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            now = time.monotonic()
            due += self._interval_s * max(1, math.ceil((now - due) / self._interval_s))
            self._stop.wait(due - now)
            self._tick()

    def _tick(self) -> None:
        began = time.thread_time()
        try:
            rows = [self._cpu.sample(time.time_ns(), self.cpu_s)]
            rows += [gpu.sample(time.time_ns()) for gpu in self._gpus]
            if self._unreadable:
                rows.append(Sample(time.time_ns(), "gpu", error=self._unreadable))
            with self.path.open("ab", buffering=0) as handle:
                handle.write(encode(rows))
            self.error = None
        except OSError as error:
            # The hole that this leaves in the file is found when it is judged.
            self.error = error.strerror or str(error)
        self.ticks += 1
        self.cpu_s += time.thread_time() - began


def _prepare(path: Path) -> None:
    """Leave ``path`` with our header and whole lines only, ready to append to."""
    header = encode_header()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as handle:
            handle.seek(0)
            content = handle.read()
            if not (content.startswith(header) or header.startswith(content)):
                raise UserError(f"{path}:1: not the columns of a samples.csv; move the file away")
            whole = content.rfind(b"\n") + 1
            handle.truncate(whole)
            if not whole:
                handle.write(header)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); free space or choose another folder"
        ) from error


# ---- a GPU's row


class _GpuReader:
    """Reads one GPU's row; its counters and processes need what was read before."""

    def __init__(self, tool: GpuTool, index: int, own_pids: Callable[[], Collection[int]]) -> None:
        self._tool, self._index, self._own_pids = tool, index, own_pids
        self._previous: GpuReading | None = None
        self._own: dict[int, Process] = {}

    def sample(self, t_ns: int) -> Sample:
        device = f"gpu{self._index}"
        try:
            reading = self._tool.read(self._index)
        except GpuToolError as error:
            return Sample(t_ns, device, error=str(error))
        processes = None if reading.pids is None else self._processes(reading.pids)
        previous, self._previous = self._previous, reading
        return gpu_sample(t_ns, device, previous, reading, processes)

    def _processes(self, pids: Collection[int]) -> list[Process]:
        strangers = [pid for pid in pids if pid not in self._own]
        own = self._own_pids() if strangers else ()
        found = [Process(pid, _process_name(pid), pid in own) for pid in strangers]
        self._own = {pid: process for pid, process in self._own.items() if pid in pids}
        self._own |= {process.pid: process for process in found if process.own}
        return [*self._own.values(), *(process for process in found if not process.own)]


def gpu_sample(
    t_ns: int,
    device: str,
    previous: GpuReading | None,
    reading: GpuReading,
    processes: Collection[Process] | None,
) -> Sample:
    """The row of one GPU reading; the one before it gives the shares of time."""
    shares = limited_shares(previous, reading)
    reasons = reading.reasons
    if reasons is not None:
        reasons = reasons | {reason for reason, share in shares.items() if share > 0}
    throttling = [share for reason, share in shares.items() if reason not in NOT_THROTTLING]
    return Sample(
        t_ns=t_ns,
        device=device,
        clock_mhz=reading.clock_mhz,
        memory_clock_mhz=reading.memory_clock_mhz,
        power_w=reading.power_w,
        power_limit_w=reading.power_limit_w,
        energy_j=reading.energy_j,
        util_pct=reading.util_pct,
        temperature_c=reading.temperature_c,
        throttle=None if reasons is None else "|".join(sorted(reasons)) or "none",
        throttle_pct=max(throttling, default=None),
        power_cap_pct=shares.get("power_cap"),
        memory_used_mib=reading.memory_used_mib,
        processes=None if processes is None else encode_processes(processes),
    )


def limited_shares(previous: GpuReading | None, reading: GpuReading) -> dict[str, float]:
    """Per reason, the share (%) of the time between two readings that it held the clocks down.

    Empty where the counters are missing, or went back (a driver reload, a counter's wrap).
    """
    if previous is None or previous.elapsed is None or reading.elapsed is None:
        return {}
    span = reading.elapsed - previous.elapsed
    grown = {
        reason: value - previous.limited[reason]
        for reason, value in reading.limited.items()
        if reason in previous.limited
    }
    if span <= 0 or any(value < 0 for value in grown.values()):
        return {}
    return {reason: min(100.0, 100 * value / span) for reason, value in grown.items()}


def _process_name(pid: int) -> str:
    return _text(Path(f"/proc/{pid}/comm")) or "?"


# ---- the CPU's row


class CpuReader:
    """Reads the CPU's row from the kernel's files. ``root`` is where /proc and /sys lie."""

    def __init__(self, root: Path = Path("/"), disk: Path = Path()) -> None:
        self._disk = disk
        self._stat = root / "proc/stat"
        cpus = root / "sys/devices/system/cpu"
        clocks = sorted(cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
        self._clocks = clocks[:: max(1, math.ceil(len(clocks) / MAX_CLOCKS))]
        # Intel's: per CPU, its core's and its package's milliseconds of thermal throttling.
        self._throttled = [
            sorted(folder.glob("*_throttle_total_time_ms"))
            for folder in sorted(cpus.glob("cpu[0-9]*/thermal_throttle"))
        ]
        self._temperatures = _cpu_temperatures(root)
        self._previous_ticks: tuple[float, float, float] | None = None
        self._previous_throttled: tuple[int, float] | None = None

    def sample(self, t_ns: int, sampler_cpu_s: float = 0.0) -> Sample:
        """The CPU's row now; shares of time are over the time since the last call."""
        util, steal = self._shares()
        throttle_pct = self._throttle_pct(t_ns)
        clocks, temperatures = _numbers(self._clocks), _numbers(self._temperatures)
        return Sample(
            t_ns=t_ns,
            device="cpu",
            clock_mhz=sum(clocks) / len(clocks) / 1e3 if clocks else None,
            util_pct=util,
            temperature_c=max(temperatures) / 1e3 if temperatures else None,
            throttle=None if throttle_pct is None else "thermal" if throttle_pct else "none",
            throttle_pct=throttle_pct,
            steal_pct=steal,
            load_1m=os.getloadavg()[0],
            memory_available_mib=psutil.virtual_memory().available / 2**20,
            disk_free_mib=psutil.disk_usage(str(self._disk)).free / 2**20,
            sampler_cpu_ms=sampler_cpu_s * 1e3,
        )

    def _shares(self) -> tuple[float | None, float | None]:
        with self._stat.open(encoding="ascii") as handle:
            now = cpu_ticks(handle.readline())
        before, self._previous_ticks = self._previous_ticks, now
        if before is None or now[2] <= before[2]:
            return None, None
        busy, steal, total = (b - a for a, b in zip(before, now, strict=True))
        return 100 * busy / total, 100 * steal / total

    def _throttle_pct(self, t_ns: int) -> float | None:
        """Share of time under thermal throttling, the mean over the CPUs."""
        if not self._throttled:
            return None
        now = (t_ns, sum(max(_numbers(files), default=0.0) for files in self._throttled))
        before, self._previous_throttled = self._previous_throttled, now
        if before is None or now[0] <= before[0]:
            return None
        mean_ms = (now[1] - before[1]) / len(self._throttled)
        return max(0.0, min(100.0, 100 * mean_ms / ((now[0] - before[0]) / 1e6)))


def cpu_ticks(line: str) -> tuple[float, float, float]:
    """(busy, stolen, all) clock ticks since boot, from the first line of /proc/stat.

    A guest's time is within user time already (proc_stat(5)), so the last two columns are left out.
    """
    user, nice, system, idle, iowait, irq, softirq, steal = map(float, line.split()[1:9])
    busy = user + nice + system + irq + softirq
    return busy, steal, busy + steal + idle + iowait


def _cpu_temperatures(root: Path) -> list[Path]:
    """The files of the CPU packages' temperatures (millidegrees), or of all their sensors'."""
    packages: list[Path] = []
    others: list[Path] = []
    for sensor in (root / "sys/class/hwmon").glob("hwmon*"):
        if _text(sensor / "name") in ("coretemp", "k10temp", "zenpower", "cpu_thermal"):
            for file in sensor.glob("temp*_input"):
                label = _text(file.with_name(file.name.replace("_input", "_label"))) or ""
                whole = label.startswith(("Package", "Tctl", "Tdie"))
                (packages if whole else others).append(file)
    return sorted(packages or others)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _numbers(paths: Iterable[Path]) -> list[float]:
    return [float(text) for path in paths if (text := _text(path))]


def main(argv: Sequence[str] | None = None) -> None:
    """Sample this node into a file until the time is up or Ctrl-C, then state the cost."""
    parser = argparse.ArgumentParser(prog="python -m serve.sampler", description=main.__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=math.inf)
    options = parser.parse_args(argv)
    sampler = Sampler(options.file)
    began = time.monotonic()
    try:
        with contextlib.suppress(KeyboardInterrupt), sampler:
            while (left := began + options.seconds - time.monotonic()) > 0:
                time.sleep(min(left, 3600))
    except UserError as error:
        parser.exit(2, f"{error}\n")
    took = time.monotonic() - began
    print(
        f"{sampler.ticks} ticks in {took:.1f} s; {1e3 * sampler.cpu_s / sampler.ticks:.2f} ms of "
        f"CPU a tick, {100 * sampler.cpu_s / took:.3f} % of one core"
    )


if __name__ == "__main__":
    main()
