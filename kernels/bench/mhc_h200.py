"""Times the mHC seam on one Hopper GPU: the Triton mega-mHC, its peers and the copy ceiling.

One call does everything: it checks every form, output and token count against the float64
reference on the GPU, then times all implementations interleaved under CUDA-graph replay, with
inputs rotated past the L2, and writes CSV, environment and plot.

    python bench/mhc_h200.py --out bench/results/h200 [--aiter-kernel FILE] [--peers vllm sglang]

Needs torch with CUDA, triton and matplotlib; no network. ``--aiter-kernel`` names aiter's
``_triton_kernels/fusions/mhc_fused_post_pre_delayed_rmsnorm.py`` (MIT); ``--peers`` names installed
packages whose own seam kernels are timed too (Apache-2.0). Each public peer must agree with the
reference at every token count before it is timed.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench"), str(ROOT / "tests")]

from dsv41_kernels.reference.interface import FORMS, OUTPUTS, MhcOutputs  # noqa: E402
from dsv41_kernels.triton import mega_mhc  # noqa: E402
from graphs import Call, Graph  # noqa: E402
from mhc_cases import TOLERANCES, assert_seam, expected, seam_inputs  # noqa: E402
from peers import PACKAGES, AiterSeam, Peer, PeerError, eager_seam  # noqa: E402

HIDDEN = 5120
TOKENS = (1, 4, 32, 64, 384, 1024, 2048, 4096, 4160, 8192, 16384)
FN_BYTES = 48 * 4 * HIDDEN * 2
ROTATE_BYTES = 240_000_000  # four times the 60 MB L2

# Published for MI355X in the seed of issue 4 (bf16, post, CUDA-graph replay), in microseconds.
PUBLISHED_MI355X = {1: 7.3, 32: 8.2, 384: 13.8, 2048: 40.7, 4096: 102.2, 8192: 200.1, 16384: 380.3}


def seam_bytes(tokens: int, out: str) -> int:
    """Least bytes of a post seam: T*H*20, the grid's 2*T*H or mxfp8's 33/32*T*H, and fn."""
    extra = {"bf16": 0, "fp8_grid": 2 * tokens * HIDDEN, "mxfp8": tokens * HIDDEN * 33 // 32}
    return tokens * HIDDEN * 20 + extra[out] + FN_BYTES


def input_sets(tokens: int, device: str) -> list[dict[str, Any]]:
    """Distinct random inputs, enough that one round of them outgrows the L2 four times."""
    count = max(2, -(-ROTATE_BYTES // seam_bytes(tokens, "bf16")))
    small = seam_inputs(min(tokens, 64), HIDDEN, device=device)
    generator = torch.Generator(device).manual_seed(1)
    sets = []
    for _ in range(count):
        one: dict[str, Any] = {}
        for name, value in small.items():
            if name in ("fn", "scale", "base", "norm_w"):
                one[name] = value.clone()
                continue
            shape = (tokens, *value.shape[1:])
            if name in ("R", "y"):
                one[name] = torch.randn(shape, generator=generator, device=device).bfloat16()
            else:
                rows = torch.randint(0, len(value), (tokens,), generator=generator, device=device)
                one[name] = value[rows].contiguous()
        sets.append(one)
    return sets


def copy_calls(nbytes: int, device: str) -> list[Call]:
    """Device copies that read and write ``nbytes`` together."""
    count = max(2, -(-ROTATE_BYTES // nbytes))

    def one() -> Call:
        source = torch.randint(0, 255, (nbytes // 2,), dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    return [one() for _ in range(count)]


def check_cases() -> list[tuple[int, str, str, dict[str, int]]]:
    """(tokens, form, out, config) of every correctness case at H = 5120."""
    cases: list[tuple[int, str, str, dict[str, int]]]
    cases = [(t, f, o, {}) for t in (1, 17, 64, 257) for f in FORMS for o in OUTPUTS]
    cases += [(t, "post", "mxfp8", {}) for t in (0, 4, 15, 16, 32, 1024, 4160, 8192)]
    cases += [(1000, f, o, {}) for f in FORMS for o in OUTPUTS]
    # SPIN 0 hands every share off but the last arriver's; SPIN 1 races the two ways to finish.
    cases += [(t, "post", "mxfp8", {"SPIN": spin}) for t in (257, 1000) for spin in (0, 1)]
    return cases


def check(cases: list[tuple[int, str, str, dict[str, int]]], device: str) -> list[str]:
    """Hold the kernel against the float64 reference on this GPU and require repeats to agree.

    Returns one line a case; raises AssertionError on the first that fails.
    """
    lines = []
    for tokens, form, out, config in cases:
        arguments = seam_inputs(tokens, HIDDEN, form, seed=tokens, device=device)
        first = mega_mhc(**arguments, form=form, out=out, config=config)
        assert_seam(first, arguments, form=form, out=out)
        for _ in range(4):
            again = mega_mhc(**arguments, form=form, out=out, config=config)
            for a, b in zip(first, again, strict=True):
                if a is not None and b is not None and a.numel():
                    assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), "not repeatable"
        lines.append(f"T={tokens} {form} {out} {config or ''}".strip())
    return lines


def peer_errors(name: str, got: MhcOutputs, a: dict[str, Any]) -> dict[str, float]:
    """Largest absolute errors of a peer's post seam, judged on its own residual in float64.

    Tolerances are those of our kernel but for the gates' (rtol 1e-3, atol 5e-3): peers project in
    TF32, or from a residual not yet rounded.

    Raises:
        PeerError: an output is further off.
    """
    want = expected(got, a, "post")
    errors = {}
    for output, (rtol, atol) in TOLERANCES.items():
        atol = 5e-3 if output in ("pre", "post", "comb") else atol
        mine, rule = getattr(got, output).double(), getattr(want, output).double()
        errors[output] = float((mine - rule).abs().max())
        if not torch.allclose(mine, rule, rtol=rtol, atol=atol):
            raise PeerError(
                f"the peer {name} is off by {errors[output]:.3g} in {output} at T={len(mine)}; "
                "it does not compute this seam, so it is not timed: leave it out"
            )
    return errors


def check_peers(
    peers: list[Peer], groups: dict[str, list[Call]], sets: list[dict[str, Any]], tokens: int
) -> None:
    """Keep every peer's largest errors in its ``about``; PeerError if one is wrong."""
    for peer in peers:
        got = MhcOutputs(*groups[f"{peer.name}/bf16"][0]())
        errors = peer_errors(peer.name, got, sets[0])
        peer.about.setdefault("largest_errors", {})[tokens] = errors


