"""Resources and static residency of every gfx950 build: `python -m dsv41_kernels.report`.

Figures come from the code objects the compiler made; nothing is run. Without arguments the builds
of this package are compiled and reported; with arguments, the given code object files.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from .emulator.codeobject import CodeObject, Kernel
from .emulator.faults import EmulatorError


@dataclass(frozen=True)
class Row:
    """One build. Registers are per lane (VGPR, AGPR) or wave (SGPR), spills in registers."""

    build: str
    threads: int
    vgpr: int
    agpr: int
    sgpr: int
    lds_bytes: int
    vgpr_spills: int
    sgpr_spills: int
    scratch_bytes: int
    waves_per_simd: int
    workgroups_per_cu: int
    limiter: str
    """What limits residency: vgpr, sgpr, lds, waves or workgroups."""


def row(build: str, kernel: Kernel, threads: int | None = None) -> Row:
    """The report's row for a kernel launched with `threads` a workgroup (default: its maximum)."""
    threads = threads or kernel.max_workgroup
    residency = kernel.residency(threads)
    return Row(
        build=build,
        threads=threads,
        vgpr=kernel.vgpr,
        agpr=kernel.agpr,
        sgpr=kernel.sgpr,
        lds_bytes=kernel.lds,
        vgpr_spills=kernel.vgpr_spills,
        sgpr_spills=kernel.sgpr_spills,
        scratch_bytes=kernel.scratch,
        waves_per_simd=residency.waves_per_simd,
        workgroups_per_cu=residency.workgroups_per_cu,
        limiter=residency.limiter,
    )


def package_builds(hidden: int = 5120) -> Iterator[Row]:
    """Compiles mega-mHC at H = `hidden` in every form, output and policy choice; T from 1 to 16384.

    Raises MissingToolError if FlyDSL, LLVM 22 or g++ is missing.
    """
    import torch

    from .emulator import emulated, gfx950
    from .flydsl import mega_mhc
    from .flydsl.policy import choose
    from .reference.interface import GATES, STREAMS

    chip = gfx950()
    cus = chip.xccs * chip.cus_per_xcc
    with emulated(chip) as machine:
        machine.execute = False
        for form in ("post", "no_post", "identity_pre"):
            for out in ("bf16", "fp8_grid", "mxfp8"):
                first: dict[object, int] = {}
                for tokens in (2**k for k in range(15)):
                    first.setdefault(choose(tokens, hidden, out, cus), tokens)
                for config, tokens in first.items():
                    mixing = form == "post"
                    mega_mhc(
                        R=torch.zeros(tokens, STREAMS, hidden, dtype=torch.bfloat16),
                        y=torch.zeros(tokens, hidden, dtype=torch.bfloat16) if mixing else None,
                        pre=None if form == "identity_pre" else torch.zeros(tokens, STREAMS),
                        post=torch.zeros(tokens, STREAMS) if mixing else None,
                        comb=torch.zeros(tokens, STREAMS, STREAMS) if mixing else None,
                        fn=torch.zeros(GATES, STREAMS * hidden),
                        scale=torch.zeros(3),
                        base=torch.zeros(GATES),
                        norm_w=torch.zeros(hidden, dtype=torch.bfloat16),
                        form=form,
                        out=out,
                    )
                    launch = machine.launches[-1]
                    x, y, z = launch.block
                    yield row(f"mega_mhc/{form}/{out}/{_short(config)}", launch.kernel, x * y * z)


def _short(config: object) -> str:
    """A configuration in a few letters: its fields that differ from the defaults."""
    default = type(config)()
    changed = [
        f"{f.name}={getattr(config, f.name)}"
        for f in fields(config)  # type: ignore[arg-type]
        if getattr(config, f.name) != getattr(default, f.name)
    ]
    return ",".join(changed) or "default"


def file_builds(paths: Iterable[Path]) -> Iterator[Row]:
    """Rows for every kernel of the given code object files. Raises CodeObjectError, OSError."""
    for path in paths:
        for name, kernel in CodeObject(path.read_bytes()).kernels.items():
            yield row(f"{path.name}:{name}", kernel)


def write_csv(rows: list[Row], path: Path) -> None:
    """Writes the rows with a header, atomically."""
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, delete=False, newline="", suffix=".tmp"
    ) as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(r) for r in rows)
    os.replace(file.name, path)


def table(rows: list[Row]) -> str:
    """The rows as aligned text."""
    names = [f.name for f in fields(Row)]
    cells = [names] + [[str(value) for value in asdict(r).values()] for r in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status: 1 if any build spills, 2 on bad input."""
    parser = argparse.ArgumentParser(prog="python -m dsv41_kernels.report", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="gfx950 code objects (.hsaco)")
    parser.add_argument("--csv", type=Path, default=Path("resources.csv"), help="where to write")
    options = parser.parse_args(arguments)
    try:
        rows = list(file_builds(options.files) if options.files else package_builds())
        write_csv(rows, options.csv)
    except (EmulatorError, OSError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    spilling = [r.build for r in rows if r.vgpr_spills or r.sgpr_spills or r.scratch_bytes]
    if spilling:
        print(f"report: {len(spilling)} build(s) spill: {', '.join(spilling)}", file=sys.stderr)
    return int(bool(spilling))


if __name__ == "__main__":
    sys.exit(main())
