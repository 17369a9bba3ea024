"""Loads, stores and atomics of every width and address space, and LDS, against numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from assemble import assemble
from dsv41_kernels.emulator import Emulator, gfx950
from oracle import BF16, F16, F32, F64, I32, I64, U32, U64, words

LANES = 64

# s[4:5] source, s[6:7] destination, v1 = 4 * lane, v2 = 16 * lane.
PROLOGUE = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_lshlrev_b32_e32 v1, 2, v0
v_lshlrev_b32_e32 v2, 4, v0
s_waitcnt lgkmcnt(0)
"""
# A raw buffer descriptor over the source in s[12:15], over the destination in s[16:19].
BUFFERS = """
s_mov_b64 s[12:13], s[4:5]
s_mov_b32 s14, {size}
s_mov_b32 s15, 0x27000
s_mov_b64 s[16:17], s[6:7]
s_mov_b32 s18, {size}
s_mov_b32 s19, 0x27000
"""
STORE4 = "global_store_dwordx4 v2, v[20:23], s[6:7]\n"


def run(
    body: str,
    source: np.ndarray,
    out: np.ndarray,
    lds: int = 0,
    scratch: int = 0,
    waves: int = 1,
    seed: int = 0,
) -> np.ndarray:
    """Runs one workgroup; returns the destination as u32."""
    a = torch.from_numpy(np.ascontiguousarray(source).view(I32).copy())
    b = torch.from_numpy(np.ascontiguousarray(out).view(I32).copy())
    module = assemble(PROLOGUE + body + "s_endpgm\n", lds=lds, scratch=scratch)
    Emulator(gfx950(seed=seed)).launch(module, "kernel", (1, 1, 1), (LANES * waves, 1, 1), a, b)
    return b.numpy().view(U32)


SOURCE = words(LANES * 8, 11)
BYTES = SOURCE.view(np.uint8)
OLD = 0x11223344


def loaded(name: str, address: np.ndarray) -> np.ndarray:
    """What a load leaves in its four registers, of which the rest keep OLD."""
    rows = np.full((len(address), 4), OLD, dtype=U32)
    kind = name.split("_load_")[-1] if "_load_" in name else name.removeprefix("ds_read_")
    kind = {"u8": "ubyte", "i8": "sbyte", "u16": "ushort", "i16": "sshort"}.get(kind, kind)
    for k, at in enumerate(address):
        half = np.frombuffer(BYTES[at : at + 2].tobytes(), np.uint16)[0]
        byte = int(BYTES[at])
        signed = byte - 256 if byte > 127 else byte
        if kind.startswith("dword") or kind.startswith("b"):
            count = {"b32": 1, "b64": 2, "b96": 3, "b128": 4}.get(kind) or int(kind[6:] or 1)
            rows[k, :count] = np.frombuffer(BYTES[at : at + 4 * count].tobytes(), U32)
        elif kind in ("ubyte", "sbyte"):
            rows[k, 0] = (byte if kind[0] == "u" else signed) & 0xFFFFFFFF
        elif kind in ("ushort", "sshort"):
            rows[k, 0] = int(half if kind[0] == "u" else half.view(np.int16)) & 0xFFFFFFFF
        else:  # d16: one half of the register
            if kind.startswith(("sbyte", "i8")):
                value = signed & 0xFFFF
            else:
                value = byte if kind.startswith(("ubyte", "u8")) else int(half)
            high = kind.endswith("_hi")
            rows[k, 0] = (
                (OLD & 0xFFFF | value << 16) if high else (OLD & 0xFFFF0000 | value & 0xFFFF)
            )
    return rows