def implementations(
    sets: list[dict[str, Any]], peers: list[Peer], tokens: int
) -> dict[str, list[Call]]:
    """Calls by implementation; every one computes the whole seam, norm included."""
    torch._dynamo.reset()  # a function compiled for many shapes would run into a limit
    compiled = torch.compile(eager_seam, dynamic=False)
    calls: dict[str, list[Call]] = {}
    for out in OUTPUTS:
        calls[f"mega_mhc/{out}"] = [partial(mega_mhc, **a, out=out) for a in sets]
    calls["torch eager/bf16"] = [partial(eager_seam, **a) for a in sets]
    calls["torch.compile/bf16"] = [partial(compiled, **a) for a in sets]
    for peer in peers:
        calls[f"{peer.name}/bf16"] = peer.calls(sets, tokens)
    return calls


def public_peers(options: argparse.Namespace) -> list[Peer]:
    """The public seams asked for; PeerError where one cannot be used."""
    peers: list[Peer] = [PACKAGES[name]() for name in options.peers]
    if options.aiter_kernel:
        peers.insert(0, AiterSeam(options.aiter_kernel))
    return peers


def warm_up(tokens: int, options: argparse.Namespace, peers: list[Peer], device: str) -> None:
    """Compile what one token count and a share of the checks need (run in a process of its own)."""
    index, count = options.tokens.index(tokens), len(options.tokens)
    check(check_cases()[index::count], device)
    sets = input_sets(tokens, device)[:2]
    groups = implementations(sets, peers, tokens)
    for calls in groups.values():
        calls[0]()
    check_peers(peers, groups, sets, tokens)
    torch.cuda.synchronize()


def measure(tokens: int, rounds: int, peers: list[Peer], device: str) -> list[dict[str, Any]]:
    """Rows of one token count: median, spread and share of the measured copy ceiling."""
    sets = input_sets(tokens, device)
    groups = implementations(sets, peers, tokens)
    check_peers(peers, groups, sets, tokens)
    graphs = {name: Graph(calls) for name, calls in groups.items()}
    graphs["copy"] = Graph(copy_calls(seam_bytes(tokens, "bf16"), device))
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for index in range(rounds + 3):
        for name, graph in graphs.items():
            value = graph.replay()
            if index >= 3:
                times[name].append(value)
    copy = statistics.median(times["copy"])
    ceiling = seam_bytes(tokens, "bf16") / copy
    rows: list[dict[str, Any]] = []
    for name, values in times.items():
        implementation, _, out = name.partition("/")
        low, median, high = statistics.quantiles(values, n=4)
        nbytes = seam_bytes(tokens, out or "bf16")
        rows.append(
            {
                "tokens": tokens,
                "implementation": implementation,
                "out": out,
                "us": round(median, 3),
                "us_q1": round(low, 3),
                "us_q3": round(high, 3),
                "bytes": nbytes,
                "tb_per_s": round(nbytes / median / 1e6, 4),
                "percent_of_copy": round(100 * nbytes / median / ceiling, 2),
                "rounds": rounds,
            }
        )
    ours = {r["out"]: r["us"] for r in rows if r["implementation"] == "mega_mhc"}
    for row in rows:
        row["ratio_to_mega_mhc"] = round(row["us"] / ours[row["out"] or "bf16"], 3)
    return rows


