"""The order of an epoch, and each rank's share of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from statelab.data.draws import Stream, bits

__all__ = ["PADDING", "permutation", "share"]

PADDING = -1
"""Stands in a share where the epoch has no example left for that rank."""


def permutation(num: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """The numbers below `num` in the order of that epoch."""
    return np.argsort(bits(seed, Stream.ORDER, epoch, np.arange(num)), kind="stable")


def share(order: NDArray[np.int64], *, rank: int, world: int) -> NDArray[np.int64]:
    """Every `world`-th example, from `rank` on.

    So the k-th batches of all ranks together are the k-th `world * batch_size` examples of the
    epoch, and none is lost or doubled. All shares are equally long: where `num` is no multiple of
    `world`, the last entry of the later ranks is `PADDING`.
    """
    padding = np.full(-len(order) % world, PADDING)
    return np.concatenate([order, padding])[rank::world]