INIT = "".join(f"v_mov_b32_e32 v{20 + k}, {OLD:#x}\n" for k in range(4))
WIDTHS = ["dword", "dwordx2", "dwordx3", "dwordx4", "ubyte", "sbyte", "ushort", "sshort"]
D16 = [f"{k}_d16{h}" for k in ("short", "ubyte", "sbyte") for h in ("", "_hi")]
REGISTERS = {"dwordx2": "v[20:21]", "dwordx3": "v[20:22]", "dwordx4": "v[20:23]"}
SPACES = {
    "global": ("{op} {reg}, v2, s[4:5] offset:8", 8),
    "global_wide": ("{op} {reg}, v[30:31], off offset:4", 4),
    "flat": ("{op} {reg}, v[30:31] offset:4", 4),
    "buffer": ("{op} {reg}, v2, s[12:15], 0 offen offset:12", 12),
    "buffer_soffset": ("{op} {reg}, v2, s[12:15], s20 offen", 16),
}
ADDRESS64 = """
v_mov_b32_e32 v31, s5
v_add_co_u32_e32 v30, vcc, s4, v2
v_addc_co_u32_e32 v31, vcc, 0, v31, vcc
s_mov_b32 s20, 16
"""
WAIT = "s_waitcnt vmcnt(0) lgkmcnt(0)\n"


@pytest.mark.parametrize("kind", WIDTHS + D16)
@pytest.mark.parametrize("space", SPACES)
def test_load(space: str, kind: str) -> None:
    template, offset = SPACES[space]
    op = f"{space.split('_')[0]}_load_{kind}"
    text = template.format(op=op, reg=REGISTERS.get(kind, "v20"))
    body = BUFFERS.format(size=SOURCE.nbytes) + ADDRESS64 + INIT + text + "\n" + WAIT + STORE4
    got = run(body, SOURCE, np.zeros((LANES, 4), U32))
    assert np.array_equal(got, loaded(op, 16 * np.arange(LANES) + offset))


STORES = {
    "byte": (1, 0),
    "byte_d16_hi": (1, 16),
    "short": (2, 0),
    "short_d16_hi": (2, 16),
    "dword": (4, 0),
    "dwordx2": (8, 0),
    "dwordx3": (12, 0),
    "dwordx4": (16, 0),
}
STORE_SPACES = {
    "global": "{op} v2, {reg}, s[6:7] offset:4",
    "flat": "{op} v[30:31], {reg} offset:4",
    "buffer": "{op} {reg}, v2, s[16:19], 0 offen offset:4",
}


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("space", STORE_SPACES)
def test_store(space: str, kind: str) -> None:
    size, shift = STORES[kind]
    text = STORE_SPACES[space].format(op=f"{space}_store_{kind}", reg=REGISTERS.get(kind, "v20"))
    to_dest = ADDRESS64.replace("s5", "s7").replace("s4", "s6")
    body = BUFFERS.format(size=LANES * 32) + to_dest
    body += f"global_load_dwordx4 v[20:23], v2, s[4:5]\n{WAIT}{text}\n"
    got = run(body, SOURCE, np.zeros(LANES * 8, U32)).view(np.uint8)
    want = np.zeros(LANES * 32, np.uint8)
    for lane in range(LANES):
        data = SOURCE.reshape(-1, 4)[lane].copy()
        data[0] >>= shift
        want[16 * lane + 4 : 16 * lane + 4 + size] = data.view(np.uint8)[:size]
    # The dwordx4 stores overlap: each lane's last dword is under the next lane's first.
    got, want = got.reshape(-1, 16), want.reshape(-1, 16)
    if size == 16:
        got, want = got[1:LANES, 4:], want[1:LANES, 4:]
    assert np.array_equal(got, want)


def test_buffer_range_check() -> None:
    """Out-of-range loads give 0 dword by dword; out-of-range stores do nothing."""
    body = BUFFERS.format(size=40) + INIT
    body += f"buffer_load_dwordx4 v[20:23], v2, s[12:15], 0 offen\n{WAIT}{STORE4}"
    got = run(body, SOURCE, np.zeros((LANES, 4), U32))
    want = SOURCE[: LANES * 4].reshape(LANES, 4).copy()
    want.ravel()[10:] = 0
    assert np.array_equal(got, want)
    body = (
        BUFFERS.format(size=40)
        + "v_mov_b32_e32 v20, 7\nbuffer_store_dword v20, v1, s[16:19], 0 offen\n"
    )
    got = run(body, SOURCE, np.zeros(LANES, U32))
    assert list(got) == [7] * 10 + [0] * 54


