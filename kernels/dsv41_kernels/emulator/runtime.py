"""Stands in for the HIP runtime under FlyDSL: launches run in the emulator, on CPU tensors.

Only the library that FlyDSL's host code calls to load and launch code objects is replaced.
Tracing, the MLIR pipeline, AMDGPU code generation and argument packing are FlyDSL's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from . import core
from .build import cache_dir
from .codeobject import CodeObject
from .faults import EmulatorError, MissingToolError
from .machine import Emulator, Gfx950, LoadedModule, storage_of

_current: Emulator | None = None
_objects: dict[int, Any] = {}
_functions: dict[tuple[int, str], int] = {}
_keepalive: list[Any] = []


def current() -> Emulator | None:
    """The machine of the enclosing `with emulated(...)`, if any."""
    return _current


def _active() -> Emulator:
    if _current is None:
        raise EmulatorError(
            "a kernel compiled under emulated() was launched outside it; "
            "use a fresh process for a real device"
        )
    return _current


def _capture(error: BaseException) -> None:
    """Host code cannot unwind a Python exception: keep the first one for the caller to raise."""
    if _current is not None and _current.error is None:
        _current.error = error


def _on_load(data: int, size: int) -> int:
    try:
        module = LoadedModule(ctypes.string_at(data, size or _elf_size(data)))
    except BaseException as error:
        _capture(error)
        return 0
    _objects[id(module)] = module
    return id(module)


def _elf_size(address: int) -> int:
    header = ctypes.string_at(address, 64)
    (sections,) = struct.unpack_from("<Q", header, 40)
    entry, count = struct.unpack_from("<HH", header, 58)
    return int(sections + entry * count)


def _on_function(module: int, name: bytes) -> int:
    key = (module, name.decode())
    if key not in _functions:
        try:
            owner = _objects[module]
            pair = (owner, owner.code.kernels[key[1]])
        except BaseException as error:
            _capture(error)
            return 0
        _objects[id(pair)] = pair
        _functions[key] = id(pair)
    return _functions[key]


def _on_launch(function: int, grid: Any, block: Any, lds: int, params: int, count: int) -> None:
    try:
        module, kernel = _objects[function]
        _active().start(module, kernel, tuple(grid[:3]), tuple(block[:3]), lds, params, count)
    except BaseException as error:
        _capture(error)


def _on_occupancy(data: int, name: bytes, threads: int, lds: int) -> int:
    try:
        code = CodeObject(ctypes.string_at(data, _elf_size(data)))
        return code.kernels[name.decode()].residency(threads, lds).workgroups_per_cu
    except BaseException as error:
        _capture(error)
        return 0


def _on_allocated(address: int, size: int) -> None:
    if _current is None:
        return
    if size:
        _current.allocated[address] = size
        _current.written[address] = torch.zeros(size, dtype=torch.uint8)
    else:
        _current.allocated.pop(address, None)
        _current.written.pop(address, None)


def _install_callbacks() -> None:
    if _keepalive:
        return
    longs = ctypes.POINTER(ctypes.c_int64)
    pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    callbacks = (
        ctypes.CFUNCTYPE(pointer, pointer, size)(_on_load),
        ctypes.CFUNCTYPE(pointer, pointer, text)(_on_function),
        ctypes.CFUNCTYPE(None, pointer, longs, longs, ctypes.c_int32, pointer, size)(_on_launch),
        ctypes.CFUNCTYPE(ctypes.c_int, pointer, text, ctypes.c_int, size)(_on_occupancy),
        ctypes.CFUNCTYPE(None, pointer, size)(_on_allocated),
    )
    core.load().emu_set_callbacks(*callbacks)
    _keepalive.append(callbacks)


def toolchain() -> Path:
    """A folder laid out like ROCm's with what FlyDSL needs of it: `ld.lld` and the bitcode.

    Raises MissingToolError if lld-22 is not installed. The bitcode (needed only by kernels that
    call the device library) comes from the `triton` package, if installed.
    """
    import importlib.util

    lld = shutil.which("ld.lld-22")
    if not lld:
        raise MissingToolError("ld.lld-22 is not installed; run: apt-get install lld-22")
    root = cache_dir() / "rocm"
    wanted = {root / "llvm" / "bin" / "ld.lld": Path(lld)}
    triton = importlib.util.find_spec("triton")
    if triton and triton.submodule_search_locations:
        bitcode = Path(triton.submodule_search_locations[0], "backends", "amd", "lib")
        for name in ("ockl.bc", "ocml.bc"):
            if (bitcode / name).exists():
                wanted[root / "amdgcn" / "bitcode" / name] = bitcode / name
    for link, target in wanted.items():
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink() or link.readlink() != target:
            temporary = link.with_name(f".{link.name}.{os.getpid()}")
            temporary.symlink_to(target)
            os.replace(temporary, link)
    return root


@contextlib.contextmanager
def gfx950_environment() -> Iterator[None]:
    """Environment under which FlyDSL compiles for gfx950 on this machine."""
    values = {"ARCH": "gfx950", "FLYDSL_GPU_ARCH": "gfx950", "ROCM_PATH": str(toolchain())}
    if "FLYDSL_RUNTIME_ENABLE_CACHE" not in os.environ:
        values["FLYDSL_RUNTIME_ENABLE_CACHE"] = "0"
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _argument_ranges(values: Any, found: dict[int, int]) -> None:
    """Storages of every tensor among launch arguments, however they are wrapped."""
    for value in values:
        tensor = getattr(value, "torch_tensor", value)
        if isinstance(tensor, torch.Tensor):
            storage = storage_of(tensor)
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, list | tuple):
            _argument_ranges(value, found)
        elif hasattr(value, "__dict__"):
            nested = [v for v in vars(value).values() if isinstance(v, torch.Tensor)]
            _argument_ranges(nested, found)


@contextlib.contextmanager
def emulated(chip: Gfx950 | None = None) -> Iterator[Emulator]:
    """Runs every FlyDSL launch in the block on an emulated gfx950, CPU tensors in and out.

    Raises MissingToolError if FlyDSL, LLVM 22 or g++ is missing; a launch that misbehaves raises
    the matching `KernelFault`.
    """
    global _current
    try:
        import flydsl
        import flydsl.compiler.jit_executor as executor
        import flydsl.compiler.jit_function as function
    except ImportError as error:
        raise MissingToolError("FlyDSL is not installed; run: pip install flydsl") from error
    if _current is not None:
        raise EmulatorError("emulated() cannot be nested")
    _install_callbacks()
    runner = Path(flydsl.__file__).parent / "_mlir" / "_mlir_libs" / "libmlir_c_runner_utils.so"
    machine = Emulator(chip or Gfx950())
    call = executor.CallState.__call__

    def checked_call(state: Any, args: tuple[Any, ...]) -> Any:
        machine.call_ranges = {}
        machine.error = None
        _argument_ranges(args, machine.call_ranges)
        result = call(state, args)
        if machine.error is not None:
            error, machine.error = machine.error, None
            raise error
        return result

    patches = [
        (executor, "_resolve_runtime_libs", lambda: [core.load()._name, str(runner)]),
        (executor.CallState, "__call__", checked_call),
        # CPU tensors are real buffers here, not stand-ins to compile with.
        (function, "_is_compile_placeholder", lambda *args, **options: False),
    ]
    saved = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    with gfx950_environment():
        for owner, name, value in patches:
            setattr(owner, name, value)
        _current = machine
        try:
            yield machine
        finally:
            _current = None
            for owner, name, value in saved:
                setattr(owner, name, value)