def environment() -> dict[str, Any]:
    """Where the figures were taken."""
    import triton

    fields = "name,driver_version,clocks.sm,clocks.mem"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    smi = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "nvidia_smi": smi,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "command": " ".join(["python bench/mhc_h200.py", *(Path(a).name for a in sys.argv[1:])]),
        "published": "MI355X figures in the plot and table are the seed's, not measured here",
    }


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(name, path)


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows, and the published MI355X figures as rows of their own."""
    buffer = io.StringIO()
    fields = list(rows[0])
    writer = csv.DictWriter(buffer, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    for tokens, us in PUBLISHED_MI355X.items():
        label = "FlyDSL mega-mHC on MI355X (published, not measured here)"
        writer.writerow({"tokens": tokens, "implementation": label, "out": "bf16", "us": us})
    write(path, buffer.getvalue())


def plot(path: Path, rows: list[dict[str, Any]]) -> None:
    """Microseconds over tokens, both logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5.5))
    for name in dict.fromkeys((r["implementation"], r["out"]) for r in rows):
        points = [(r["tokens"], r["us"]) for r in rows if (r["implementation"], r["out"]) == name]
        style = "k:" if name[0] == "copy" else "o-"
        axes.plot(*zip(*points, strict=True), style, label=" ".join(name).strip(), markersize=4)
    axes.plot(
        list(PUBLISHED_MI355X), list(PUBLISHED_MI355X.values()), "x--", color="gray",
        label="FlyDSL bf16 on MI355X (published)",
    )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="µs a seam (median)")
    axes.set_title("mHC seam, post, H = 5120, CUDA-graph replay, rotated inputs")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    temporary = path.with_name("." + path.name)
    figure.savefig(temporary, dpi=130, format="png")
    os.replace(temporary, path)


def run(options: argparse.Namespace, peers: list[Peer], device: str) -> int:
    """Warm up in processes of their own, check, time, write; returns the exit status."""
    options.out.mkdir(parents=True, exist_ok=True)
    if options.warm is not None:
        warm_up(options.warm, options, peers, device)
        return 0
    record = environment()
    workers = [
        subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--warm", str(tokens)])
        for tokens in options.tokens
    ]
    if any([worker.wait() for worker in workers]):  # a list: wait for every one
        print("a warm-up process failed, see its message above", file=sys.stderr)
        return 1
    record["checked"] = check(check_cases(), device)
    print(f"checked {len(record['checked'])} cases against float64", flush=True)
    rows: list[dict[str, Any]] = []
    for tokens in options.tokens:
        rows += measure(tokens, options.rounds, peers, device)
        torch.cuda.empty_cache()
        for row in rows:
            if row["tokens"] == tokens:
                print(
                    f"{tokens:6d} {row['implementation']:14s} {row['out']:9s} {row['us']:9.2f} us "
                    f"[{row['us_q1']:.2f}, {row['us_q3']:.2f}] {row['percent_of_copy']:6.1f} %copy "
                    f"x{row['ratio_to_mega_mhc']:.2f}",
                    flush=True,
                )
        write_csv(options.out / "mhc.csv", rows)
    record["peers"] = {peer.name: peer.about for peer in peers}
    write(options.out / "environment.json", json.dumps(record, indent=1) + "\n")
    plot(options.out / "mhc.png", rows)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for CSV, JSON and plot")
    parser.add_argument("--aiter-kernel", type=Path, help="aiter's Triton seam, one file")
    parser.add_argument(
        "--peers", nargs="+", choices=PACKAGES, default=[], help="installed packages to time too"
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    parser.add_argument("--rounds", type=int, default=30, help="timed replays of each graph")
    parser.add_argument("--warm", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("mhc_h200.py needs a Hopper GPU (sm_90); none is visible here", file=sys.stderr)
        return 2
    try:
        return run(options, public_peers(options), "cuda")
    except PeerError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
