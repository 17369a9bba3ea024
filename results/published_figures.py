"""Serving figures that others published, as rows of our schema, and the ratios they printed.

``results/published/*.csv`` holds every figure with its document and table in ``source``. None of
the ratios is a same-node verdict; ``WHY_NO_VERDICT`` says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from results.columns import BY_NAME, Row
from results.compare import Cell, compare
from results.tables import read_csv

FOLDER = Path(__file__).parent / "published"

WHY_NO_VERDICT = """\
These ratios restate what was printed; they are not same-node verdicts.
- Mono, TP2 and TP4: the baseline is another node's run (InferenceX run 37510490434). There each
  point ran alone; here four points ran at once on one node and shared its CPUs. The author's
  same-node baselines were still running.
- TP4 at c1 and c2: a full disk left holes in the records of the mono side, so these were scored
  from aiperf's complete summary.
- EP2 against TP2: the TP2 side is a published run of another node and of an unchanged image; the
  EP2 side ran locally modified vLLM and AITER, four servers at once. Parallelism, kernels and
  build all differ, so the change has no single cause.
- The two documents quote different TP2 runs as their reference; both are kept, each with its
  source.
- Total throughput is derived, (input + output tokens) / duration, and nearly all of it is input:
  it says little about decoding. The EP2 document prints output throughput beside it.
- Each point was run once: there is no pair to tell a difference from noise, and no A/A floor.
- Throughput runs accept drafts synthetically (acceptance length 3.51): they show speed, not
  answers."""

SERVING = ("interactivity_p90", "output_throughput", "total_throughput")
ACCURACY = ("gsm8k_strict", "gsm8k_flexible", "acceptance_length")


def rows(folder: Path = FOLDER) -> list[Row]:
    """Every published row, file by file."""
    return [row for path in sorted(folder.glob("*.csv")) for row in read_csv(path)]


def cells(published: Sequence[Row]) -> list[Cell]:
    """Ratio of every printed pair of serving figures, and of the GSM8K scores."""
    ignore = frozenset({"config"})
    serving = [row for row in published if row["kind"] != "gsm8k"]
    accuracy = [row for row in published if row["kind"] == "gsm8k"]
    return [
        *compare(serving, SERVING, ignore=ignore),
        *compare(accuracy, ACCURACY, ignore=ignore | {"conc"}),
    ]


def times(cell: Cell) -> str:
    """The ratio as the mono document prints it: ``1.42×``."""
    return f"{cell.ratio:.2f}×"


def change(cell: Cell) -> str:
    """The change as the EP2 document prints it: ``-22.2%``."""
    assert cell.ratio is not None
    return f"{100 * (cell.ratio - 1):+.1f}%"


def text() -> str:
    """All published comparisons, what they are not, and where they stand."""
    found = rows()
    lines = [
        "Published serving figures of DeepSeek-V4.1-Flash on MI355X.",
        "Compared across: node, image, config (EP2 against TP2).",
        "",
        WHY_NO_VERDICT,
    ]
    title = None
    for cell in cells(found):
        heading = f"{cell.config}  {cell.kind}: {cell.baseline} → {cell.arm}"
        if heading != title:
            title = heading
            source = next(r["source"] for r in found if r["arm"] == cell.arm and _same(r, cell))
            lines += ["", f"{heading}   [{source}]"]
        row, unit = cell.row(), BY_NAME[cell.metric].unit
        conc = "" if cell.conc is None else f"c{cell.conc}"
        lines.append(
            f"  {conc:>4}  {cell.metric:<18} {row['baseline_value']:>10,.10g} → "
            f"{row['arm_value']:<10,.10g} {unit:<11} {times(cell)}  {change(cell):>7}"
        )
    return "\n".join(lines) + "\n"


def _same(row: Row, cell: Cell) -> bool:
    return row["kind"] == cell.kind and (row["config"] or "") == cell.config.split(" → ")[-1]


if __name__ == "__main__":
    print(text(), end="")
