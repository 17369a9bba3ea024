"""The emulated machine: loads code objects, checks and packs launches, and runs them."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import struct
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from . import core
from .codeobject import CodeObject, Kernel
from .decoder import Program, decode
from .faults import KINDS, EmulatorError, KernelFault

_PAGE = 4096
# The compiler may load past the last argument, up to the segment's alignment.
_KERNARG_SLACK = 64


@dataclass(frozen=True)
class Gfx950:
    """The emulated machine and how it schedules; build it with `gfx950()`."""

    devices: int = 1
    """Identical devices that can read and write each other's memory."""
    seed: int = 0
    """Chooses the schedule and the order in which outstanding memory operations complete."""
    xccs: int = 8
    """Compute dies a device, each with an L2 of its own; workgroups go to them in turn."""
    cus_per_xcc: int = 32
    groups_per_cu: int | None = None
    """Resident workgroups a CU; default: what the kernel's static resources allow."""
    quantum: int = 256
    """Most instructions a wave runs before another one is picked."""
    budget: int = 20_000_000_000
    """Wave-instructions one launch may run before it is called a livelock."""
    lds_races: bool = True
    """Whether unsynchronised LDS accesses by two waves are faults."""
    poison: bool = True
    """Whether uses of never-written registers and memory are faults."""
    threads: int | None = None
    """Host threads, by default one a core this process may use. Results and faults follow from the
    seed (and from where tensors lie in cache lines), not from the number of threads."""

    def __post_init__(self) -> None:
        limits = {"devices": 8, "xccs": 8, "cus_per_xcc": 64, "quantum": 1 << 20}
        for name, most in limits.items():
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"gfx950({name}={getattr(self, name)}): must be 1 to {most}")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"gfx950(threads={self.threads}): must be 1 or more")


def gfx950(**options: Any) -> Gfx950:
    """The machine to emulate: by default one MI355X (8 dies of 32 CUs). See `Gfx950`."""
    return Gfx950(**options)


