"""The Hopper mega-mHC for few tokens, in Gluon: one tile a program.

Program (block, split) owns ``BLOCK_M`` tokens and ``COLS = H / NUM_KSPLIT`` columns of every
stream, one tile. It copies the tile, y and its part of ``fn`` to shared memory, mixes it slab by
slab in the wide layout, in which a warp reads and writes whole runs of a token's columns (runs of
64 bytes take the memory twice as long), and leaves the mixed streams where the tensor cores read
them for the gate projection. Then it publishes its partial sums.

When the block is complete, every program finishes its share: it normalises its columns, x1 kept in
shared memory, and computes the gates of a few tokens. One that polls too long hands its share to
the last arriver of the block, so no program ever waits on one that cannot run.
"""

from __future__ import annotations

import triton.language as tl

from . import policy
from .language import (
    async_load,
    barrier,
    commit_group,
    constexpr_function,
    fence,
    gl,
    jit,
    mma,
    mma_wait,
    wait_group,
)
from .seam import (
    PART_COLS,
    SUMSQ_COL,
    await_block,
    carried_layout,
    claim,
    collapse,
    complete,
    finish_share,
    hand_off,
    keep_slab,
    load_slab,
    load_x1,
    mix_slab,
    mma_layout,
    operand_layout,
    slab_rows,
    store_part,
    tile_at,
    wide_layout,
)

whole_fn = constexpr_function(policy.whole_fn)


@jit
def _copy_slab(s0, s1, s2, s3, sy, at, y_at, m, H: tl.constexpr, MIX: tl.constexpr):
    """Start copying the four streams and y of one slab to shared memory [slab, COLS] each."""
    async_load(s0, at, mask=m)
    async_load(s1, at + H, mask=m)
    async_load(s2, at + 2 * H, mask=m)
    async_load(s3, at + 3 * H, mask=m)
    if MIX:
        async_load(sy, y_at, mask=m)
    commit_group()


@jit
def _load_carried(
    POST, COMB, PRE, first, T, COLS: tl.constexpr, WARPS: tl.constexpr,
    MIX: tl.constexpr, IDENTITY: tl.constexpr,
):  # fmt: skip
    """The carried gates of one slab, float32 [slab, 4 or 16] (any of them in place of none)."""
    post, comb, pre = first, first, first
    if MIX:
        post = _carried(POST, first, T, 4, COLS, WARPS)
        comb = _carried(COMB, first, T, 16, COLS, WARPS)
    if not IDENTITY:
        pre = _carried(PRE, first, T, 4, COLS, WARPS)
    return post, comb, pre


@jit
def _carried(P, first, T, WIDTH: tl.constexpr, COLS: tl.constexpr, WARPS: tl.constexpr):
    """Carried gates [slab, WIDTH] of the tokens from ``first`` on."""
    layout: tl.constexpr = carried_layout(WARPS, COLS, WIDTH)
    tok = first + gl.arange(0, slab_rows(WARPS, COLS), gl.SliceLayout(1, layout))
    n = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    return gl.load(P + tok[:, None] * WIDTH + n[None, :], mask=(tok < T)[:, None])


@jit
def _copy_rows(
    to, FN, first: tl.constexpr, ROWS: tl.constexpr, H: tl.constexpr, WARPS: tl.constexpr
):
    """Start copying rows ``first`` on of packed fn to the same rows of shared memory."""
    layout: tl.constexpr = wide_layout(WARPS, to.shape[1])
    row = gl.arange(0, ROWS, gl.SliceLayout(1, layout))[:, None]
    col = gl.arange(0, to.shape[1], gl.SliceLayout(0, layout))[None, :]
    at = FN + (first + row) * (4 * H) + col
    async_load(to.slice(first, ROWS), at)


@jit
def _copy_fn(to, FN, H: tl.constexpr, WARPS: tl.constexpr):
    """Start copying fn of one stream and tile to shared memory [64, COLS], of which 48 are used."""
    _copy_rows(to, FN, 0, 32, H, WARPS)
    _copy_rows(to, FN, 32, 16, H, WARPS)
    commit_group()


