"""What ``samenode power`` says: how many pairs a wanted effect needs on this node."""

from __future__ import annotations

from collections.abc import Sequence

from results.history import KEY, Floors
from results.stats import PowerPlan, pairs_needed
from samenode.errors import UserError

METRICS = ("interactivity_p50", "interactivity_p90", "total_throughput", "ttft_p50_ms")


def power_text(
    floors: Floors,
    node: str,
    effect: float,
    *,
    duration_s: float | None = None,
    metrics: Sequence[str] = METRICS,
) -> str:
    """A line for each A/A point and metric of ``node``: pairs and time for ``effect``.

    Args:
        floors: the A/A history, see ``results.history``.
        node: the ``node`` cell of this node's rows.
        effect: wanted relative change, e.g. 0.02.
        duration_s: plan for points of this length instead of the history's.
        metrics: columns to plan for.

    Raises:
        UserError: there is no A/A history of this node, or the effect is 0 or a fall of all.
    """
    if effect <= -1 or effect == 0:
        raise UserError(f"an effect of {effect:+.1%} cannot be looked for; name one such as 2%.")
    lines = [f"Pairs to find a change of {effect:+.1%} with 80 % probability on {node}:"]
    for (key, metric), found in floors.logs.items():
        point = dict(zip(KEY, key, strict=True))
        logs = [log for _, log in found]
        if point["node"] != node or metric not in metrics or len(logs) < 2:
            continue
        plan = pairs_needed(
            logs, effect, duration_s=float(str(point["duration_s"])), wanted_duration_s=duration_s
        )
        lines.append(f"  {point['config']} c{point['conc']} {metric:<20} {_line(plan)}")
    if len(lines) == 1:
        raise UserError(
            f"there is no A/A history of {node} with two pairs or more; run a campaign of one arm "
            "against itself first: ARMS=off,off REPEATS=3."
        )
    return "\n".join(lines) + "\n"


def _line(plan: PowerPlan) -> str:
    if plan.pairs is None or plan.seconds is None:
        needed = "out of reach (more than 10,000 pairs)"
    else:
        cautious = "out of reach" if plan.pairs_cautious is None else str(plan.pairs_cautious)
        needed = (
            f"{plan.pairs} pairs (cautious: {cautious}) of {plan.duration_s:g} s, "
            f"{plan.seconds / 60:.0f} min of measuring"
        )
    note = f"; {plan.note}" if plan.note else ""
    return f"{needed}; noise of a pair {plan.sd:.2%} from {plan.aa_pairs} A/A pairs{note}"
