"""What both Hopper kernels are made of: layouts, the seam's arithmetic, the block counters."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .language import barrier, constexpr_function, gl, jit

# A block's 64-bit counter: events since the scratch was made and hand-offs now open. A launch adds
# NUM_KSPLIT arrivals and as many finished shares, and no share finishes before the last arrival:
# the count modulo twice NUM_KSPLIT tells whether the block is complete, and needs no clearing
# between graph replays (2**48 events last for decades).
HANDOFF = tl.constexpr(1 << 48)
EVENTS = tl.constexpr((1 << 48) - 1)
PART_COLS = tl.constexpr(32)  # 24 gates, the sum of squares, padding
SUMSQ_COL = tl.constexpr(24)
INV_448 = tl.constexpr(1.0 / 448.0)


@constexpr_function
def slab_rows(warps: int, cols: int) -> int:
    """Tokens of a slab: 8 columns of one token a thread."""
    return warps * 256 // cols


@constexpr_function
def wide_layout(warps: int, cols: int) -> Any:
    """[slab, cols]: 16 bytes a lane along a token's columns."""
    return gl.BlockedLayout([1, 8], [256 // cols, cols // 8], [warps, 1], [1, 0])


@constexpr_function
def carried_layout(warps: int, cols: int, width: int) -> Any:
    """[slab, width]: every thread holds all carried gates of its token in ``wide_layout``."""
    lanes = (cols // 8).bit_length() - 1
    rows = slab_rows(warps, cols).bit_length() - 1
    by_row = [[1 << i, 0] for i in range(rows)]
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 1 << i] for i in range(width.bit_length() - 1)],
        lane_bases=[[0, 0]] * lanes + by_row[: 5 - lanes],
        warp_bases=by_row[5 - lanes :],
        block_bases=[],
        shape=[1 << rows, width],
    )