@jit
def _start_tile(
    s0, s1, s2, s3, sy, fn0, fn1, fn2, fn3, R, Y, FN, tok, col, first, T,
    H: tl.constexpr, SLABS: tl.constexpr, WARPS: tl.constexpr, MIX: tl.constexpr,
):  # fmt: skip
    """Start copying a tile's streams, y and fn to shared memory, slab by slab.

    ``tok`` are the tokens of the first slab, ``col`` the tile's columns from ``first`` on.
    """
    ROWS: tl.constexpr = tok.shape[0]
    at = R + tok[:, None] * (4 * H) + col[None, :]
    y_at = at
    if MIX:
        y_at = Y + tok[:, None] * H + col[None, :]
    for slab in gl.static_range(SLABS):
        m = (tok + slab * ROWS < T)[:, None]
        _copy_slab(
            s0.slice(slab * ROWS, ROWS), s1.slice(slab * ROWS, ROWS),
            s2.slice(slab * ROWS, ROWS), s3.slice(slab * ROWS, ROWS),
            sy.slice(slab * ROWS, ROWS), at + slab * ROWS * 4 * H, y_at + slab * ROWS * H,
            m, H, MIX,
        )  # fmt: skip
    _copy_fn(fn0, FN + first, H, WARPS)
    _copy_fn(fn1, FN + H + first, H, WARPS)
    if whole_fn(col.shape[0]):
        _copy_fn(fn2, FN + 2 * H + first, H, WARPS)
        _copy_fn(fn3, FN + 3 * H + first, H, WARPS)


@jit
def _mix_tile(
    s0, s1, s2, s3, sy, fn0, fn1, fn2, fn3, x1s,
    R, Y, PRE, POST, COMB, FN, R_OUT, PART, PX, block, split, T,
    H: tl.constexpr, BLOCK_M: tl.constexpr, S: tl.constexpr, WARPS: tl.constexpr,
    MIX: tl.constexpr, IDENTITY: tl.constexpr,
):  # fmt: skip
    """Copy and mix one tile, store R', leave x1 in shared memory, store the sums."""
    COLS: tl.constexpr = H // S
    ROWS: tl.constexpr = slab_rows(WARPS, COLS)
    SLABS: tl.constexpr = BLOCK_M // ROWS
    WHOLE_FN: tl.constexpr = whole_fn(COLS)
    wide: tl.constexpr = wide_layout(WARPS, COLS)
    row = gl.arange(0, ROWS, gl.SliceLayout(1, wide))
    token0, col0 = block * BLOCK_M, split * COLS
    base = token0 + row
    col = col0 + gl.arange(0, COLS, gl.SliceLayout(0, wide))
    part = PART + (block * S + split) * (BLOCK_M * PART_COLS)
    px = PX + (block * S + split) * BLOCK_M
    _start_tile(
        s0, s1, s2, s3, sy, fn0, fn1, fn2, fn3, R, Y, FN, base, col, col0, T,
        H, SLABS, WARPS, MIX,
    )  # fmt: skip
    for slab in gl.static_range(SLABS):
        post, comb, pre = _load_carried(
            POST, COMB, PRE, token0 + slab * ROWS, T, COLS, WARPS, MIX, IDENTITY
        )
        wait_group(SLABS - 1 - slab + (4 if WHOLE_FN else 2))
        r0, r1, r2, r3 = load_slab(s0, s1, s2, s3, slab * ROWS, COLS, WARPS)
        if MIX:
            y = sy.slice(slab * ROWS, ROWS).load(wide)
            r0, r1, r2, r3 = mix_slab(r0, r1, r2, r3, y, post, comb, COLS, WARPS)
            keep_slab(s0, s1, s2, s3, slab * ROWS, r0, r1, r2, r3)
            m = (base + slab * ROWS < T)[:, None]
            to = R_OUT + base[:, None] * (4 * H) + col[None, :] + slab * ROWS * 4 * H
            gl.store(to, r0, mask=m)
            gl.store(to + H, r1, mask=m)
            gl.store(to + 2 * H, r2, mask=m)
            gl.store(to + 3 * H, r3, mask=m)
        x1, sumx, sumsq = collapse(r0, r1, r2, r3, pre, COLS, WARPS, IDENTITY)
        x1s.slice(slab * ROWS, ROWS).store(x1)
        gl.store(px + row + slab * ROWS, sumx)
        gl.store(part + (row + slab * ROWS) * PART_COLS + SUMSQ_COL, sumsq)

    acc = gl.full([64, BLOCK_M], 0.0, tl.float32, mma_layout(WARPS, BLOCK_M))
    wait_group(0)
    fence()
    acc = mma(fn0, s0.permute((1, 0)), acc)
    acc = mma(fn1, s1.permute((1, 0)), acc)
    if not WHOLE_FN:
        acc = mma_wait(acc)
        _copy_fn(fn2, FN + 2 * H + col0, H, WARPS)
        _copy_fn(fn3, FN + 3 * H + col0, H, WARPS)
        wait_group(0)
        fence()
    acc = mma(fn2, s2.permute((1, 0)), acc)
    acc = mma(fn3, s3.permute((1, 0)), acc)
    acc = mma_wait(acc)
    store_part(part, acc)


