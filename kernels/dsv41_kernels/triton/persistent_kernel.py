"""The Hopper mega-mHC for many tokens, in Gluon: programs that stay, their warps specialised.

Program (group, split) keeps the part of ``fn`` of its ``COLS = H / NUM_KSPLIT`` columns in shared
memory and goes through every block of ``BLOCK_M`` tokens of its group, a tile each. Its warps are

- mixers: wait for a tile that the copy engine brought two tiles ahead, mix it in place, send it
  out through the copy engine, leave x1 in the norm buffer, project it on the tensor cores and
  publish its partial sums;
- one announcer: makes the sums visible and counts the tile as arrived, so that no mixer waits for
  its stores to reach the memory;
- finishers: once every program of a block has arrived, normalise this program's columns of it and,
  in turn, compute the gates of some of its tokens.

A finisher that polls too long hands its share off; every finisher that then sees the block
complete claims what was handed off, the last arriver's certainly does. No program ever waits on
one that cannot run.
"""

from __future__ import annotations

import triton.language as tl

from . import policy
from .language import (
    async_load,
    barrier,
    commit_group,
    constant,
    constexpr_function,
    fence,
    gl,
    jit,
    load_box,
    mbarrier,
    mma,
    mma_wait,
    rows_of,
    store_box,
    store_wait,
    wait_group,
    warp_specialize,
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
    wide_layout,
)

FN_COLS, RING = constant(policy.FN_COLS), constant(policy.RING)
FINISH_WARPS = constant(policy.FINISH_WARPS)
FINISH_REGS, ANNOUNCE_REGS = constant(200), constant(24)  # a thread; the mixers get the rest
fn_boxes = constexpr_function(policy.fn_boxes)


@jit
def _start_tile(
    s0, s1, s2, s3, sy, bar, R, Y, block, split, T,
    H: tl.constexpr, BLOCK_M: tl.constexpr, COLS: tl.constexpr, MIX: tl.constexpr,
):  # fmt: skip
    """Let the copy engine bring a tile's streams and y; ``bar`` counts their bytes."""
    row, col = block * BLOCK_M, split * COLS
    mbarrier.expect(bar, (5 if MIX else 4) * BLOCK_M * COLS * 2)
    load_box(R, row, col, T, 4 * H, bar, s0)
    load_box(R, row, H + col, T, 4 * H, bar, s1)
    load_box(R, row, 2 * H + col, T, 4 * H, bar, s2)
    load_box(R, row, 3 * H + col, T, 4 * H, bar, s3)
    if MIX:
        load_box(Y, row, col, T, H, bar, sy)


