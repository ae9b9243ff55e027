"""The order of an epoch, its batches, and each rank's share of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from statelab.data.draws import Stream, bits

__all__ = ["PADDING", "batches", "permutation", "share"]

PADDING = -1
"""Stands in a share where the batch has no example left for that rank."""


def permutation(num: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """The numbers below `num` in the order of that epoch."""
    return np.argsort(bits(seed, Stream.ORDER, epoch, np.arange(num)), kind="stable")


def batches(
    order: NDArray[np.int64], groups: Sequence[int], batch_size: int
) -> list[NDArray[np.int64]]:
    """The batches of an epoch, each of one group.

    As if the examples came in that order, each to its group's heap, and a heap went out once it has
    `batch_size` of them, or all that its group has left. So the batches of all groups are spread
    over the epoch, and those of a single group stand as they came.

    Args:
        order: All examples of the epoch.
        groups: How many examples each group has: first those of the first group, and so on.
        batch_size: Examples a batch, of all ranks together; the last of a group may have fewer.
    """
    ends = np.cumsum(groups)
    by_group = np.argsort(np.searchsorted(ends, order, side="right"), kind="stable")
    places = [
        heap[start : start + batch_size]
        for heap in np.split(by_group, ends[:-1])
        for start in range(0, len(heap), batch_size)
    ]
    return [order[each] for each in sorted(places, key=lambda each: each[-1])]


def share(batch: NDArray[np.int64], *, rank: int, world: int) -> NDArray[np.int64]:
    """Every `world`-th example of a batch, from `rank` on.

    So the shares of all ranks together are the batch, and no example is lost or doubled. All shares
    are equally long: where `num` is no multiple of `world`, the last entry of the later ranks is
    `PADDING`.
    """
    padding = np.full(-len(batch) % world, PADDING)
    return np.concatenate([batch, padding])[rank::world]