@jit(do_not_specialize=["T"])
def tile_kernel(
    R, Y, PRE, POST, COMB, FN, SCALE, BASE, W,
    R_OUT, NORM, GRID, CODES, SCALES, PRE_OUT, POST_OUT, COMB_OUT,
    PART, PX, COUNT, FLAG,
    T, rms_eps, norm_eps, pre_eps, sinkhorn_eps, post_mult,
    H: tl.constexpr, BLOCK_M: tl.constexpr, S: tl.constexpr,
    MIX: tl.constexpr, IDENTITY: tl.constexpr, OUT: tl.constexpr, ITERS: tl.constexpr,
    SPIN: tl.constexpr, WARPS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    COLS: tl.constexpr = H // S
    WHOLE_FN: tl.constexpr = whole_fn(COLS)
    operand: tl.constexpr = operand_layout(COLS)
    wide: tl.constexpr = wide_layout(WARPS, COLS)
    rows: tl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    s0 = gl.allocate_shared_memory(tl.bfloat16, [BLOCK_M, COLS], operand)
    s1 = gl.allocate_shared_memory(tl.bfloat16, [BLOCK_M, COLS], operand)
    s2 = gl.allocate_shared_memory(tl.bfloat16, [BLOCK_M, COLS], operand)
    s3 = gl.allocate_shared_memory(tl.bfloat16, [BLOCK_M, COLS], operand)
    sy = gl.allocate_shared_memory(tl.bfloat16, [BLOCK_M, COLS], operand)
    fn0 = gl.allocate_shared_memory(tl.bfloat16, [64, COLS], operand)
    fn1 = gl.allocate_shared_memory(tl.bfloat16, [64, COLS], operand)
    fn2, fn3 = fn0, fn1
    if WHOLE_FN:
        fn2 = gl.allocate_shared_memory(tl.bfloat16, [64, COLS], operand)
        fn3 = gl.allocate_shared_memory(tl.bfloat16, [64, COLS], operand)
    x1s = gl.allocate_shared_memory(tl.bfloat16, [BLOCK_M, COLS], rows)
    pid = gl.program_id(0)
    block, split = pid // S, pid % S

    _mix_tile(
        s0, s1, s2, s3, sy, fn0, fn1, fn2, fn3, x1s,
        R, Y, PRE, POST, COMB, FN, R_OUT, PART, PX, block, split, T,
        H, BLOCK_M, S, WARPS, MIX, IDENTITY,
    )  # fmt: skip
    barrier()
    seen = gl.atomic_add(COUNT + block, 1, sem="acq_rel", scope="gpu")
    last = complete(seen + 1, S)
    ready = last
    if not last:
        ready, _ = await_block(COUNT, block, S, SPIN)
    if not ready:
        tok, at = tile_at(block, split, H, BLOCK_M, COLS, wide)
        gl.store(NORM + at, x1s.load(wide), mask=(tok < T)[:, None])
        if complete(hand_off(COUNT, FLAG, block, split, S), S):
            ready = claim(COUNT, FLAG, block, split, S)
    if ready:
        x1 = x1s.load(wide)
        finish_share(
            x1, W, NORM, GRID, CODES, SCALES, PRE_OUT, POST_OUT, COMB_OUT, SCALE, BASE,
            PART, PX, COUNT, block, split, T,
            rms_eps, norm_eps, pre_eps, sinkhorn_eps, post_mult,
            H, BLOCK_M, S, WARPS, TOKENS, OUT, ITERS, "", True,
        )  # fmt: skip
    if last & ((seen >> 48) > 0):
        for share in range(S):
            if claim(COUNT, FLAG, block, share, S):
                x1 = load_x1(NORM, block, share, T, H, BLOCK_M, COLS, wide)
                finish_share(
                    x1, W, NORM, GRID, CODES, SCALES, PRE_OUT, POST_OUT, COMB_OUT, SCALE, BASE,
                    PART, PX, COUNT, block, share, T,
                    rms_eps, norm_eps, pre_eps, sinkhorn_eps, post_mult,
                    H, BLOCK_M, S, WARPS, TOKENS, OUT, ITERS, "", True,
                )  # fmt: skip
