"""Random numbers as a pure function of a key: no state to seed, save or hand to a worker.

A key is a few numbers, such as (seed, stream, index, counter). Each of its parts moves a SplitMix64
generator to a new place, and the last one counts along its stream.

Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators".
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Stream", "bits", "distinct", "uniform"]


class Stream(IntEnum):
    """The second part of a key: draws of different streams have nothing in common."""

    ORDER = 0
    TRAIN = 1
    VAL = 2
    FACTS = 3


def bits(*key: ArrayLike) -> NDArray[np.uint64]:
    """64 random bits for each key; the parts of the key broadcast against each other."""
    state: NDArray[np.uint64] = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):
        for part in key:
            state = _mix(state + _GOLDEN * (np.asarray(part, np.uint64) + np.uint64(1)))
    return state


def uniform(*key: ArrayLike) -> NDArray[np.float64]:
    """A number in [0, 1) for each key."""
    return (bits(*key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def distinct(u: NDArray[np.float64], size: int) -> NDArray[np.int64]:
    """Draw without replacement: in each row, different numbers from 0 to `size` - 1.

    Args:
        u: [B, N] uniform numbers, N <= size; one is used up by each draw.
        size: How many numbers there are to draw from.

    Returns:
        [B, N], in the order drawn.
    """
    pool = np.tile(np.arange(size), (len(u), 1))
    rows = np.arange(len(u))
    for i in range(u.shape[1]):
        j = i + (u[:, i] * (size - i)).astype(np.int64)
        pool[rows, i], pool[rows, j] = pool[rows, j], pool[rows, i]
    return pool[:, : u.shape[1]]


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
