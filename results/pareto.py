"""The Pareto front of interactivity against throughput."""

from __future__ import annotations

from collections.abc import Sequence


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points that no other one beats, by falling x; more is better on both axes.

    A point is beaten by one that is at least as good on both axes and better on one, so of points
    with an equal y only the one with the largest x is left. Of equal points the first is left.
    """
    best = float("-inf")
    left = []
    for index in sorted(range(len(points)), key=lambda i: (-points[i][0], -points[i][1], i)):
        if points[index][1] > best:
            best = points[index][1]
            left.append(index)
    return left