def test_structured_buffer() -> None:
    body = BUFFERS.format(size=5).replace(
        "s_mov_b64 s[12:13], s[4:5]", "s_mov_b32 s12, s4\ns_or_b32 s13, s5, 0x140000"
    )
    body += f"{INIT}buffer_load_dword v20, v0, s[12:15], 0 idxen offset:4\n{WAIT}{STORE4}"
    got = run(body, SOURCE, np.zeros((LANES, 4), U32))[:, 0]
    want = [SOURCE[(20 * k + 4) // 4] if k < 5 else 0 for k in range(LANES)]
    assert list(got) == want


@pytest.mark.parametrize("kind", WIDTHS + D16)
def test_scratch(kind: str) -> None:
    """Stores bytes of the source to scratch lane by lane and loads them back."""
    reg = REGISTERS.get(kind, "v20")
    body = f"""
global_load_dwordx4 v[24:27], v2, s[4:5]
{WAIT}
s_mov_b32 s20, 16
scratch_store_dwordx4 off, v[24:27], s20 offset:4
v_mov_b32_e32 v3, 20
{INIT}
scratch_load_{kind} {reg}, v3, off
{WAIT}{STORE4}"""
    got = run(body, SOURCE, np.zeros((LANES, 4), U32), scratch=64)
    assert np.array_equal(got, loaded(f"scratch_load_{kind}", 16 * np.arange(LANES)))


@pytest.mark.parametrize(
    "kind", ["byte", "byte_d16_hi", "short", "short_d16_hi", "dword", "dwordx2", "dwordx3"]
)
def test_scratch_store(kind: str) -> None:
    size, shift = STORES[kind]
    data = {"dwordx2": "v[24:25]", "dwordx3": "v[24:26]"}.get(kind, "v24")
    body = f"""
global_load_dwordx4 v[24:27], v2, s[4:5]
{INIT}{WAIT}
scratch_store_dwordx4 off, v[20:23], off
scratch_store_{kind} off, {data}, off offset:4
scratch_load_dwordx4 v[20:23], off, off
{WAIT}{STORE4}"""
    got = run(body, SOURCE, np.zeros((LANES, 4), U32), scratch=64)
    want = np.full((LANES, 4), OLD, U32)
    data = SOURCE[: LANES * 4].reshape(LANES, 4).copy()
    data[:, 0] >>= shift
    want.view(np.uint8)[:, 4 : 4 + size] = data.view(np.uint8)[:, :size]
    assert np.array_equal(got, want)


SCALAR_WIDTHS = {"dword": 1, "dwordx2": 2, "dwordx4": 4, "dwordx8": 8, "dwordx16": 16}


@pytest.mark.parametrize("kind", SCALAR_WIDTHS)
@pytest.mark.parametrize("buffer", [False, True])
def test_scalar_load(kind: str, buffer: bool) -> None:
    count = SCALAR_WIDTHS[kind]
    base, op = ("s[12:15]", "s_buffer_load") if buffer else ("s[4:5]", "s_load")
    regs = "s40" if count == 1 else f"s[40:{39 + count}]"
    body = (
        BUFFERS.format(size=SOURCE.nbytes)
        + f"s_mov_b32 s20, 32\n{op}_{kind} {regs}, {base}, s20 offset:0x8\n{WAIT}"
    )
    for k in range(count):
        body += (
            f"v_mov_b32_e32 v20, s{40 + k}\nglobal_store_dword v1, v20, s[6:7] offset:{256 * k}\n"
        )
    got = run(body, SOURCE, np.zeros((16, LANES), U32))
    for k in range(count):
        assert (got[k] == SOURCE[10 + k]).all()


def test_scalar_buffer_load_is_clipped() -> None:
    body = BUFFERS.format(size=12) + f"s_buffer_load_dwordx4 s[40:43], s[12:15], 0x4\n{WAIT}"
    for k in range(4):
        body += f"v_mov_b32_e32 v{20 + k}, s{40 + k}\n"
    got = run(body + STORE4, SOURCE, np.zeros((LANES, 4), U32))
    assert list(got[0]) == [SOURCE[1], SOURCE[2], 0, 0]


# ---- Atomics -------------------------------------------------------------------------------------

Rmw = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
INTEGER: dict[str, Rmw] = {
    "add": lambda o, v, c: o + v,
    "sub": lambda o, v, c: o - v,
    "umin": lambda o, v, c: np.minimum(o, v),
    "umax": lambda o, v, c: np.maximum(o, v),
    "and": lambda o, v, c: o & v,
    "or": lambda o, v, c: o | v,
    "xor": lambda o, v, c: o ^ v,
    "swap": lambda o, v, c: v,
    "cmpswap": lambda o, v, c: np.where(o == c, v, o),
    "inc": lambda o, v, c: np.where(o >= v, 0, o + 1),
    "dec": lambda o, v, c: np.where((o == 0) | (o > v), v, o - 1),
    "smin": lambda o, v, c: signed_pick(np.minimum, o, v),
    "smax": lambda o, v, c: signed_pick(np.maximum, o, v),
}


def signed_pick(f: Callable, o: np.ndarray, v: np.ndarray) -> np.ndarray:
    kind = I64 if o.dtype == U64 else I32
    return f(o.view(kind), v.view(kind)).view(o.dtype)


def packed_add(kind: type) -> Rmw:
    def add(o: np.ndarray, v: np.ndarray, c: np.ndarray) -> np.ndarray:
        x, y = (np.ascontiguousarray(z).view(kind).astype(F32) for z in (o, v))
        return (x + y).astype(kind).view(U32)

    return add


def as_float(kind: type, f: Callable) -> Rmw:
    return lambda o, v, c: f(o.view(kind), v.view(kind)).view(o.dtype)


ATOMICS: dict[str, tuple[Rmw, type]] = {name: (f, U32) for name, f in INTEGER.items()}
ATOMICS |= {f"{name}_x2": (f, U64) for name, f in INTEGER.items()}
ATOMICS |= {
    "add_f32": (as_float(F32, np.add), U32),
    "pk_add_f16": (packed_add(F16), U32),
    "pk_add_bf16": (packed_add(BF16), U32),
    "add_f64": (as_float(F64, np.add), U64),
    "min_f64": (as_float(F64, np.fmin), U64),
    "max_f64": (as_float(F64, np.fmax), U64),
}
ATOMIC_SPACES = {
    "global": ("{op} v3, {data}, s[6:7]", "{op} {ret}, v3, {data}, s[6:7] sc0"),
    "flat": ("{op} v[30:31], {data}", "{op} {ret}, v[30:31], {data} sc0"),
    "buffer": ("{op} {data}, v3, s[16:19], 0 offen", "{op} {data}, v3, s[16:19], 0 offen sc0"),
}


def tame(x: np.ndarray) -> np.ndarray:
    """Values that are small numbers in every float format, so that NaN payloads do not matter."""
    return (x & U32(0x3FFF3FFF)).astype(U32)


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("name", ATOMICS)
@pytest.mark.parametrize("space", ATOMIC_SPACES)
def test_atomic(space: str, name: str, returns: bool) -> None:
    f, kind = ATOMICS[name]
    wide, swaps = kind == U64, name.startswith("cmpswap")
    source = tame(SOURCE[: LANES * 4]).reshape(LANES, 4)
    memory = tame(words(LANES * 2, 5)).reshape(LANES, 2)
    if swaps:  # make half of the comparisons succeed
        source[::2, 2 if wide else 1] = memory[::2, 0]
        source[::2, 3] = memory[::2, 1]
    data = "v[20:23]" if wide and swaps else "v[20:21]" if wide or swaps else "v20"
    ret = "v[24:25]" if wide else "v24"
    text = ATOMIC_SPACES[space][returns].format(op=f"{space}_atomic_{name}", data=data, ret=ret)
    body = f"""
v_lshlrev_b32_e32 v3, 3, v0
{ADDRESS64.replace("s5", "s7").replace("s4", "s6").replace("v2", "v3")}
{BUFFERS.format(size=LANES * 8)}
global_load_dwordx4 v[20:23], v2, s[4:5]
v_mov_b32_e32 v24, 0
v_mov_b32_e32 v25, 0
{WAIT}{text}
{WAIT}"""
    result = "v[20:21]" if space == "buffer" else "v[24:25]"
    body += f"global_store_dwordx2 v3, {result}, s[6:7] offset:512\n"
    got = run(body, source, np.concatenate([memory, np.zeros_like(memory)]))
    old = memory.view(U64).ravel() if wide else memory[:, 0].copy()
    columns = source.view(U64) if wide else source
    want = f(old, columns[:, 0].copy(), columns[:, 1].copy())
    after, returned = (got[:LANES], got[LANES:])
    pick = (lambda x: x.copy().view(U64).ravel()) if wide else (lambda x: x[:, 0])
    assert np.array_equal(pick(after), want)
    if returns:
        assert np.array_equal(pick(returned), old)


def test_atomics_of_all_lanes_add_up() -> None:
    body = "v_mov_b32_e32 v20, 1\nv_mov_b32_e32 v3, 0\nglobal_atomic_add v3, v20, s[6:7]\n"
    assert run(body, SOURCE, np.zeros(1, U32), waves=8).item() == 8 * LANES


# ---- LDS -----------------------------------------------------------------------------------------

FILL = """
global_load_dwordx4 v[24:27], v2, s[4:5]
s_waitcnt vmcnt(0)
ds_write_b128 v2, v[24:27]
s_waitcnt lgkmcnt(0)
"""
DS_REG = {"b64": "v[20:21]", "b96": "v[20:22]", "b128": "v[20:23]"}


@pytest.mark.parametrize(
    "kind",
    ["b32", "b64", "b96", "b128", "u8", "i8", "u16", "i16"]
    + [f"{k}_d16{h}" for k in ("u8", "i8", "u16") for h in ("", "_hi")],
)
def test_ds_read(kind: str) -> None:
    body = (
        FILL
        + INIT
        + f"v_xor_b32_e32 v3, 0x70, v2\nds_read_{kind} {DS_REG.get(kind, 'v20')}, v3\n"
        + WAIT
        + STORE4
    )
    got = run(body, SOURCE, np.zeros((LANES, 4), U32), lds=1024)
    assert np.array_equal(got, loaded(f"ds_read_{kind}", 16 * np.arange(LANES) ^ 0x70))


@pytest.mark.parametrize(
    "kind", ["b8", "b8_d16_hi", "b16", "b16_d16_hi", "b32", "b64", "b96", "b128"]
)
def test_ds_write(kind: str) -> None:
    size, shift = int(kind.split("_")[0][1:]) // 8, 16 * kind.endswith("hi")
    reg = {"b64": "v[24:25]", "b96": "v[24:26]", "b128": "v[24:27]"}.get(kind, "v24")
    body = f"""{INIT}ds_write_b128 v2, v[20:23]
global_load_dwordx4 v[24:27], v2, s[4:5]
s_waitcnt vmcnt(0)
ds_write_{kind} v2, {reg}
ds_read_b128 v[20:23], v2
{WAIT}{STORE4}"""
    got = run(body, SOURCE, np.zeros((LANES, 4), U32), lds=1024)
    want = np.full((LANES, 4), OLD, U32)
    data = SOURCE[: LANES * 4].reshape(LANES, 4).copy()
    data[:, 0] >>= shift
    want.view(np.uint8)[:, :size] = data.view(np.uint8)[:, :size]
    assert np.array_equal(got, want)


@pytest.mark.parametrize("stride", ["", "st64"])
@pytest.mark.parametrize("kind", ["b32", "b64"])
def test_ds_two_addresses(kind: str, stride: str) -> None:
    n = 1 if kind == "b32" else 2
    first, second = ("v24", "v25") if n == 1 else ("v[24:25]", "v[26:27]")
    # st64 offsets count 64 elements; lane k then uses element k of two blocks.
    address, o0, o1 = ("v3", 1, 3) if stride else ("v2", 0, 2 // n)
    body = f"""
global_load_dwordx4 v[24:27], v2, s[4:5]
v_lshlrev_b32_e32 v3, {1 + n}, v0
s_waitcnt vmcnt(0)
ds_write2{stride}_{kind} {address}, {first}, {second} offset0:{o0} offset1:{o1}
v_mov_b32_e32 v22, 0
v_mov_b32_e32 v23, 0
ds_read2{stride}_{kind} v[20:{19 + 2 * n}], {address} offset0:{o1} offset1:{o0}
{WAIT}{STORE4}"""
    got = run(body, SOURCE, np.zeros((LANES, 4), U32), lds=4096)
    data = SOURCE[: LANES * 4].reshape(LANES, 4)
    want = np.concatenate([data[:, n : 2 * n], data[:, :n]], axis=1)
    assert np.array_equal(got[:, : 2 * n], want)


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_ds_transposed_read(bits: int) -> None:
    """16 lanes hold a 16 x (64/bits) tile row by row; lane i gets column i."""
    body = f"""{FILL}v_lshlrev_b32_e32 v3, 3, v0
ds_read_b64_tr_b{bits} v[20:21], v3
v_mov_b32_e32 v22, 0
v_mov_b32_e32 v23, 0
{WAIT}{STORE4}"""
    got = run(body, SOURCE, np.zeros((LANES, 4), U32), lds=1024)[:, :2]
    raw = SOURCE[: LANES * 2].view(np.uint8).reshape(4, 128)  # four groups of 16 lanes
    if bits == 4:
        raw = np.stack([raw & 15, raw >> 4], axis=-1).reshape(4, 256)
    elif bits == 16:
        raw = raw.copy().view(np.uint16)
    columns = raw.reshape(4, 64 // bits, 16).transpose(0, 2, 1).reshape(LANES, -1)
    if bits == 4:
        columns = columns[:, ::2] | columns[:, 1::2] << 4
    assert np.array_equal(got, np.ascontiguousarray(columns).view(U32))


DS_NAMES = {
    "umin": "min_u",
    "umax": "max_u",
    "smin": "min_i",
    "smax": "max_i",
    "cmpswap": "cmpst_b",
    "swap": "wrxchg_b",
}


def ds_atomics() -> dict[str, tuple[Rmw, type]]:
    found = {}
    for name, f in INTEGER.items():
        stem = DS_NAMES.get(name, f"{name}_{'b' if name in ('and', 'or', 'xor') else 'u'}")
        found |= {f"{stem}32": (f, U32), f"{stem}64": (f, U64)}
    for kind, dtype, word in (("f32", F32, U32), ("f64", F64, U64)):
        found[f"add_{kind}"] = (as_float(dtype, np.add), word)
        found[f"min_{kind}"] = (as_float(dtype, np.fmin), word)
        found[f"max_{kind}"] = (as_float(dtype, np.fmax), word)
    found["pk_add_f16"] = (packed_add(F16), U32)
    found["pk_add_bf16"] = (packed_add(BF16), U32)
    return found


DS_ATOMICS = ds_atomics()


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("name", DS_ATOMICS)
def test_ds_atomic(name: str, returns: bool) -> None:
    f, kind = DS_ATOMICS[name]
    if name.startswith("wrxchg") and not returns:
        pytest.skip("exchange always returns")
    wide, swaps = kind == U64, name.startswith("cmpst")
    source = tame(SOURCE[: LANES * 4]).reshape(LANES, 4)
    memory = tame(words(LANES * 2, 5)).reshape(LANES, 2)
    # Operands: what to compare with (cmpst only), then the value.
    value, compare = (source[:, 2:], source[:, :2]) if swaps else (source[:, :2], source[:, 2:])
    if swaps:
        compare[::2] = memory[::2]
    stem, _, suffix = name.rpartition("_")
    op = f"ds_{stem}_rtn_{suffix}" if returns else f"ds_{name}"
    regs = [f"v[{k}:{k + 1}]" if wide else f"v{k}" for k in (20, 22, 24)]
    operands = ([regs[2]] if returns else []) + ["v3", regs[0]] + ([regs[1]] if swaps else [])
    body = f"""
v_lshlrev_b32_e32 v3, 3, v0
global_load_dwordx4 v[20:23], v2, s[4:5]
global_load_dwordx2 v[26:27], v3, s[6:7]
v_mov_b32_e32 v24, 0
v_mov_b32_e32 v25, 0
s_waitcnt vmcnt(0)
ds_write_b64 v3, v[26:27]
{op} {", ".join(operands)}
ds_read_b64 v[26:27], v3
{WAIT}
global_store_dwordx2 v3, v[26:27], s[6:7]
global_store_dwordx2 v3, v[24:25], s[6:7] offset:512
"""
    got = run(body, source, np.concatenate([memory, np.zeros_like(memory)]), lds=512)
    pick = (
        (lambda x: np.ascontiguousarray(x).view(U64).ravel())
        if wide
        else (lambda x: x[:, 0].copy())
    )
    want = f(pick(memory), pick(value), pick(compare))
    assert np.array_equal(pick(got[:LANES]), want)
    if returns:
        assert np.array_equal(pick(got[LANES:]), pick(memory))


@pytest.mark.parametrize("width", ["dword", "dwordx3", "dwordx4", "ubyte", "ushort"])
@pytest.mark.parametrize("space", ["global", "buffer"])
def test_load_to_lds(space: str, width: str) -> None:
    if space == "buffer":
        text = f"buffer_load_{width} v2, s[12:15], 0 offen offset:16 lds"
    else:
        text = f"global_load_lds_{width} v2, s[4:5] offset:16"
    count = {"dwordx3": 3, "dwordx4": 4}.get(width, 1)
    body = (
        BUFFERS.format(size=SOURCE.nbytes)
        + f"""
s_movk_i32 m0, 64
s_nop 4
{text}
s_waitcnt vmcnt(0)
v_mul_u32_u24_e32 v3, {4 * count}, v0
"""
    )
    for k in range(count):
        body += f"ds_read_b32 v20, v3 offset:{80 + 4 * k}\n{WAIT}"
        body += f"global_store_dword v2, v20, s[6:7] offset:{4 * k}\n"
    got = run(body, SOURCE, np.zeros((LANES, 4), U32), lds=2048)[:, :count]
    address = 16 * np.arange(LANES) + 16
    want = loaded(f"global_load_{width}", address)[:, :count]
    assert np.array_equal(got, want)


PERMUTES = {
    "ds_bpermute_b32 v20, v3, v4": lambda a, x: x[(a >> 2) % 64],
    "ds_swizzle_b32 v20, v4 offset:swizzle(QUAD_PERM,2,0,3,1)": lambda a, x: x[
        np.arange(64) & ~3 | np.array([2, 0, 3, 1])[np.arange(64) & 3]
    ],
    "ds_swizzle_b32 v20, v4 offset:0x041f": lambda a, x: x[np.arange(64) ^ 1],
    "ds_swizzle_b32 v20, v4 offset:0x0c07": lambda a, x: x[
        np.arange(64) & 32 | ((np.arange(64) & 7) ^ 3)
    ],
}


@pytest.mark.parametrize("text", PERMUTES)
def test_crossbar(text: str) -> None:
    index = np.random.default_rng(3).permutation(64).astype(U32) * 4
    source = np.stack([index, SOURCE[:64]], axis=1)
    body = "v_lshlrev_b32_e32 v5, 3, v0\nglobal_load_dwordx2 v[3:4], v5, s[4:5]\n".replace(
        "v[3:4]", "v[8:9]"
    )
    body += f"s_waitcnt vmcnt(0)\nv_mov_b32_e32 v3, v8\nv_mov_b32_e32 v4, v9\n{text}\n{WAIT}"
    body += "global_store_dword v1, v20, s[6:7]\n"
    got = run(body, source, np.zeros(64, U32))
    assert np.array_equal(got, PERMUTES[text](index, SOURCE[:64]))


def test_permute_scatters() -> None:
    index = np.random.default_rng(4).permutation(64).astype(U32)
    source = np.stack([4 * index, SOURCE[:64]], axis=1)
    body = (
        "v_lshlrev_b32_e32 v5, 3, v0\nglobal_load_dwordx2 v[8:9], v5, s[4:5]\ns_waitcnt vmcnt(0)\n"
    )
    body += f"ds_permute_b32 v20, v8, v9\n{WAIT}global_store_dword v1, v20, s[6:7]\n"
    want = np.zeros(64, U32)
    want[index] = SOURCE[:64]
    assert np.array_equal(run(body, source, np.zeros(64, U32)), want)


def test_every_memory_opcode_is_covered() -> None:
    """What the parametrized tests above assemble, name by name, is all the core models."""
    from dsv41_kernels.emulator import core

    spaces = ("global", "flat", "buffer", "scratch")
    tested = {f"{s}_load_{k}" for s in spaces for k in WIDTHS + D16}
    tested |= {f"{s}_store_{k}" for s in spaces for k in STORES}
    tested |= {f"{s}_atomic_{k}" for s in spaces[:3] for k in ATOMICS}
    tested |= {f"global_load_lds_{k}" for k in ("dword", "dwordx3", "dwordx4", "ubyte", "ushort")}
    for name in DS_ATOMICS:
        stem, _, suffix = name.rpartition("_")
        tested |= {f"ds_{name}", f"ds_{stem}_rtn_{suffix}"}
    tested |= {f"ds_read_{k}" for k in ("b32", "b64", "b96", "b128", "u8", "i8", "u16", "i16")}
    tested |= {f"ds_read_{k}_d16{h}" for k in ("u8", "i8", "u16") for h in ("", "_hi")}
    tested |= {f"ds_read_b64_tr_b{k}" for k in (16, 8, 4)}
    tested |= {
        f"ds_write_{k}"
        for k in ("b8", "b8_d16_hi", "b16", "b16_d16_hi", "b32", "b64", "b96", "b128")
    }
    tested |= {
        f"ds_{d}2{s}_{k}" for d in ("read", "write") for s in ("", "st64") for k in ("b32", "b64")
    }
    tested |= {"ds_bpermute_b32", "ds_permute_b32", "ds_swizzle_b32"}
    tested |= {f"{s}_{k}" for s in ("s_load", "s_buffer_load") for k in SCALAR_WIDTHS}
    elsewhere = {"buffer_inv", "buffer_wbl2", "ds_nop"}  # test_coherence.py, test_scalar.py
    prefixes = (*(f"{s}_" for s in spaces), "ds_", "s_load", "s_buffer_load")
    modelled = {name for name in core.opcodes() if name.startswith(prefixes)}
    assert modelled - tested - elsewhere == set()