@constexpr_function
def mma_layout(warps: int, tokens: int) -> Any:
    """[64, tokens]: what the tensor cores accumulate, the tokens cut between the warpgroups."""
    return gl.NVMMADistributedLayout([3, 0], [4, warps // 4], [16, tokens * 4 // warps, 16])


@constexpr_function
def operand_layout(cols: int) -> Any:
    """Shared [rows, cols] of bf16 as the tensor cores read it."""
    return gl.NVMMASharedLayout(swizzle_byte_width=min(128, 2 * cols), element_bitwidth=16, rank=2)


@constexpr_function
def px_layout(warps: int, tokens: int) -> Any:
    """[splits, tokens]: a warp adds some splits of 16 tokens."""
    over_tokens = min(warps, tokens // 16)
    return gl.BlockedLayout([1, 4], [8, 4], [warps // over_tokens, over_tokens], [1, 0])


@constexpr_function
def part_layout(warps: int, tokens: int) -> Any:
    """[splits, tokens, 32]: 16 bytes a lane, 128 bytes a token and split."""
    lanes = min(tokens, 4)
    over_tokens = min(warps, tokens // lanes)
    return gl.BlockedLayout(
        [1, 1, 4], [4 // lanes, lanes, 8], [warps // over_tokens, over_tokens, 1], [2, 1, 0]
    )


@constexpr_function
def token_layout(warps: int) -> Any:
    """[tokens, 32]: a thread holds a whole row."""
    return gl.BlockedLayout([1, 32], [32, 1], [warps, 1], [1, 0])


@jit
def round_bf16(x):
    """float32 to bf16, to nearest even, two columns an instruction.

    A plain cast does one where, as here, the result is stored and used again.
    """
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x], dtype=tl.bfloat16, is_pure=True, pack=2
    )


@jit
def widen(x):
    """bf16 to float32, one instruction a column (a plain cast takes two for every other one)."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 h; shl.b32 h, $2, 16; mov.b32 $0, h; "
        "and.b32 h, $2, 0xffff0000; mov.b32 $1, h; }",
        "=f,=f,r", [x], dtype=tl.float32, is_pure=True, pack=2,
    )  # fmt: skip


@jit
def reciprocal(x):
    """1 / x to within one unit in the last place, without the care for subnormals."""
    return gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@jit
def factors(x, COLS: tl.constexpr, WARPS: tl.constexpr):
    """The columns of x [slab, 4] as factors [slab, 1] of a slab."""
    by_row: tl.constexpr = gl.SliceLayout(1, wide_layout(WARPS, COLS))
    x0, x1, x2, x3 = _four(x)
    return (
        gl.convert_layout(x0, by_row)[:, None],
        gl.convert_layout(x1, by_row)[:, None],
        gl.convert_layout(x2, by_row)[:, None],
        gl.convert_layout(x3, by_row)[:, None],
    )


@jit
def mix(r0, r1, r2, r3, y, post, c0, c1, c2, c3):
    """One destination stream, rounded to bf16."""
    return round_bf16(post * y + c0 * r0 + c1 * r1 + c2 * r2 + c3 * r3)


@jit
def mix_slab(r0, r1, r2, r3, y, post, comb, COLS: tl.constexpr, WARPS: tl.constexpr):
    """The four mixed streams of a slab, bf16."""
    f0, f1, f2, f3, fy = widen(r0), widen(r1), widen(r2), widen(r3), widen(y)
    p0, p1, p2, p3 = factors(post, COLS, WARPS)
    # [slab, source, destination] by source
    by = gl.permute(gl.reshape(comb, [comb.shape[0], 2, 2, 4]), (0, 3, 2, 1))
    low, high = gl.split(by)
    s0, s1 = gl.split(low)
    s2, s3 = gl.split(high)
    c00, c01, c02, c03 = factors(s0, COLS, WARPS)
    c10, c11, c12, c13 = factors(s1, COLS, WARPS)
    c20, c21, c22, c23 = factors(s2, COLS, WARPS)
    c30, c31, c32, c33 = factors(s3, COLS, WARPS)
    return (
        mix(f0, f1, f2, f3, fy, p0, c00, c10, c20, c30),
        mix(f0, f1, f2, f3, fy, p1, c01, c11, c21, c31),
        mix(f0, f1, f2, f3, fy, p2, c02, c12, c22, c32),
        mix(f0, f1, f2, f3, fy, p3, c03, c13, c23, c33),
    )


@jit
def load_slab(s0, s1, s2, s3, first: tl.constexpr, COLS: tl.constexpr, WARPS: tl.constexpr):
    """The four streams of the slab from row ``first`` on, from shared memory [BLOCK_M, COLS]."""
    ROWS: tl.constexpr = slab_rows(WARPS, COLS)
    wide: tl.constexpr = wide_layout(WARPS, COLS)
    return (
        s0.slice(first, ROWS).load(wide),
        s1.slice(first, ROWS).load(wide),
        s2.slice(first, ROWS).load(wide),
        s3.slice(first, ROWS).load(wide),
    )


@jit
def keep_slab(s0, s1, s2, s3, first: tl.constexpr, r0, r1, r2, r3):
    """Put the four streams of a slab back where ``load_slab`` found them."""
    s0.slice(first, r0.shape[0]).store(r0)
    s1.slice(first, r1.shape[0]).store(r1)
    s2.slice(first, r2.shape[0]).store(r2)
    s3.slice(first, r3.shape[0]).store(r3)


@jit
def collapse(r0, r1, r2, r3, pre, COLS: tl.constexpr, WARPS: tl.constexpr, IDENTITY: tl.constexpr):
    """x1 of a slab from its mixed streams, and the sums of x1**2 and of R'**2 a token."""
    g0, g1, g2, g3 = widen(r0), widen(r1), widen(r2), widen(r3)
    x1 = r0
    if not IDENTITY:
        q0, q1, q2, q3 = factors(pre, COLS, WARPS)
        x1 = round_bf16(q0 * g0 + q1 * g1 + q2 * g2 + q3 * g3)
    x = widen(x1)
    return x1, gl.sum(x * x, axis=1), gl.sum(g0 * g0 + g1 * g1 + g2 * g2 + g3 * g3, axis=1)


@jit
def store_part(part, acc):
    """Store the gates' sums in a projection's accumulator [64, BLOCK_M] to part [BLOCK_M, 32].

    Rows 16w + r and 16w + 8 + r are hi and lo of gate 8w + r, and lie in one thread.
    """
    TOKENS: tl.constexpr = acc.shape[1]
    sums = gl.reshape(gl.sum(gl.reshape(acc, [4, 2, 8, TOKENS]), axis=1), [32, TOKENS])
    layout: tl.constexpr = sums.type.layout
    n = gl.arange(0, sums.shape[0], gl.SliceLayout(1, layout))[:, None]
    m = gl.arange(0, sums.shape[1], gl.SliceLayout(0, layout))[None, :]
    gl.store(part + m * PART_COLS + n, sums, mask=n < 24)


@jit
def norm_tile(
    x1, rstd, w, NORM, GRID, CODES, SCALES, first, T, col0, H: tl.constexpr,
    OUT: tl.constexpr, HINT: tl.constexpr,
):  # fmt: skip
    """Normalise x1 [ROWS, COLS] of the tokens from ``first`` on and store every output of OUT."""
    wide: tl.constexpr = x1.type.layout
    ROWS: tl.constexpr = x1.shape[0]
    COLS: tl.constexpr = x1.shape[1]
    tok = first + gl.arange(0, ROWS, gl.SliceLayout(1, wide))
    m = (tok < T)[:, None]
    at = tok[:, None] * H + (col0 + gl.arange(0, COLS, gl.SliceLayout(0, wide)))[None, :]
    norm = round_bf16(widen(x1) * rstd[:, None] * w[None, :])
    gl.store(NORM + at, norm, mask=m, eviction_policy=HINT)
    if OUT != "bf16":
        groups = gl.reshape(widen(norm), [ROWS, COLS // 32, 32])
        amax = gl.max(gl.abs(groups), axis=2)
        bits = (gl.maximum(amax, 1e-10) * INV_448).to(tl.int32, bitcast=True)
        # Normal and positive by the floor above, so this is the exponent of the next power of two.
        code = (bits + 0x7FFFFF) >> 23
        code = gl.minimum(gl.maximum(code, 1), 254)
        factor = ((254 - code) << 23).to(tl.float32, bitcast=True)
        scaled = gl.minimum(gl.maximum(groups * factor[:, :, None], -448.0), 448.0)
        quantised = scaled.to(tl.float8e4nv)
        if OUT == "fp8_grid":
            scale = (code << 23).to(tl.float32, bitcast=True)
            grid = round_bf16(quantised.to(tl.float32) * scale[:, :, None])
            grid = gl.convert_layout(gl.reshape(grid, [ROWS, COLS]), wide)
            gl.store(GRID + at, grid, mask=m, eviction_policy=HINT)
        else:
            codes = gl.convert_layout(gl.reshape(quantised, [ROWS, COLS]), wide)
            gl.store(CODES + at, codes, mask=m, eviction_policy=HINT)
            by_group: tl.constexpr = code.type.layout
            row = gl.convert_layout(tok, gl.SliceLayout(1, by_group))
            group = col0 // 32 + gl.arange(0, COLS // 32, gl.SliceLayout(0, by_group))
            to = SCALES + row[:, None] * (H // 32) + group[None, :]
            gl.store(to, code.to(tl.uint8), mask=(row < T)[:, None])


@jit
def _row_softmax(a, b, c, d, eps):
    top = gl.maximum(gl.maximum(a, b), gl.maximum(c, d))
    a, b, c, d = gl.exp(a - top), gl.exp(b - top), gl.exp(c - top), gl.exp(d - top)
    inv = reciprocal(a + b + c + d)
    return a * inv + eps, b * inv + eps, c * inv + eps, d * inv + eps


@jit
def _normalise4(a, b, c, d, eps):
    inv = reciprocal((a + b) + (c + d + eps))
    return a * inv, b * inv, c * inv, d * inv


@jit
def load_parts(
    PART, block, share, tokens, s, BLOCK_M: tl.constexpr, S: tl.constexpr, TOKENS: tl.constexpr,
    CHUNK: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Partial sums of splits s to s + CHUNK for the tokens of one share, added: [TOKENS, 32]."""
    layout: tl.constexpr = part_layout(WARPS, TOKENS)
    by_token: tl.constexpr = gl.SliceLayout(0, layout)
    si = s + gl.arange(0, CHUNK, gl.SliceLayout(1, gl.SliceLayout(2, layout)))[:, None, None]
    mi = gl.arange(0, TOKENS, gl.SliceLayout(1, by_token))[:, None][None, :, :] + share * TOKENS
    n = gl.arange(0, PART_COLS, gl.SliceLayout(0, by_token))[None, :][None, :, :]
    at = ((block * S + si) * BLOCK_M + mi) * PART_COLS + n
    wanted = (si < S) & (mi < tokens)
    return gl.sum(gl.load(PART + at, mask=wanted, other=0.0, cache_modifier=".cg"), axis=0)


@jit
def _quads(x):
    """x [tokens, 32] as eight [tokens, 4]: columns 0 to 3, 4 to 7, …"""
    x = gl.permute(gl.reshape(x, [x.shape[0], 2, 2, 2, 4]), (0, 4, 3, 2, 1))
    low, high = gl.split(x)
    q01, q23 = gl.split(low)
    q45, q67 = gl.split(high)
    q0, q1 = gl.split(q01)
    q2, q3 = gl.split(q23)
    q4, q5 = gl.split(q45)
    q6, q7 = gl.split(q67)
    return q0, q1, q2, q3, q4, q5, q6, q7


@jit
def _four(x):
    """The columns of x [tokens, 4]."""
    even, odd = gl.split(gl.reshape(x, [x.shape[0], 2, 2]))
    x0, x2 = gl.split(even)
    x1, x3 = gl.split(odd)
    return x0, x1, x2, x3


@jit
def _gate(SCALE, BASE, x, rstd, which: tl.constexpr, i: tl.constexpr):
    """One gate's logit from its sum."""
    return x * rstd * gl.load(SCALE + which) + gl.load(BASE + i)


@jit
def _sigmoid(x):
    return 1.0 / (1.0 + gl.exp(-x))


@jit
def _store4(P, tok, valid, width: tl.constexpr, first: tl.constexpr, a, b, c, d):
    at = P + tok * width + first
    gl.store(at, a, mask=valid)
    gl.store(at + 1, b, mask=valid)
    gl.store(at + 2, c, mask=valid)
    gl.store(at + 3, d, mask=valid)


@jit
def gates_share(
    m, PRE_OUT, POST_OUT, COMB_OUT, SCALE, BASE, first, end,
    rms_eps, pre_eps, sinkhorn_eps, post_mult, H: tl.constexpr, ITERS: tl.constexpr,
):  # fmt: skip
    """Store the next pre, post and comb of tokens ``first`` on, before ``end``, from their sums m.

    A thread does a whole token: 19 rounds of Sinkhorn wait for no other lane.
    """
    pre, post, a, b, c, d, rest, _ = _quads(m)
    sumsq, _, _, _ = _four(rest)
    tok = first + gl.arange(0, m.shape[0], sumsq.type.layout)
    valid = tok < end
    rstd = gl.rsqrt(sumsq / (4 * H) + rms_eps)
    p0, p1, p2, p3 = _four(pre)
    p0 = _sigmoid(_gate(SCALE, BASE, p0, rstd, 0, 0)) + pre_eps
    p1 = _sigmoid(_gate(SCALE, BASE, p1, rstd, 0, 1)) + pre_eps
    p2 = _sigmoid(_gate(SCALE, BASE, p2, rstd, 0, 2)) + pre_eps
    p3 = _sigmoid(_gate(SCALE, BASE, p3, rstd, 0, 3)) + pre_eps
    _store4(PRE_OUT, tok, valid, 4, 0, p0, p1, p2, p3)
    q0, q1, q2, q3 = _four(post)
    q0 = post_mult * _sigmoid(_gate(SCALE, BASE, q0, rstd, 1, 4))
    q1 = post_mult * _sigmoid(_gate(SCALE, BASE, q1, rstd, 1, 5))
    q2 = post_mult * _sigmoid(_gate(SCALE, BASE, q2, rstd, 1, 6))
    q3 = post_mult * _sigmoid(_gate(SCALE, BASE, q3, rstd, 1, 7))
    _store4(POST_OUT, tok, valid, 4, 0, q0, q1, q2, q3)

    a0, a1, a2, a3 = _logits(SCALE, BASE, a, rstd, 8, sinkhorn_eps)
    b0, b1, b2, b3 = _logits(SCALE, BASE, b, rstd, 12, sinkhorn_eps)
    c0, c1, c2, c3 = _logits(SCALE, BASE, c, rstd, 16, sinkhorn_eps)
    d0, d1, d2, d3 = _logits(SCALE, BASE, d, rstd, 20, sinkhorn_eps)
    a0, b0, c0, d0 = _normalise4(a0, b0, c0, d0, sinkhorn_eps)
    a1, b1, c1, d1 = _normalise4(a1, b1, c1, d1, sinkhorn_eps)
    a2, b2, c2, d2 = _normalise4(a2, b2, c2, d2, sinkhorn_eps)
    a3, b3, c3, d3 = _normalise4(a3, b3, c3, d3, sinkhorn_eps)
    for _ in range(ITERS - 1):
        a0, a1, a2, a3 = _normalise4(a0, a1, a2, a3, sinkhorn_eps)
        b0, b1, b2, b3 = _normalise4(b0, b1, b2, b3, sinkhorn_eps)
        c0, c1, c2, c3 = _normalise4(c0, c1, c2, c3, sinkhorn_eps)
        d0, d1, d2, d3 = _normalise4(d0, d1, d2, d3, sinkhorn_eps)
        a0, b0, c0, d0 = _normalise4(a0, b0, c0, d0, sinkhorn_eps)
        a1, b1, c1, d1 = _normalise4(a1, b1, c1, d1, sinkhorn_eps)
        a2, b2, c2, d2 = _normalise4(a2, b2, c2, d2, sinkhorn_eps)
        a3, b3, c3, d3 = _normalise4(a3, b3, c3, d3, sinkhorn_eps)
    _store4(COMB_OUT, tok, valid, 16, 0, a0, a1, a2, a3)
    _store4(COMB_OUT, tok, valid, 16, 4, b0, b1, b2, b3)
    _store4(COMB_OUT, tok, valid, 16, 8, c0, c1, c2, c3)
    _store4(COMB_OUT, tok, valid, 16, 12, d0, d1, d2, d3)


@jit
def _logits(SCALE, BASE, row, rstd, first: tl.constexpr, eps):
    """Softmax of one row of comb's logits, plus eps."""
    x0, x1, x2, x3 = _four(row)
    return _row_softmax(
        _gate(SCALE, BASE, x0, rstd, 2, first),
        _gate(SCALE, BASE, x1, rstd, 2, first + 1),
        _gate(SCALE, BASE, x2, rstd, 2, first + 2),
        _gate(SCALE, BASE, x3, rstd, 2, first + 3),
        eps,
    )


@jit
def x1_rstd(
    PX, block, norm_eps, H: tl.constexpr, BLOCK_M: tl.constexpr, S: tl.constexpr,
    WARPS: tl.constexpr,
):  # fmt: skip
    """rsqrt(mean(x1**2) + eps) of a block's tokens from every split's partial sum."""
    S2: tl.constexpr = triton.next_power_of_2(S)
    layout: tl.constexpr = px_layout(WARPS, BLOCK_M)
    si = gl.arange(0, S2, gl.SliceLayout(1, layout))[:, None]
    at = PX + (block * S + si) * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(0, layout))[None, :]
    px = gl.load(at, mask=si < S, other=0.0, cache_modifier=".cg")
    return gl.rsqrt(gl.sum(px, axis=0) / H + norm_eps)


@jit
def tile_at(
    block, split, H: tl.constexpr, BLOCK_M: tl.constexpr, COLS: tl.constexpr, wide: tl.constexpr
):
    """Tokens [BLOCK_M] of a tile and the offsets [BLOCK_M, COLS] of its columns in [T, H]."""
    tok = block * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, wide))
    col = split * COLS + gl.arange(0, COLS, gl.SliceLayout(0, wide))
    return tok, tok[:, None] * H + col[None, :]


@jit
def load_x1(
    NORM, block, share, T, H: tl.constexpr, BLOCK_M: tl.constexpr, COLS: tl.constexpr,
    wide: tl.constexpr,
):  # fmt: skip
    """A share's x1 [BLOCK_M, COLS] from the norm buffer."""
    tok, at = tile_at(block, share, H, BLOCK_M, COLS, wide)
    return gl.load(NORM + at, mask=(tok < T)[:, None], cache_modifier=".cg")


@jit
def finish_share(
    x1, W, NORM, GRID, CODES, SCALES, PRE_OUT, POST_OUT, COMB_OUT, SCALE, BASE,
    PART, PX, COUNT, block, share, T, rms_eps, norm_eps, pre_eps, sinkhorn_eps, post_mult,
    H: tl.constexpr, BLOCK_M: tl.constexpr, S: tl.constexpr, WARPS: tl.constexpr,
    TOKENS: tl.constexpr, OUT: tl.constexpr, ITERS: tl.constexpr, HINT: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Normalise a share's x1 [BLOCK_M, H / S] of a complete block and compute gates of its tokens.

    The gates of ``TOKENS`` tokens are computed by each of the first shares, counted from another
    one in each block. EARLY: their sums are loaded while the columns are normalised.
    """
    COLS: tl.constexpr = H // S
    S2: tl.constexpr = triton.next_power_of_2(S)
    # Partial sums a program adds at a time: at most 32 registers a thread.
    ROOM: tl.constexpr = 32 * WARPS // TOKENS if 32 * WARPS >= TOKENS else 1
    CHUNK: tl.constexpr = S2 if S2 < ROOM else ROOM
    wide: tl.constexpr = wide_layout(WARPS, COLS)
    w = gl.load(W + share * COLS + gl.arange(0, COLS, gl.SliceLayout(0, wide))).to(tl.float32)
    tokens = gl.minimum(T - block * BLOCK_M, BLOCK_M)
    turn = (share + block) % S
    if EARLY:
        parts = load_parts(PART, block, turn, tokens, 0, BLOCK_M, S, TOKENS, CHUNK, WARPS)
    rstd = x1_rstd(PX, block, norm_eps, H, BLOCK_M, S, WARPS)
    rstd = gl.convert_layout(rstd, gl.SliceLayout(1, wide))
    first, col = block * BLOCK_M, share * COLS
    norm_tile(x1, rstd, w, NORM, GRID, CODES, SCALES, first, T, col, H, OUT, HINT)
    if turn * TOKENS < tokens:
        if not EARLY:
            parts = load_parts(PART, block, turn, tokens, 0, BLOCK_M, S, TOKENS, CHUNK, WARPS)
        for s in range(CHUNK, S, CHUNK):
            parts += load_parts(PART, block, turn, tokens, s, BLOCK_M, S, TOKENS, CHUNK, WARPS)
        gates_share(
            gl.convert_layout(parts, token_layout(WARPS)), PRE_OUT, POST_OUT, COMB_OUT,
            SCALE, BASE, block * BLOCK_M + turn * TOKENS, T,
            rms_eps, pre_eps, sinkhorn_eps, post_mult, H, ITERS,
        )  # fmt: skip
    barrier()
    gl.atomic_add(COUNT + block, 1, sem="relaxed", scope="gpu")


@jit
def complete(now, S: tl.constexpr):
    """Whether a block's counter says that every tile has arrived."""
    return (now & EVENTS) % (2 * S) >= S


@jit
def await_block(COUNT, block, S: tl.constexpr, SPIN: tl.constexpr):
    """Whether a block is complete, after at most SPIN polls, and the hand-offs then open."""
    ready = block < 0
    opened = (block * 0).to(tl.int64)
    polls = 0
    while (not ready) & (polls < SPIN):
        now = gl.atomic_add(COUNT + block, 0, sem="acquire", scope="gpu")
        ready = complete(now, S)
        opened = now >> 48
        polls += 1
    return ready, opened


@jit
def hand_off(COUNT, FLAG, block, split, S: tl.constexpr):
    """Leave a share, its x1 in the norm buffer, to the last arriver; the counter as it was then.

    If the block was complete by then, the last arriver may have missed the hand-off: whoever
    claims the share finishes it.
    """
    barrier()
    gl.atomic_xchg(FLAG + block * S + split, 1, sem="release", scope="gpu")
    return gl.atomic_add(COUNT + block, HANDOFF, sem="acq_rel", scope="gpu")


@jit
def claim(COUNT, FLAG, block, share, S: tl.constexpr):
    """Whether a share that was handed off is now this program's to finish."""
    flag = FLAG + block * S + share
    claimed = gl.atomic_cas(flag, 1, 0, sem="acq_rel", scope="gpu") == 1
    if claimed:
        gl.atomic_add(COUNT + block, -HANDOFF, sem="relaxed", scope="gpu")
    return claimed
