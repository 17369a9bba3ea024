"""The node sampler's file, ``samples.csv``, and what its samples prove about a measurement.

Nothing here touches the node: a file recorded on any machine is judged on any other.
"""

from __future__ import annotations

import bisect
import csv
import dataclasses
import io
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

from samenode.errors import UserError
from serve.gpu import COUNTED

MAX_GAP_S = 3.0
"""A device unseen for longer than this makes the measurement invalid."""

MAX_THROTTLED = 0.01
"""The share of a window that throttling may take. The hardest slowdown halves a clock, so 1 % of
the time bends a mean by 0.5 % at most: below every effect that a campaign can call real."""

MAX_STEAL = 0.02
"""The share of the CPU time wanted (busy + stolen) that a hypervisor may withhold. A server that
keeps its CPUs busy loses that share of its throughput, and 2 % is the effect campaigns look for."""

NOT_THROTTLING = {
    "idle": "nothing ran, so nothing was slowed",
    "app_clocks": "a clock chosen by the user: a setting of the node, the same for every arm",
    "display_clocks": "a clock chosen for a display: a setting of the node",
    "sync_boost": "GPUs of a group keep one clock: a setting of the node",
    "reliability": "the top of the voltage curve: where an unlimited GPU runs",
    "power_cap": "a GPU that works hard runs at its power limit: its normal state under load",
    "board_limit": "the same, for the board",
}
"""Reasons for a lower clock that do not make a measurement invalid; every other one, known or not,
is throttling.

Why a power cap is not: the limit is a setting, the same for both arms (a change of it is caught as
``power-limit-changed``, a cut from outside shows as ``power_brake``), and how fast an arm is within
that power belongs to the arm. To drop such rows would drop the loaded points, and most of all those
of the arm that keeps the GPU busier. ``power_cap_pct`` keeps the share for the reader."""


@dataclass(frozen=True)
class Sample:
    """One device at one moment: a row of samples.csv. An empty cell: the device does not say.

    Percentages of time are over the time since the device's row before.
    """

    t_ns: int
    """Unix time, ns."""
    device: str
    """``cpu``, or ``gpu0``, ``gpu1``, … as its tool counts; just ``gpu`` when none can be read."""
    clock_mhz: float | None = None
    """GPU: SM/GFX clock (AMD: mean over the XCDs). CPU: mean current clock of up to 16 CPUs."""
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    """A counter that only grows: its differences count."""
    util_pct: float | None = None
    """GPU: share of time with a kernel running. CPU: share of all CPU time that was busy."""
    temperature_c: float | None = None
    throttle: str | None = None
    """Reasons that held the clocks down, joined by ``|``; ``none``; empty: not known."""
    throttle_pct: float | None = None
    """Share of time that throttling held the clocks down, by the device's own counters."""
    power_cap_pct: float | None = None
    """Share of time at the power limit, by the device's own counters."""
    steal_pct: float | None = None
    """CPU: share of all CPU time that a hypervisor gave to others."""
    load_1m: float | None = None
    """CPU: the kernel's load average over a minute."""
    memory_used_mib: float | None = None
    """GPU: its memory in use."""
    memory_available_mib: float | None = None
    """CPU: host memory that programs could still get."""
    disk_free_mib: float | None = None
    """CPU: on the file system of samples.csv."""
    processes: str | None = None
    """GPU: those with memory on it, joined by ``|``: ``pid:name``, and ``pid:name:own`` for the
    server's; ``none``; empty: not known."""
    sampler_cpu_ms: float | None = None
    """CPU: CPU time that the sampler has used so far."""
    error: str | None = None
    """Why the device could not be read; the other cells are then empty."""


COLUMNS = tuple(field.name for field in dataclasses.fields(Sample))
_TYPES = get_type_hints(Sample)


@dataclass(frozen=True)
class Process:
    """A process with memory on a GPU. ``own``: it is the server's."""

    pid: int
    name: str
    own: bool


# ---- the file


