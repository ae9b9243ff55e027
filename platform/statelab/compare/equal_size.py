"""Runs of equal size, put together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from statelab.compare.entries import Entry

__all__ = ["split_by_size"]


def split_by_size(
    entries: Sequence[Entry], size: str, tolerance: float, arm: Callable[[Entry], Hashable]
) -> tuple[list[list[Entry]], list[Entry]]:
    """Groups of runs, no two of a group further apart in size than the tolerance.

    The first group is the one that holds the most arms, then the most runs; the next is made of
    what is left, as long as two arms can be compared.

    Args:
        entries: The runs.
        size: The name of the size.
        tolerance: The largest may be so much larger than the least, a share of it.
        arm: What is compared.

    Returns:
        The groups from the least size on, and the runs that are in none.
    """
    groups = []
    left = [each for each in entries if size in each.sizes]
    while left:
        group = max(
            (_window(left, size, least, tolerance) for least in _sizes(left, size)),
            key=lambda each: (len(set(map(arm, each))), len(each)),
        )
        if len(set(map(arm, group))) < 2:
            break
        groups.append(group)
        taken = {each.id for each in group}
        left = [each for each in left if each.id not in taken]
    kept = {each.id for group in groups for each in group}
    groups.sort(key=lambda group: min(each.sizes[size] for each in group))
    return groups, [each for each in entries if each.id not in kept]


def _sizes(entries: Sequence[Entry], size: str) -> list[int]:
    return sorted({each.sizes[size] for each in entries})


def _window(entries: Sequence[Entry], size: str, least: int, tolerance: float) -> list[Entry]:
    return [each for each in entries if least <= each.sizes[size] <= least * (1 + tolerance)]
