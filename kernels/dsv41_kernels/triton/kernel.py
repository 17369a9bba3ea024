"""The single-launch mega-mHC kernel for Hopper.

Program (block, split) owns ``BLOCK_M`` tokens and ``H / NUM_KSPLIT`` columns of every stream. It
mixes its columns, leaves its part of x1 in the norm buffer (it is still in the L2 when it is
wanted again), adds its share of the gate projection on the tensor cores and publishes the partial
sums. Every program that sees its block complete does its share of the finish: it normalises its
own columns and computes the gates of a few of the tokens. One that waits too long hands its share
to the last arriver, so no program ever waits on one that cannot run.
"""

from __future__ import annotations

import triton
import triton.language as tl

# A block's 64-bit counter: arrivals since the scratch was made (never reset, so a graph replay
# needs no clearing; 2**48 of them last for decades) and hand-offs now open.
HANDOFF = tl.constexpr(1 << 48)
ARRIVALS = tl.constexpr((1 << 48) - 1)
PART_COLS = tl.constexpr(32)  # 24 gates, the sum of squares, padding
SUMSQ_COL = tl.constexpr(24)
PACKED_ROWS = tl.constexpr(48)  # of fn, see host.pack_fn
INV_448 = tl.constexpr(1.0 / 448.0)


@triton.jit
def _load_tile(R, Y, tok, valid, cols, H: tl.constexpr, MIX: tl.constexpr, HINT: tl.constexpr):
    """The four streams and y of one [BLOCK_M, TILE_K] tile, bf16 (y repeats r0 without post)."""
    at = R + tok[:, None] * (4 * H) + cols[None, :]
    m = valid[:, None]
    r0 = tl.load(at, mask=m, other=0.0, eviction_policy=HINT)
    r1 = tl.load(at + H, mask=m, other=0.0, eviction_policy=HINT)
    r2 = tl.load(at + 2 * H, mask=m, other=0.0, eviction_policy=HINT)
    r3 = tl.load(at + 3 * H, mask=m, other=0.0, eviction_policy=HINT)
    y = r0
    if MIX:
        y = tl.load(Y + tok[:, None] * H + cols[None, :], mask=m, other=0.0, eviction_policy=HINT)
    return r0, r1, r2, r3, y


@triton.jit
def _column(P, tok, valid, width: tl.constexpr, i: tl.constexpr):
    return tl.load(P + tok * width + i, mask=valid, other=0.0)[:, None]


@triton.jit
def _round_bf16(x):
    """float32 to bf16, to nearest even, two columns an instruction.

    A plain cast does one where, as here, the result is stored and used again.
    """
    return tl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x], dtype=tl.bfloat16, is_pure=True, pack=2
    )


@triton.jit
def _widen(x):
    """bf16 to float32, one instruction a column (a plain cast takes two for every other one)."""
    return tl.inline_asm_elementwise(
        "{ .reg .b32 h; shl.b32 h, $2, 16; mov.b32 $0, h; "
        "and.b32 h, $2, 0xffff0000; mov.b32 $1, h; }",
        "=f,=f,r", [x], dtype=tl.float32, is_pure=True, pack=2,
    )  # fmt: skip


@triton.jit
def _mix(r0, r1, r2, r3, y, post, c0, c1, c2, c3):
    """One destination stream, rounded to bf16."""
    return _round_bf16(post * y + c0 * r0 + c1 * r1 + c2 * r2 + c3 * r3)