def encode_header() -> bytes:
    """The first line of a samples.csv."""
    return _csv([COLUMNS])


def encode(samples: Iterable[Sample]) -> bytes:
    """Lines of a samples.csv: numbers to three decimals, texts on one line."""
    return _csv([_cell(getattr(sample, name)) for name in COLUMNS] for sample in samples)


def _cell(value: str | float | None) -> str | float:
    if value is None:
        return ""
    return " ".join(value.split()) if isinstance(value, str) else round(value, 3)


def encode_processes(processes: Iterable[Process]) -> str:
    """The ``processes`` cell: by pid, without the characters that part the names."""
    ordered = sorted(processes, key=lambda process: process.pid)
    entries = (
        f"{p.pid}:{p.name.translate({ord('|'): '_', ord(':'): '_'})}{':own' if p.own else ''}"
        for p in ordered
    )
    return "|".join(entries) or "none"


def decode_processes(cell: str | None) -> list[Process]:
    """The processes of a ``processes`` cell; none of an empty one. Raises ValueError."""
    processes = []
    for entry in (cell or "none").split("|"):
        if entry != "none":
            pid, name, *own = entry.split(":")
            processes.append(Process(int(pid), name, own == ["own"]))
    return processes


def read_samples(path: Path) -> list[Sample]:
    """The samples of a samples.csv, in the file's order. A half last line is left out.

    Raises:
        UserError: there is no such file, it has other columns, or a line is not a sample.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8, so not a samples.csv") from error
    reader = csv.reader(io.StringIO(text[: text.rfind("\n") + 1], newline=""))
    if tuple(next(reader, ())) != COLUMNS:
        raise UserError(f"{path}:1: not the columns of a samples.csv of this version of samenode")
    samples = []
    for row in reader:
        try:
            samples.append(_decode(row))
        except ValueError as error:
            raise UserError(f"{path}:{reader.line_num}: not a sample: {error}") from error
    return samples


def _csv(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _decode(row: Sequence[str]) -> Sample:
    if len(row) != len(COLUMNS):
        raise ValueError(f"{len(row)} cells where {len(COLUMNS)} belong")
    values: dict[str, Any] = {}
    for name, cell in zip(COLUMNS, row, strict=True):
        values[name] = (float(cell) if _TYPES[name] == (float | None) else cell) if cell else None
        if isinstance(values[name], float) and not math.isfinite(values[name]):
            raise ValueError(f"{name} is {cell}")
    sample = Sample(**{**values, "t_ns": int(row[0])})
    decode_processes(sample.processes)
    return sample


# ---- what the samples prove


def judge(
    samples: Sequence[Sample],
    window_start_ns: int,
    window_end_ns: int,
    own_pids: Collection[int] = (),
) -> list[dict[str, str]]:
    """What in a window makes a measurement invalid, as ``{"rule", "detail"}``; empty: nothing.

    ``sampler-gap``: a device went unseen for more than 3 s of the window.
    ``telemetry-missing``: a GPU, its throttle reasons or its processes cannot be read; what is not
    known is not clean. ``throttled``: for more than 1 % of the window; `NOT_THROTTLING` says what
    does not count. ``power-limit-changed``: within the window. ``cpu-steal``: above 2 % of the CPU
    time wanted. ``foreign-process``: a process that is not the server's had memory on a GPU. A
    CPU's own throttling is only known where the kernel counts it (Intel).

    Args:
        samples: of one run of the sampler, as `read_samples` gives them.
        window_start_ns: Unix time of the measurement's start, ns.
        window_end_ns: Unix time of its end, ns.
        own_pids: processes of the server beside those that the sampler marked as such.

    Raises:
        ValueError: the window ends before it starts.
    """
    if window_end_ns <= window_start_ns:
        raise ValueError("the window ends before it starts")
    if not samples:
        return [{"rule": "sampler-gap", "detail": "the sampler wrote nothing"}]
    findings: dict[tuple[str, str], list[str]] = defaultdict(list)
    listed, own_seen = [], False
    for device, rows in sorted(_by_device(samples).items()):
        window = _Window(rows, window_start_ns, window_end_ns)
        if not window.readable:
            findings["telemetry-missing", rows[-1].error or "not read"].append(device)
            continue
        told = [*window.gaps(), *window.throttling(), *window.steal()]
        if device != "cpu":
            own, others = window.processes(own_pids)
            own_seen |= bool(own)
            listed.append(device)
            told += [*window.power_limits(), *window.unlisted(), *_foreign(others)]
        for finding in told:
            findings[finding].append(device)
    if listed and not own_seen:
        text = (
            "the server is not in the list of the GPU's processes, so the list rules out no other; "
            "run in the host's pid namespace (docker: --pid=host)"
        )
        findings["telemetry-missing", text] += listed
    return [
        {"rule": rule, "detail": f"{', '.join(devices)}: {text}"}
        for (rule, text), devices in findings.items()
    ]


def mean_power_w(
    samples: Sequence[Sample], window_start_ns: int, window_end_ns: int
) -> float | None:
    """Mean power of the server's GPUs together over a window, W; None where it is not known.

    The server's are the GPUs on which the sampler met processes of its own; all that were sampled
    where it met none. From the GPUs' energy counters, interpolated to the window's ends; from the
    power samples, each weighted with the time it looks back on, where a GPU has no such counter.
    """
    windows = [
        _Window(rows, window_start_ns, window_end_ns)
        for device, rows in _by_device(samples).items()
        if device != "cpu"
    ]
    used = [window for window in windows if window.processes(())[0]] or windows
    powers = [window.mean_power_w() for window in used]
    known = [power for power in powers if power is not None]
    return sum(known) if known and len(known) == len(powers) else None


def _by_device(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    rows = defaultdict(list)
    for sample in samples:
        rows[sample.device].append(sample)
    return rows


class _Window:
    """One device's samples, seen through a window of time."""

    def __init__(self, rows: Sequence[Sample], start_ns: int, end_ns: int) -> None:
        self._rows, self._start, self._end = rows, start_ns, end_ns
        self.readable = [s for s in rows if s.error is None]
        self._inside = [s for s in self.readable if start_ns <= s.t_ns <= end_ns]

    def _spans(self) -> Iterator[tuple[Sample, float]]:
        """Each sample that looks back on a part of the window, and how long that part is, s."""
        for before, sample in pairwise(self.readable):
            span = min(sample.t_ns, self._end) - max(before.t_ns, self._start)
            if span > 0:
                yield sample, span / 1e9

    def gaps(self) -> Iterator[tuple[str, str]]:
        if any(b.t_ns < a.t_ns for a, b in pairwise(self.readable)):
            yield "sampler-gap", "the clock went back while sampling"
            return
        seen = [self._start, *(s.t_ns for s in self._inside), self._end]
        gap, at = max((b - a, a) for a, b in pairwise(seen))
        if gap > MAX_GAP_S * 1e9 or not self._inside:
            why = sorted({s.error for s in self._rows if s.error and at <= s.t_ns <= at + gap})
            yield (
                "sampler-gap",
                f"no sample for {gap / 1e9:.1f} s, {(at - self._start) / 1e9:.0f} s into the window"
                + (f" ({', '.join(why)})" if why else ""),
            )

    def throttling(self) -> Iterator[tuple[str, str]]:
        seen = [s for s in self._inside if s.throttle is not None]
        if not seen and self._inside and self._inside[0].device != "cpu":
            yield (
                "telemetry-missing",
                "throttle reasons are not known; on ROCm, pip install /opt/rocm/share/amd_smi",
            )
        spans = list(self._spans())
        counted = bool(spans) and all(s.throttle_pct is not None for s, _ in spans)
        if counted:
            time_s = sum(span for _, span in spans)
            share = sum((s.throttle_pct or 0.0) * span for s, span in spans) / time_s
            if share > 100 * MAX_THROTTLED:
                reasons = set().union(*(_throttling(s) for s, _ in spans))
                yield "throttled", f"{share:.1f} % of the window ({', '.join(sorted(reasons))})"
                return
        # What no counter tells is judged from the samples that met it.
        met = [reasons for s in seen if (reasons := _uncounted(s) if counted else _throttling(s))]
        # Drivers set hw_slowdown for an instant when a clock changes its state, so one sample of
        # it proves nothing.
        if met and met != [{"hw_slowdown"}] and len(met) > MAX_THROTTLED * len(seen):
            reasons = set().union(*met)
            yield (
                "throttled",
                f"{len(met)} of {len(seen)} samples ({', '.join(sorted(reasons))})",
            )

    def steal(self) -> Iterator[tuple[str, str]]:
        spans = [(s, span) for s, span in self._spans() if s.steal_pct is not None]
        stolen = sum((s.steal_pct or 0.0) * span for s, span in spans)
        wanted = stolen + sum((s.util_pct or 0.0) * span for s, span in spans)
        if wanted and stolen / wanted > MAX_STEAL:
            share = f"{100 * stolen / wanted:.1f} %"
            yield "cpu-steal", f"the hypervisor withheld {share} of the CPU time wanted"

    def power_limits(self) -> Iterator[tuple[str, str]]:
        limits = sorted({s.power_limit_w for s in self._inside if s.power_limit_w is not None})
        if len(limits) > 1:
            yield "power-limit-changed", f"between {limits[0]:.0f} and {limits[-1]:.0f} W"

    def unlisted(self) -> Iterator[tuple[str, str]]:
        if any(s.processes is None for s in self._inside):
            yield "telemetry-missing", "the GPU's processes cannot be listed"

    def processes(self, own_pids: Collection[int]) -> tuple[set[int], dict[int, str]]:
        """The server's processes met on the GPU, and the others: pid → name."""
        own, others = set(), {}
        for sample in self._inside:
            for process in decode_processes(sample.processes):
                if process.own or process.pid in own_pids:
                    own.add(process.pid)
                else:
                    others[process.pid] = process.name
        return own, {pid: name for pid, name in others.items() if pid not in own}

    def mean_power_w(self) -> float | None:
        counted = [(s.t_ns, s.energy_j) for s in self.readable if s.energy_j is not None]
        if len(counted) > 1 and len(counted) == len(self.readable):
            first, last = counted[0][0], counted[-1][0]
            start, end = (min(max(t, first), last) for t in (self._start, self._end))
            if end > start:
                return (_at(counted, end) - _at(counted, start)) / ((end - start) / 1e9)
        spans = [(s.power_w, span) for s, span in self._spans() if s.power_w is not None]
        time_s = sum(span for _, span in spans)
        return sum(power * span for power, span in spans) / time_s if time_s else None


def _foreign(others: dict[int, str]) -> Iterator[tuple[str, str]]:
    if others:
        named = ", ".join(f"pid {pid} ({name})" for pid, name in sorted(others.items()))
        yield "foreign-process", f"{named}: not the server's"


def _throttling(sample: Sample) -> set[str]:
    """The sample's reasons that are throttling."""
    return {*(sample.throttle or "none").split("|")} - {"none"} - NOT_THROTTLING.keys()


def _uncounted(sample: Sample) -> set[str]:
    """The sample's throttling that no counter of the device tells of."""
    reasons = _throttling(sample)
    # NVML sets hw_slowdown beside the reason for it.
    explained = {"hw_slowdown"} if reasons & {"hw_thermal", "power_brake"} else set()
    return reasons - COUNTED - {"thermal"} - explained


def _at(points: Sequence[tuple[int, float]], t_ns: int) -> float:
    """The value at a time within the points' own, on the line between its neighbours."""
    right = max(1, bisect.bisect_left(points, t_ns, key=lambda point: point[0]))
    (t0, v0), (t1, v1) = points[right - 1], points[right]
    return v0 + (v1 - v0) * (t_ns - t0) / (t1 - t0)
