"""The order in which the arms run; not in ``stats``, whose imports take most of a second."""

from __future__ import annotations


def abba(n_pairs: int, arms: int = 2) -> tuple[tuple[int, ...], ...]:
    """Order of the slots in each pair, mirrored: forward, reversed, forward, …

    With two arms the first entry of each pair says which slot goes first: A B, B A, A B, … A
    drift that is linear in time then favours each slot equally often and cancels over an even
    number of pairs. With more arms a "pair" is a round of all of them: A B C, C B A, …

    Args:
        n_pairs: number of pairs (rounds), 0 or more.
        arms: number of slots, 1 or more.

    Returns:
        ``n_pairs`` tuples, each a permutation of ``range(arms)``.

    Raises:
        ValueError: ``n_pairs`` is negative or ``arms`` is below 1.
    """
    if n_pairs < 0 or arms < 1:
        raise ValueError(f"n_pairs must be >= 0 and arms >= 1, got {n_pairs} and {arms}")
    forward = tuple(range(arms))
    return tuple(forward if i % 2 == 0 else forward[::-1] for i in range(n_pairs))