@triton.jit
def _runs(x):
    """[BLOCK_M, TILE_K] as [BLOCK_M, TILE_K / 8, 8]: a thread holds a run of 8 columns."""
    return tl.reshape(x, [x.shape[0], x.shape[1] // 8, 8])


@triton.jit
def _load_fn(FN, cols4, H: tl.constexpr):
    """fn of one tile, all streams: bf16 [64, 4 * TILE_K], hi and lo rows as ``host.pack_fn``."""
    rows = tl.arange(0, 64)[:, None]
    at = FN + rows * (4 * H) + cols4[None, :]
    return tl.load(at, mask=rows < PACKED_ROWS, other=0.0, eviction_policy="evict_last")


@triton.jit
def _project(acc, fn, r0, r1, r2, r3):
    """acc[64, BLOCK_M] += fn @ r.T over one tile, the streams interleaved by runs of 8 columns.

    fn is the first operand so that r goes to the tensor cores through shared memory: as the first
    operand the compiler would mix the streams a second time, in the tensor core's layout.
    """
    r = tl.join(tl.join(_runs(r0), _runs(r2)), tl.join(_runs(r1), _runs(r3)))
    r = tl.reshape(tl.permute(r, (0, 1, 3, 4, 2)), [r0.shape[0], 4 * r0.shape[1]])
    return tl.dot(fn, tl.trans(r), acc)


@triton.jit
def _sums(a, b, c, d):
    """Squares of four tiles, summed over runs of 8 columns: one thread holds a run."""
    squares = a * a + b * b + c * c + d * d
    return tl.sum(_runs(squares), axis=2)


@triton.jit
def _norm_tile(
    rstd, W, NORM, GRID, CODES, SCALES, tok, valid, col0,
    H: tl.constexpr, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr,
    HINT: tl.constexpr,
):  # fmt: skip
    """Normalise WIDTH columns of x1 in the norm buffer and store every output of OUT."""
    cols = col0 + tl.arange(0, WIDTH)
    at = tok[:, None] * H + cols[None, :]
    m = valid[:, None]
    x1 = tl.load(NORM + at, mask=m, other=0.0, cache_modifier=".cg")
    w = tl.load(W + cols).to(tl.float32)
    norm = _round_bf16(_widen(x1) * rstd[:, None] * w[None, :])
    tl.store(NORM + at, norm, mask=m, eviction_policy=HINT)
    if OUT != "bf16":
        groups = tl.reshape(_widen(norm), [BLOCK_M, WIDTH // 32, 32])
        amax = tl.max(tl.abs(groups), axis=2)
        bits = (tl.maximum(amax, 1e-10) * INV_448).to(tl.int32, bitcast=True)
        # Normal and positive by the floor above, so this is the exponent of the next power of two.
        code = (bits + 0x7FFFFF) >> 23
        code = tl.minimum(tl.maximum(code, 1), 254)
        factor = ((254 - code) << 23).to(tl.float32, bitcast=True)
        scaled = tl.minimum(tl.maximum(groups * factor[:, :, None], -448.0), 448.0)
        quantised = scaled.to(tl.float8e4nv)
        if OUT == "fp8_grid":
            scale = (code << 23).to(tl.float32, bitcast=True)
            grid = _round_bf16(quantised.to(tl.float32) * scale[:, :, None])
            tl.store(GRID + at, tl.reshape(grid, [BLOCK_M, WIDTH]), mask=m, eviction_policy=HINT)
        else:
            codes = tl.reshape(quantised, [BLOCK_M, WIDTH])
            tl.store(CODES + at, codes, mask=m, eviction_policy=HINT)
            group = col0 // 32 + tl.arange(0, WIDTH // 32)
            tl.store(SCALES + tok[:, None] * (H // 32) + group[None, :], code.to(tl.uint8), mask=m)


@triton.jit
def _reciprocal(x):
    """1 / x to within one unit in the last place, without the care for subnormals."""
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _row_softmax(a, b, c, d, eps):
    top = tl.maximum(tl.maximum(a, b), tl.maximum(c, d))
    a, b, c, d = tl.exp(a - top), tl.exp(b - top), tl.exp(c - top), tl.exp(d - top)
    inv = _reciprocal(a + b + c + d)
    return a * inv + eps, b * inv + eps, c * inv + eps, d * inv + eps


@triton.jit
def _normalise4(a, b, c, d, eps):
    inv = _reciprocal((a + b) + (c + d + eps))
    return a * inv, b * inv, c * inv, d * inv


@triton.jit
def _load_parts(
    PART, block, share, tokens, s,
    BLOCK_M: tl.constexpr, S: tl.constexpr, TOKENS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Partial sums of splits s to s + CHUNK for the tokens of one share: [CHUNK, TOKENS, 32]."""
    si = s + tl.arange(0, CHUNK)[:, None, None]
    mi = share * TOKENS + tl.arange(0, TOKENS)[None, :, None]
    n = tl.arange(0, PART_COLS)[None, None, :]
    at = ((block * S + si) * BLOCK_M + mi) * PART_COLS + n
    wanted = (si < S) & (mi < tokens) & (n <= SUMSQ_COL)
    return tl.load(PART + at, mask=wanted, other=0.0, cache_modifier=".cg")


@triton.jit
def _pick(v, n, i: tl.constexpr):
    """Column i of v [tokens, 32]."""
    return tl.sum(tl.where(n == i, v, 0.0), axis=1)


@triton.jit
def _gates_share(
    m, PRE_OUT, POST_OUT, COMB_OUT, SCALE, BASE, block, share, T,
    rms_eps, pre_eps, sinkhorn_eps, post_mult,
    H: tl.constexpr, BLOCK_M: tl.constexpr, ITERS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Store the next pre, post and comb of one share's tokens from their sums m [TOKENS, 32]."""
    mi = share * TOKENS + tl.arange(0, TOKENS)
    n = tl.arange(0, PART_COLS)[None, :]
    rstd = tl.rsqrt(_pick(m, n, SUMSQ_COL) / (4 * H) + rms_eps)
    which = tl.where(n < 4, 0, tl.where(n < 8, 1, 2))
    v = m * rstd[:, None] * tl.load(SCALE + which) + tl.load(BASE + n, mask=n < 24, other=0.0)

    tok = block * BLOCK_M + mi
    valid = tok < T
    gate = tl.sigmoid(v)
    tl.store(PRE_OUT + tok[:, None] * 4 + n, gate + pre_eps, mask=valid[:, None] & (n < 4))
    there = valid[:, None] & (n >= 4) & (n < 8)
    tl.store(POST_OUT + tok[:, None] * 4 + (n - 4), post_mult * gate, mask=there)

    a0, a1, a2, a3 = _pick(v, n, 8), _pick(v, n, 9), _pick(v, n, 10), _pick(v, n, 11)
    b0, b1, b2, b3 = _pick(v, n, 12), _pick(v, n, 13), _pick(v, n, 14), _pick(v, n, 15)
    c0, c1, c2, c3 = _pick(v, n, 16), _pick(v, n, 17), _pick(v, n, 18), _pick(v, n, 19)
    d0, d1, d2, d3 = _pick(v, n, 20), _pick(v, n, 21), _pick(v, n, 22), _pick(v, n, 23)
    a0, a1, a2, a3 = _row_softmax(a0, a1, a2, a3, sinkhorn_eps)
    b0, b1, b2, b3 = _row_softmax(b0, b1, b2, b3, sinkhorn_eps)
    c0, c1, c2, c3 = _row_softmax(c0, c1, c2, c3, sinkhorn_eps)
    d0, d1, d2, d3 = _row_softmax(d0, d1, d2, d3, sinkhorn_eps)
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
    rows = (a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3)
    for i in tl.static_range(16):
        tl.store(COMB_OUT + tok * 16 + i, rows[i], mask=valid)


@triton.jit
def _x1_rstd(PX, block, norm_eps, H: tl.constexpr, BLOCK_M: tl.constexpr, S: tl.constexpr):
    """rsqrt(mean(x1**2) + eps) of a block's tokens from every split's partial sum."""
    S2: tl.constexpr = triton.next_power_of_2(S)
    si = tl.arange(0, S2)
    at = PX + (block * S + si)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
    px = tl.load(at, mask=si[:, None] < S, other=0.0, cache_modifier=".cg")
    return tl.rsqrt(tl.sum(px, axis=0) / H + norm_eps)


@triton.jit(do_not_specialize=["T"])
def mega_mhc_kernel(
    R, Y, PRE, POST, COMB, FN, SCALE, BASE, W,
    R_OUT, NORM, GRID, CODES, SCALES, PRE_OUT, POST_OUT, COMB_OUT,
    PART, PX, COUNT, FLAG,
    T, rms_eps, norm_eps, pre_eps, sinkhorn_eps, post_mult,
    H: tl.constexpr, BLOCK_M: tl.constexpr, TILE_K: tl.constexpr, S: tl.constexpr,
    MIX: tl.constexpr, IDENTITY: tl.constexpr, OUT: tl.constexpr, ITERS: tl.constexpr,
    SPIN: tl.constexpr, STREAM: tl.constexpr, STAGES: tl.constexpr, WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
):  # fmt: skip
    C: tl.constexpr = H // S
    NT: tl.constexpr = C // TILE_K
    # Partial sums that a program adds at a time: 4096, or 16 registers of each of 256 threads.
    S2: tl.constexpr = triton.next_power_of_2(S)
    CHUNK: tl.constexpr = S2 if S2 * TOKENS <= 128 else 128 // TOKENS
    HINT: tl.constexpr = "evict_first" if STREAM else ""
    pid = tl.program_id(0)
    block, split = pid // S, pid % S
    mi = tl.arange(0, BLOCK_M)
    tok = block * BLOCK_M + mi
    valid = tok < T
    col0 = split * C
    k = tl.arange(0, TILE_K)

    if MIX:
        p0 = _column(POST, tok, valid, 4, 0)
        p1 = _column(POST, tok, valid, 4, 1)
        p2 = _column(POST, tok, valid, 4, 2)
        p3 = _column(POST, tok, valid, 4, 3)
        c00 = _column(COMB, tok, valid, 16, 0)
        c01 = _column(COMB, tok, valid, 16, 1)
        c02 = _column(COMB, tok, valid, 16, 2)
        c03 = _column(COMB, tok, valid, 16, 3)
        c10 = _column(COMB, tok, valid, 16, 4)
        c11 = _column(COMB, tok, valid, 16, 5)
        c12 = _column(COMB, tok, valid, 16, 6)
        c13 = _column(COMB, tok, valid, 16, 7)
        c20 = _column(COMB, tok, valid, 16, 8)
        c21 = _column(COMB, tok, valid, 16, 9)
        c22 = _column(COMB, tok, valid, 16, 10)
        c23 = _column(COMB, tok, valid, 16, 11)
        c30 = _column(COMB, tok, valid, 16, 12)
        c31 = _column(COMB, tok, valid, 16, 13)
        c32 = _column(COMB, tok, valid, 16, 14)
        c33 = _column(COMB, tok, valid, 16, 15)
    if not IDENTITY:
        q0 = _column(PRE, tok, valid, 4, 0)
        q1 = _column(PRE, tok, valid, 4, 1)
        q2 = _column(PRE, tok, valid, 4, 2)
        q3 = _column(PRE, tok, valid, 4, 3)

    acc = tl.zeros([64, BLOCK_M], tl.float32)
    ss = tl.zeros([BLOCK_M, TILE_K // 8], tl.float32)
    sx = tl.zeros([BLOCK_M, TILE_K // 8], tl.float32)
    k4 = tl.arange(0, 4 * TILE_K)
    row = valid[:, None]
    for t in tl.range(NT, num_stages=STAGES):
        cols = col0 + t * TILE_K + k
        fn = _load_fn(FN, (col0 + t * TILE_K) * 4 + k4, H)
        r0, r1, r2, r3, y = _load_tile(R, Y, tok, valid, cols, H, MIX, HINT)
        if MIX:
            f0, f1, f2, f3 = _widen(r0), _widen(r1), _widen(r2), _widen(r3)
            fy = _widen(y)
            r0 = _mix(f0, f1, f2, f3, fy, p0, c00, c10, c20, c30)
            r1 = _mix(f0, f1, f2, f3, fy, p1, c01, c11, c21, c31)
            r2 = _mix(f0, f1, f2, f3, fy, p2, c02, c12, c22, c32)
            r3 = _mix(f0, f1, f2, f3, fy, p3, c03, c13, c23, c33)
        acc = _project(acc, fn, r0, r1, r2, r3)
        g0, g1, g2, g3 = _widen(r0), _widen(r1), _widen(r2), _widen(r3)
        ss += _sums(g0, g1, g2, g3)
        if IDENTITY:
            x1 = r0
        else:
            x1 = _round_bf16(q0 * g0 + q1 * g1 + q2 * g2 + q3 * g3)
        x = _widen(x1)
        sx += tl.sum(_runs(x * x), axis=2)
        if MIX:
            to = R_OUT + tok[:, None] * (4 * H) + cols[None, :]
            tl.store(to, r0, mask=row, eviction_policy=HINT)
            tl.store(to + H, r1, mask=row, eviction_policy=HINT)
            tl.store(to + 2 * H, r2, mask=row, eviction_policy=HINT)
            tl.store(to + 3 * H, r3, mask=row, eviction_policy=HINT)
        tl.store(NORM + tok[:, None] * H + cols[None, :], x1, mask=row)

    part = PART + (block * S + split) * (BLOCK_M * PART_COLS)
    # Rows 16w + r and 16w + 8 + r are hi and lo of gate 8w + r, and lie in one thread.
    gates = tl.reshape(tl.sum(tl.reshape(acc, [4, 2, 8, BLOCK_M]), axis=1), [PART_COLS, BLOCK_M])
    n = tl.arange(0, PART_COLS)
    tl.store(part + mi[None, :] * PART_COLS + n[:, None], gates, mask=n[:, None] < 24)
    tl.store(part + mi * PART_COLS + SUMSQ_COL, tl.sum(ss, axis=1))
    tl.store(PX + (block * S + split) * BLOCK_M + mi, tl.sum(sx, axis=1))
    tl.debug_barrier()
    seen = tl.atomic_add(COUNT + block, 1, sem="acq_rel", scope="gpu")
    arrived = seen & ARRIVALS
    target = arrived - arrived % S + S
    last = arrived + 1 == target
    done = last
    free = tl.full([], 0, tl.int64)
    polls = 0
    while (not done) & (polls < SPIN):
        now = tl.atomic_add(COUNT + block, 0, sem="acquire", scope="gpu")
        done = (now & ARRIVALS) >= target
        polls += 1

    if not done:
        tl.atomic_xchg(FLAG + block * S + split, target, sem="release", scope="gpu")
        now = tl.atomic_add(COUNT + block, HANDOFF, sem="acq_rel", scope="gpu")
        if (now & ARRIVALS) >= target:
            # Too late: the last arriver may not have seen the hand-off. Whoever claims the flag
            # does the share and closes the hand-off.
            flag = FLAG + block * S + split
            done = tl.atomic_cas(flag, target, free, sem="acq_rel", scope="gpu") == target
            if done:
                tl.atomic_add(COUNT + block, -HANDOFF, sem="relaxed", scope="gpu")

    # Turn 0 is this program's own share; the last arriver then looks for those handed off.
    turn = 0
    turns = done.to(tl.int32)
    if last & ((seen >> 48) > 0):
        turns = S + 1
    while turn < turns:
        share = tl.where(turn == 0, split, turn - 1)
        claimed = turn == 0
        if turn > 0:
            flag = FLAG + block * S + share
            claimed = tl.atomic_cas(flag, target, free, sem="acq_rel", scope="gpu") == target
            if claimed:
                tl.atomic_add(COUNT + block, -HANDOFF, sem="relaxed", scope="gpu")
        if claimed:
            tokens = tl.minimum(T - block * BLOCK_M, BLOCK_M)
            # On their way while the columns are normalised.
            parts = _load_parts(PART, block, share, tokens, 0, BLOCK_M, S, TOKENS, CHUNK)
            rstd = _x1_rstd(PX, block, norm_eps, H, BLOCK_M, S)
            for t in tl.range(C // WIDTH, num_stages=C // WIDTH):
                _norm_tile(
                    rstd, W, NORM, GRID, CODES, SCALES, tok, valid, share * C + t * WIDTH,
                    H, BLOCK_M, WIDTH, OUT, HINT,
                )  # fmt: skip
            if share * TOKENS < tokens:
                for s in tl.range(CHUNK, S, CHUNK, loop_unroll_factor=4):
                    parts += _load_parts(PART, block, share, tokens, s, BLOCK_M, S, TOKENS, CHUNK)
                _gates_share(
                    tl.sum(parts, axis=0), PRE_OUT, POST_OUT, COMB_OUT, SCALE, BASE, block, share,
                    T, rms_eps, pre_eps, sinkhorn_eps, post_mult, H, BLOCK_M, ITERS, TOKENS,
                )  # fmt: skip
        turn += 1