@dataclass(frozen=True)
class LaunchRecord:
    """What one launch was and what it took on the host; no time here is a device time."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    device: int
    seconds: float
    instructions: int
    """Wave-instructions of all launches that ran together with this one."""


class LoadedModule:
    """A code object loaded at a fixed address, decoded once."""

    def __init__(self, data: bytes) -> None:
        self.code = CodeObject(data)
        self._memory = ctypes.create_string_buffer(self.code.image_size + 2 * _PAGE)
        self.base = -(-ctypes.addressof(self._memory) // _PAGE) * _PAGE
        image = bytes(self.code.image(self.base))
        ctypes.memmove(self.base, image, len(image))
        self.size = len(image)
        self.program: Program = decode(self.code, core.opcodes())
        self.registered = core.Program(self.program.records, self.base)


@dataclass
class _Pending:
    """One launch ready to run, with all that must stay alive until it has."""

    launch: core.Launch
    module: LoadedModule
    kernel: Kernel
    kernarg: Any
    ranges: dict[int, int]


@dataclass
class Emulator:
    """The running machine: what `with emulated(...) as machine` yields."""

    chip: Gfx950
    launches: list[LaunchRecord] = field(default_factory=list)
    """Every launch so far, oldest first."""
    execute: bool = True
    """False: launches are compiled, checked and recorded, but not run."""
    _registered: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    _uncached: set[int] = field(default_factory=set)
    written: dict[int, torch.Tensor] = field(default_factory=dict)
    allocated: dict[int, int] = field(default_factory=dict)
    _device: int = 0
    _together: list[_Pending] | None = None
    call_ranges: dict[int, int] = field(default_factory=dict)
    """Base and size of the storages the current call's arguments lie in."""
    _seen: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    error: BaseException | None = None
    """What went wrong inside a callback, for the outermost Python caller to raise."""

    def register(self, *tensors: torch.Tensor, uncached: bool = False) -> None:
        """Makes tensors accessible whose addresses a kernel reads from memory.

        `uncached` memory is coherent without scopes or fences, as `hipDeviceMallocUncached` gives.

        Tensors passed as launch arguments, and those a 64-bit integer argument points into, are
        registered by themselves for that launch.
        """
        for tensor in tensors:
            storage = storage_of(tensor)
            self._registered[storage.data_ptr()] = storage
            if uncached:
                self._uncached.add(storage.data_ptr())

    def uninitialized(self, *tensors: torch.Tensor) -> None:
        """Marks the tensors' storages as never written: reading them before a write is a fault."""
        self.register(*tensors)
        for tensor in tensors:
            storage = storage_of(tensor)
            self.written[storage.data_ptr()] = torch.zeros(storage.nbytes(), dtype=torch.uint8)

    @contextlib.contextmanager
    def device(self, index: int) -> Iterator[None]:
        """Launches inside go to device `index`."""
        if not 0 <= index < self.chip.devices:
            raise ValueError(f"device {index}: this machine has {self.chip.devices} device(s)")
        before, self._device = self._device, index
        try:
            yield
        finally:
            self._device = before

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Launches inside start when the block ends, all at once (kernels that wait on peers)."""
        if self._together is not None:
            raise EmulatorError("together() cannot be nested")
        self._together = []
        try:
            yield
            pending = self._together
        finally:
            self._together = None
        if pending:
            self._run(pending)

    def launch(
        self,
        module: LoadedModule,
        name: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        *args: torch.Tensor | int,
        dynamic_lds: int = 0,
    ) -> None:
        """Launches kernel `name` of `module` without FlyDSL; a tensor passes its data pointer.

        Raises EmulatorError on a wrong argument count, KernelFault if the kernel misbehaves.
        """
        kernel = module.code.kernels[name]
        explicit = [a for a in kernel.args if not a[".value_kind"].startswith("hidden_")]
        if len(args) != len(explicit):
            raise EmulatorError(f"{name}: got {len(args)} arguments, takes {len(explicit)}")
        self.call_ranges = {}
        cells = []
        for arg in args:
            if isinstance(arg, torch.Tensor):
                storage = storage_of(arg)
                self.call_ranges[storage.data_ptr()] = storage.nbytes()
                arg = arg.data_ptr()
            cells.append(core.u64(arg & 0xFFFFFFFFFFFFFFFF))
        params = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
        self.start(module, kernel, grid, block, dynamic_lds, ctypes.addressof(params), len(cells))

    def _own_ranges(self) -> dict[int, int]:
        """Base and size of all memory that is accessible in every launch."""
        registered = {base: storage.nbytes() for base, storage in self._registered.items()}
        return self.allocated | registered

    def _run(self, pending: list[_Pending]) -> None:
        ranges = self._own_ranges()
        for item in pending:
            ranges |= item.ranges
            ranges[item.module.base] = item.module.size
        table = (core.Range * len(ranges))()
        for entry, (base, size) in zip(table, sorted(ranges.items()), strict=True):
            entry.base, entry.size = base, size
            entry.uncached = base in self._uncached
            if base in self.written:
                entry.written = self.written[base].data_ptr()
        launches = (core.Launch * len(pending))(*(item.launch for item in pending))
        options = core.Options(
            seed=self.chip.seed,
            budget=self.chip.budget,
            quantum=self.chip.quantum,
            devices=self.chip.devices,
            xccs=self.chip.xccs,
            cus_per_xcc=self.chip.cus_per_xcc,
            lds_races=self.chip.lds_races,
            poison=self.chip.poison,
            threads=self.chip.threads or len(os.sched_getaffinity(0)),
        )
        result = core.Result()
        start = time.perf_counter()
        core.load().emu_run(
            launches, len(launches), table, len(table), ctypes.byref(options), ctypes.byref(result)
        )
        seconds = time.perf_counter() - start
        if result.kind:
            _raise(result, pending)
        for item in pending:
            self._record(item, seconds, result.instructions)

    def _record(self, item: _Pending, seconds: float, instructions: int) -> None:
        grid, block = item.launch.grid, item.launch.block
        self.launches.append(
            LaunchRecord(
                item.kernel,
                (grid[0], grid[1], grid[2]),
                (block[0], block[1], block[2]),
                item.launch.device,
                seconds,
                instructions,
            )
        )

    def start(
        self,
        module: LoadedModule,
        kernel: Kernel,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        dynamic_lds: int,
        params: int,
        count: int,
    ) -> None:
        """Starts a launch whose `count` arguments lie where the pointers at `params` say."""
        threads = block[0] * block[1] * block[2]
        if threads > kernel.max_workgroup:
            raise EmulatorError(
                f"{kernel.name}: launched with {threads} threads a workgroup, "
                f"compiled for at most {kernel.max_workgroup}"
            )
        resident = self.chip.groups_per_cu
        if resident is None:
            resident = kernel.residency(threads, dynamic_lds).workgroups_per_cu
        kernarg, address = _pack_kernarg(kernel, grid, block, params, count)
        ranges = dict(self.call_ranges)
        ranges[address] = _KERNARG_SLACK + kernel.kernarg_size
        self._resolve_pointers(kernel, address, ranges)
        accum_offset = 4 * ((kernel.rsrc3 & 0x3F) + 1)
        launch = core.Launch(
            program=module.registered.handle,
            kernarg=address,
            kernarg_size=kernel.kernarg_size,
            entry=module.program.index_of[kernel.entry],
            grid=(core.u32 * 3)(*grid),
            block=(core.u32 * 3)(*block),
            lds=kernel.lds + dynamic_lds,
            scratch=kernel.scratch,
            vgprs=kernel.vgpr,
            agpr_base=accum_offset,
            properties=kernel.properties,
            rsrc1=kernel.rsrc1,
            rsrc2=kernel.rsrc2,
            preload=kernel.kernarg_preload,
            device=self._device,
            groups_per_cu=resident,
        )
        pending = _Pending(launch, module, kernel, kernarg, ranges)
        if not self.execute:
            self._record(pending, 0.0, 0)
        elif self._together is not None:
            self._together.append(pending)
        elif grid[0] * grid[1] * grid[2]:
            self._run([pending])

    def _resolve_pointers(self, kernel: Kernel, address: int, ranges: dict[int, int]) -> None:
        """Registers the live tensors that integer arguments point into (FlyDSL's Int64 idiom)."""
        known = ranges | self._own_ranges()
        missing = []
        for arg in kernel.args:
            if arg[".value_kind"].startswith("hidden_"):
                continue
            for at in range(0, arg[".size"] - 7, 8):
                (value,) = struct.unpack("<Q", ctypes.string_at(address + arg[".offset"] + at, 8))
                if 1 << 20 <= value < 1 << 48 and not any(
                    base <= value < base + size for base, size in known.items()
                ):
                    missing.append(value)
        # Finding all live tensors takes a tenth of a second: first try those found last time.
        for fresh in (False, True):
            if fresh:
                self._seen = [weakref.ref(tensor) for tensor in _live_tensors()]
            for tensor in (reference() for reference in self._seen):
                if tensor is None:
                    continue
                storage = tensor.untyped_storage()
                base, size = storage.data_ptr(), storage.nbytes()
                here = [value for value in missing if base <= value < base + size]
                if here:
                    ranges[base] = size
                    missing = [value for value in missing if value not in here]
            if not missing:
                return


def _raise(result: core.Result, pending: list[_Pending]) -> NoReturn:
    """Raises the fault; `{pc:OFFSET}` marks in the core's message become disassembly."""
    message = result.message.decode()
    for item in pending:
        for pc, index in item.module.program.index_of.items():
            mark = f"{{{pc:#x}}}"
            if mark in message:
                message = message.replace(mark, f"`{item.module.program.text[index]}`")
    kind = KINDS.get(result.kind.decode(), KernelFault)
    raise kind(f"{pending[0].kernel.name}: {message}")


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    if tensor.device.type != "cpu":
        raise EmulatorError(f"the emulator takes CPU tensors, got one on {tensor.device}")
    return tensor.untyped_storage()


def _live_tensors() -> Iterator[torch.Tensor]:
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and thing.device.type == "cpu":
            with contextlib.suppress(RuntimeError, NotImplementedError):
                thing.untyped_storage().data_ptr()
                yield thing


def _pack_kernarg(
    kernel: Kernel, grid: tuple[int, ...], block: tuple[int, ...], params: Any, count: int
) -> tuple[Any, int]:
    """The kernel-argument segment: explicit arguments, then the hidden ones that can be known."""
    memory = ctypes.create_string_buffer(kernel.kernarg_size + _KERNARG_SLACK + 64)
    base = -(-ctypes.addressof(memory) // 64) * 64
    pointers: Any = (ctypes.c_void_p * count).from_address(params) if count else ()
    explicit = 0
    for arg in kernel.args:
        kind, at = arg[".value_kind"], base + arg[".offset"]
        if not kind.startswith("hidden_"):
            ctypes.memmove(at, pointers[explicit], arg[".size"])
            explicit += 1
        elif kind.startswith("hidden_block_count_"):
            core.u32.from_address(at).value = grid["xyz".index(kind[-1])]
        elif kind.startswith("hidden_group_size_"):
            ctypes.c_uint16.from_address(at).value = block["xyz".index(kind[-1])]
        elif kind == "hidden_grid_dims":
            ctypes.c_uint16.from_address(at).value = 3 - (grid[2] == 1) - (grid[1] == grid[2] == 1)
    return memory, base