@jit
def _start_fn(fns, bar, FN, split, H: tl.constexpr, COLS: tl.constexpr):
    """Let the copy engine bring fn's 48 rows of every stream, 16 rows and 64 columns a box."""
    mbarrier.expect(bar, 4 * 48 * COLS * 2)
    for stream in gl.static_range(4):
        for part in gl.static_range(COLS // FN_COLS):
            for third in gl.static_range(3):
                box = fns.index(3 * (stream * (COLS // FN_COLS) + part) + third)
                col = stream * H + split * COLS + part * FN_COLS
                load_box(FN, 16 * third, col, 48, 4 * H, bar, box)


@jit
def _copy_gates(to, P, first, T, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, WARPS: tl.constexpr):
    """Start copying carried gates [BLOCK_M, WIDTH] of the tokens from ``first`` on."""
    layout: tl.constexpr = gl.BlockedLayout([1, 4], [128 // WIDTH, WIDTH // 4], [WARPS, 1], [1, 0])
    tok = first + gl.arange(0, BLOCK_M, gl.SliceLayout(1, layout))
    n = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    async_load(to, P + tok[:, None] * WIDTH + n[None, :], mask=(tok < T)[:, None])


@jit
def _start_gates(
    pre, post, comb, PRE, POST, COMB, first, T,
    BLOCK_M: tl.constexpr, WARPS: tl.constexpr, MIX: tl.constexpr, IDENTITY: tl.constexpr,
):  # fmt: skip
    """Start copying the carried gates of a block."""
    if MIX:
        _copy_gates(post, POST, first, T, 4, BLOCK_M, WARPS)
        _copy_gates(comb, COMB, first, T, 16, BLOCK_M, WARPS)
    if not IDENTITY:
        _copy_gates(pre, PRE, first, T, 4, BLOCK_M, WARPS)
    commit_group()


@jit
def _mix_tile(
    s0, s1, s2, s3, sy, pre, post, comb, NORM, PART, PX, block, split, T,
    H: tl.constexpr, BLOCK_M: tl.constexpr, S: tl.constexpr, WARPS: tl.constexpr,
    MIX: tl.constexpr, IDENTITY: tl.constexpr,
):  # fmt: skip
    """Mix a tile in place, store x1 and the sums of squares."""
    COLS: tl.constexpr = H // S
    ROWS: tl.constexpr = slab_rows(WARPS, COLS)
    wide: tl.constexpr = wide_layout(WARPS, COLS)
    by_four: tl.constexpr = carried_layout(WARPS, COLS, 4)
    row = gl.arange(0, ROWS, gl.SliceLayout(1, wide))
    col = split * COLS + gl.arange(0, COLS, gl.SliceLayout(0, wide))
    part = PART + (block * S + split) * (BLOCK_M * PART_COLS)
    px = PX + (block * S + split) * BLOCK_M
    base = block * BLOCK_M + row
    for slab in gl.static_range(BLOCK_M // ROWS):
        r0, r1, r2, r3 = load_slab(s0, s1, s2, s3, slab * ROWS, COLS, WARPS)
        if MIX:
            p = post.slice(slab * ROWS, ROWS).load(by_four)
            c = comb.slice(slab * ROWS, ROWS).load(carried_layout(WARPS, COLS, 16))
            y = sy.slice(slab * ROWS, ROWS).load(wide)
            r0, r1, r2, r3 = mix_slab(r0, r1, r2, r3, y, p, c, COLS, WARPS)
            keep_slab(s0, s1, s2, s3, slab * ROWS, r0, r1, r2, r3)
        q = r0
        if not IDENTITY:
            q = pre.slice(slab * ROWS, ROWS).load(by_four)
        x1, sumx, sumsq = collapse(r0, r1, r2, r3, q, COLS, WARPS, IDENTITY)
        tok = base + slab * ROWS
        gl.store(NORM + tok[:, None] * H + col[None, :], x1, mask=(tok < T)[:, None])
        gl.store(px + row + slab * ROWS, sumx)
        gl.store(part + (row + slab * ROWS) * PART_COLS + SUMSQ_COL, sumsq)


@jit
def _project(fns, tile, stream: tl.constexpr, acc, zero):
    """Start adding fn [64 rows, of which 48 count] times one stream [BLOCK_M, COLS] to acc."""
    PARTS: tl.constexpr = tile.shape[1] // FN_COLS
    for part in gl.static_range(PARTS):
        a = rows_of(fns, 3 * (stream * PARTS + part), zero, 64, operand_layout(FN_COLS))
        b = tile.slice(part * FN_COLS, FN_COLS, 1).permute((1, 0))
        acc = mma(a, b, acc)
    return acc


@jit
def _mixer(
    s0, s1, s2, s3, sy, fns, pre, post, comb, tiles, fn_bar, mixed, free,
    R, Y, PRE, POST, COMB, R_OUT, NORM, PART, PX, T, first, groups, split, count,
    H: tl.constexpr, BLOCK_M: tl.constexpr, S: tl.constexpr, WARPS: tl.constexpr,
    MIX: tl.constexpr, IDENTITY: tl.constexpr,
):  # fmt: skip
    """Mix and project every tile of this program."""
    COLS: tl.constexpr = H // S
    col = split * COLS
    _start_gates(
        pre.index(0), post.index(0), comb.index(0), PRE, POST, COMB, first * BLOCK_M, T,
        BLOCK_M, WARPS, MIX, IDENTITY,
    )  # fmt: skip
    for turn in range(count):
        stage, slot = turn % 2, turn % RING
        block = first + turn * groups
        row = block * BLOCK_M
        t0, t1, t2, t3 = s0.index(stage), s1.index(stage), s2.index(stage), s3.index(stage)
        ty = sy.index(stage)
        wait_group(0)
        barrier()
        _start_gates(
            pre.index(1 - stage), post.index(1 - stage), comb.index(1 - stage), PRE, POST, COMB,
            (block + groups) * BLOCK_M, T, BLOCK_M, WARPS, MIX, IDENTITY,
        )  # fmt: skip
        mbarrier.wait(tiles.index(stage), (turn // 2) % 2)
        _mix_tile(
            t0, t1, t2, t3, ty, pre.index(stage), post.index(stage), comb.index(stage),
            NORM, PART, PX, block, split, T, H, BLOCK_M, S, WARPS, MIX, IDENTITY,
        )  # fmt: skip
        mbarrier.wait(fn_bar, 0)
        fence()
        barrier()
        if MIX:
            store_box(R_OUT, row, col, T, 4 * H, t0)
            store_box(R_OUT, row, H + col, T, 4 * H, t1)
            store_box(R_OUT, row, 2 * H + col, T, 4 * H, t2)
            store_box(R_OUT, row, 3 * H + col, T, 4 * H, t3)
        acc = gl.full([64, BLOCK_M], 0.0, tl.float32, mma_layout(WARPS, BLOCK_M))
        zero = turn >> 20
        acc = _project(fns, t0, 0, acc, zero)
        acc = _project(fns, t1, 1, acc, zero)
        acc = _project(fns, t2, 2, acc, zero)
        acc = _project(fns, t3, 3, acc, zero)
        acc = mma_wait(acc)
        store_part(PART + (block * S + split) * (BLOCK_M * PART_COLS), acc)
        mbarrier.wait(free.index(slot), (turn // RING + 1) % 2)
        barrier()
        mbarrier.arrive(mixed.index(slot), count=1)
        if turn + 2 < count:
            store_wait(0)
            _start_tile(
                t0, t1, t2, t3, ty, tiles.index(stage), R, Y, block + 2 * groups, split, T,
                H, BLOCK_M, COLS, MIX,
            )  # fmt: skip
    store_wait(0)


@jit
def _announcer(mixed, arrived, COUNT, first, groups, count):
    """Count every tile as arrived once its stores are visible to the whole GPU."""
    for turn in range(count):
        slot = turn % RING
        mbarrier.wait(mixed.index(slot), (turn // RING) % 2)
        gl.atomic_add(COUNT + first + turn * groups, 1, sem="acq_rel", scope="gpu")
        barrier()
        mbarrier.arrive(arrived.index(slot), count=1)


@jit
def _finisher(
    mixed, arrived, free,
    W, NORM, GRID, CODES, SCALES, PRE_OUT, POST_OUT, COMB_OUT, SCALE, BASE, PART, PX, COUNT, FLAG,
    T, first, groups, split, count, rms_eps, norm_eps, pre_eps, sinkhorn_eps, post_mult,
    H: tl.constexpr, BLOCK_M: tl.constexpr, S: tl.constexpr, TOKENS: tl.constexpr,
    OUT: tl.constexpr, ITERS: tl.constexpr, SPIN: tl.constexpr,
):  # fmt: skip
    """Finish this program's share of every block of its group, and what was handed off."""
    COLS: tl.constexpr = H // S
    wide: tl.constexpr = wide_layout(FINISH_WARPS, COLS)
    for turn in range(count):
        slot, phase = turn % RING, (turn // RING) % 2
        block = first + turn * groups
        mbarrier.wait(mixed.index(slot), phase)
        x1 = load_x1(NORM, block, split, T, H, BLOCK_M, COLS, wide)
        mbarrier.wait(arrived.index(slot), phase)
        barrier()
        mbarrier.arrive(free.index(slot), count=1)
        # From here on a complete block shows every hand-off that was made before it was complete.
        wanted, opened = await_block(COUNT, block, S, SPIN)
        over = wanted
        if not wanted:
            now = hand_off(COUNT, FLAG, block, split, S)
            over = complete(now, S)
            opened = (now >> 48) + 1
        shares = 1
        if over & (opened > 0):
            shares = S + 1
        for step in range(shares):
            share = split
            if step > 0:
                share = step - 1
                wanted = claim(COUNT, FLAG, block, share, S)
                if wanted:
                    x1 = load_x1(NORM, block, share, T, H, BLOCK_M, COLS, wide)
            if wanted:
                finish_share(
                    x1, W, NORM, GRID, CODES, SCALES, PRE_OUT, POST_OUT, COMB_OUT, SCALE, BASE,
                    PART, PX, COUNT, block, share, T,
                    rms_eps, norm_eps, pre_eps, sinkhorn_eps, post_mult,
                    H, BLOCK_M, S, FINISH_WARPS, TOKENS, OUT, ITERS, "evict_first", False,
                )  # fmt: skip


@jit(do_not_specialize=["T", "groups"])
def persistent_kernel(
    R, Y, PRE, POST, COMB, FN, SCALE, BASE, W,
    R_OUT, NORM, GRID, CODES, SCALES, PRE_OUT, POST_OUT, COMB_OUT,
    PART, PX, COUNT, FLAG,
    T, groups, rms_eps, norm_eps, pre_eps, sinkhorn_eps, post_mult,
    H: tl.constexpr, BLOCK_M: tl.constexpr, S: tl.constexpr,
    MIX: tl.constexpr, IDENTITY: tl.constexpr, OUT: tl.constexpr, ITERS: tl.constexpr,
    SPIN: tl.constexpr, WARPS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    COLS: tl.constexpr = H // S
    operand: tl.constexpr = operand_layout(COLS)
    rows: tl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    one: tl.constexpr = mbarrier.MBarrierLayout()
    s0 = gl.allocate_shared_memory(tl.bfloat16, [2, BLOCK_M, COLS], operand)
    s1 = gl.allocate_shared_memory(tl.bfloat16, [2, BLOCK_M, COLS], operand)
    s2 = gl.allocate_shared_memory(tl.bfloat16, [2, BLOCK_M, COLS], operand)
    s3 = gl.allocate_shared_memory(tl.bfloat16, [2, BLOCK_M, COLS], operand)
    sy = gl.allocate_shared_memory(tl.bfloat16, [2, BLOCK_M, COLS], operand)
    fns = gl.allocate_shared_memory(
        tl.bfloat16, [fn_boxes(COLS), 16, FN_COLS], operand_layout(FN_COLS)
    )
    pre = gl.allocate_shared_memory(tl.float32, [2, BLOCK_M, 4], rows)
    post = gl.allocate_shared_memory(tl.float32, [2, BLOCK_M, 4], rows)
    comb = gl.allocate_shared_memory(tl.float32, [2, BLOCK_M, 16], rows)
    tiles = gl.allocate_shared_memory(tl.int64, [2, 1], one)
    fn_bar = gl.allocate_shared_memory(tl.int64, [1], one)
    mixed = gl.allocate_shared_memory(tl.int64, [RING, 1], one)
    arrived = gl.allocate_shared_memory(tl.int64, [RING, 1], one)
    free = gl.allocate_shared_memory(tl.int64, [RING, 1], one)
    pid = gl.program_id(0)
    first, split = pid // S, pid % S
    blocks = (T + BLOCK_M - 1) // BLOCK_M
    count = (blocks - first + groups - 1) // groups

    mbarrier.init(fn_bar, count=1)
    for stage in gl.static_range(2):
        mbarrier.init(tiles.index(stage), count=1)
    for slot in gl.static_range(RING):
        mbarrier.init(mixed.index(slot), count=1)
        mbarrier.init(arrived.index(slot), count=1)
        mbarrier.init(free.index(slot), count=1)
    barrier()
    for stage in gl.static_range(2):
        if stage < count:
            _start_tile(
                s0.index(stage), s1.index(stage), s2.index(stage), s3.index(stage),
                sy.index(stage), tiles.index(stage), R, Y, first + stage * groups, split, T,
                H, BLOCK_M, COLS, MIX,
            )  # fmt: skip
        if stage == 0:
            _start_fn(fns, fn_bar, FN, split, H, COLS)
    warp_specialize(
        [
            (
                _mixer,
                (
                    s0, s1, s2, s3, sy, fns, pre, post, comb, tiles, fn_bar, mixed, free,
                    R, Y, PRE, POST, COMB, R_OUT, NORM, PART, PX, T, first, groups, split, count,
                    H, BLOCK_M, S, WARPS, MIX, IDENTITY,
                ),
            ),
            (_announcer, (mixed, arrived, COUNT, first, groups, count)),
            (
                _finisher,
                (
                    mixed, arrived, free, W, NORM, GRID, CODES, SCALES, PRE_OUT, POST_OUT, COMB_OUT,
                    SCALE, BASE, PART, PX, COUNT, FLAG, T, first, groups, split, count,
                    rms_eps, norm_eps, pre_eps, sinkhorn_eps, post_mult,
                    H, BLOCK_M, S, TOKENS, OUT, ITERS, SPIN,
                ),
            ),
        ],
        [1, FINISH_WARPS],
        [ANNOUNCE_REGS, FINISH_REGS],
    )  # fmt: skip
