"""What tasks have in common whose examples are drawn when they are asked for."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from statelab.config import DataConfig
from statelab.data.draws import Stream, uniform
from statelab.data.module import IGNORED, Batch, DataModule
from statelab.data.segments import MOST
from statelab.options import option

__all__ = ["Arrays", "DrawnConfig", "DrawnData", "DrawnExamples", "next_tokens"]

Arrays = dict[str, NDArray[np.int64]]
"""A batch before it is made tensors: `tokens` and `labels` [B, T], perhaps `slice` [B]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnConfig(DataConfig):
    """As many examples as MAD has."""

    vocab_size: int = option(16, "tokens, the task's own ones included", at_least=4)
    num_train: int = option(
        12_800, "training examples, the same in each epoch", at_least=1, at_most=MOST, smoke=16
    )
    num_val: int = option(
        1_280, "validation examples, drawn apart", at_least=1, at_most=MOST, smoke=8
    )


class DrawnData(DataModule):
    """A task that says how to draw: an example is a pure function of (data.seed, split, index).

    Args:
        config: The task's options; `DrawnConfig` with what the task adds.
    """

    def __init__(self, config: DrawnConfig) -> None:
        self.vocab_size = config.vocab_size
        self.config = config

    @abstractmethod
    def draw(self, split: Stream, index: NDArray[np.int64]) -> Arrays:
        """The examples of these numbers, [B].

        Args:
            split: TRAIN or VAL.
            index: From 0 on.
        """

    def train(self) -> DrawnExamples:
        """The same examples in each epoch."""
        return DrawnExamples(self.draw, Stream.TRAIN, self.config.num_train)

    def val(self) -> DrawnExamples:
        """Drawn apart from the training's."""
        return DrawnExamples(self.draw, Stream.VAL, self.config.num_val)

    def uniform(self, split: Stream, index: NDArray[np.int64], *shape: int) -> NDArray[np.float64]:
        """All the numbers in [0, 1) that an example needs, [B, *shape]."""
        counter = np.arange(math.prod(shape))
        u = uniform(self.config.seed, split, index[:, None], counter)
        return u.reshape(len(index), *shape)


class DrawnExamples:
    """One split of a task.

    Args:
        draw: The task's `draw`.
        split: Which.
        num: Examples.
    """

    def __init__(
        self, draw: Callable[[Stream, NDArray[np.int64]], Arrays], split: Stream, num: int
    ) -> None:
        self._draw = draw
        self._split = split
        self._num = num

    def __len__(self) -> int:
        return self._num

    def batch(self, index: NDArray[np.int64]) -> Batch:
        """Draw these examples."""
        drawn = self._draw(self._split, index)
        return {name: torch.from_numpy(each) for name, each in drawn.items()}


def next_tokens(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Labels of a language model: each token at the place before it; none at the end."""
    labels = np.full_like(tokens, IGNORED)
    labels[:, :-1] = tokens[:, 1:]
    return labels
