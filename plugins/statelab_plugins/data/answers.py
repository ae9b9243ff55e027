"""What tasks have in common that end in an answer: grids of cells, and where labels stand."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from statelab.config import DataConfig
from statelab.data.draws import Stream, uniform
from statelab.data.module import IGNORED, Batch, DataModule
from statelab.data.segments import MOST
from statelab.errors import ConfigError
from statelab.options import option

__all__ = [
    "HELD_OUT",
    "AnswerConfig",
    "AnswerData",
    "AnswerExamples",
    "Cell",
    "Draw",
    "Part",
    "Tokens",
    "check_counts",
]

HELD_OUT = 7
"""Of names, numbers and the like, one in so many is for validation alone."""

Tokens = NDArray[np.int64]
Part = tuple[Tokens, bool]
"""A piece of an example, and whether it is an answer."""
Draw = Callable[[int], NDArray[np.float64]]
"""So many numbers in [0, 1): an example's own, always the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerConfig(DataConfig):
    """How many examples, and what is learned of them."""

    num_train: int = option(
        10_000,
        "training examples of each length, the same in each epoch",
        at_least=1,
        at_most=MOST,
        smoke=8,
    )
    num_val: int = option(
        100, "validation examples of each cell, drawn apart", at_least=1, at_most=MOST, smoke=2
    )
    loss: Literal["answer", "all"] = option(
        "answer", "labels to learn from: the answer's tokens, or every next token"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """Examples alike.

    Attributes:
        size: Their length in tokens, or another size that says how long they are.
        num: How many.
        depth: Where what is asked for stands, percent; None is anywhere.
        name: Of their slice.
    """

    size: int
    num: int
    depth: int | None = None
    name: str = ""


class AnswerData(DataModule):
    """A task that ends in an answer; an example is a pure function of (data.seed, split, index).

    To validate on, the answer's tokens alone have labels, so that exact match is that of the
    answer.

    Args:
        config: Seed, and what is learned.
        train: Cells to learn from, by rising size.
        val: Cells to validate on, likewise; each is a slice.
    """

    is_one_answer = True

    def __init__(self, config: AnswerConfig, train: Sequence[Cell], val: Sequence[Cell]) -> None:
        self.slices = tuple(cell.name for cell in val)
        self.config = config
        self._cells = {Stream.TRAIN: train, Stream.VAL: val}

    @abstractmethod
    def example(self, cell: Cell, split: Stream, draw: Draw) -> Iterable[Part]:
        """The parts of an example, in their order."""

    def train(self) -> AnswerExamples:
        """The same examples in each epoch."""
        return AnswerExamples(self, Stream.TRAIN, self._cells[Stream.TRAIN])

    def val(self) -> AnswerExamples:
        """Drawn apart from the training's."""
        return AnswerExamples(self, Stream.VAL, self._cells[Stream.VAL])


class AnswerExamples:
    """One split, drawn when asked for: cell after cell.

    Attributes:
        groups: Examples of each size, which batches hold apart.
    """

    def __init__(self, data: AnswerData, split: Stream, cells: Sequence[Cell]) -> None:
        self._data = data
        self._split = split
        self._cells = tuple(cells)
        self._ends = np.cumsum([cell.num for cell in cells])
        self.groups = tuple(
            sum(cell.num for cell in alike) for _, alike in groupby(cells, lambda cell: cell.size)
        )

    def __len__(self) -> int:
        return sum(self.groups)

    def batch(self, index: NDArray[np.int64]) -> Batch:
        """Draw these examples; the shorter end in zeros without a label."""
        kinds = np.searchsorted(self._ends, index, side="right")
        rows = [self._row(int(i), self._cells[kind]) for i, kind in zip(index, kinds, strict=True)]
        shape = len(rows), max(len(tokens) for tokens, _ in rows)
        tokens, labels = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
        for row, (each, learned) in enumerate(rows):
            tokens[row, : len(each)] = each
            labels[row, : len(each) - 1] = np.where(learned, each, IGNORED)[1:]
        batch = {"tokens": torch.from_numpy(tokens), "labels": torch.from_numpy(labels)}
        return batch | {"slice": torch.from_numpy(kinds)} if self._split == Stream.VAL else batch

    def _row(self, index: int, cell: Cell) -> tuple[Tokens, NDArray[np.bool_]]:
        """The tokens of an example, and which of them are to be predicted."""

        def draw(num: int) -> NDArray[np.float64]:
            return uniform(self._data.config.seed, self._split, index, np.arange(num))

        parts = list(self._data.example(cell, self._split, draw))
        tokens = np.concatenate([each for each, _ in parts])
        if self._split == Stream.TRAIN and self._data.config.loss == "all":
            return tokens, np.ones(len(tokens), bool)
        return tokens, np.repeat([asked for _, asked in parts], [len(each) for each, _ in parts])


def check_counts(key: str, values: Sequence[int], *, empty: bool = False) -> None:
    """Refuse a grid's axis that isn't different values in rising order.

    Args:
        key: Where they stand.
        values: The axis.
        empty: Whether it may be left empty.

    Raises:
        ConfigError: If it is refused.
    """
    rising = all(low < high for low, high in pairwise(values))
    if not rising or not (values or empty):
        raise ConfigError(
            f"{key}={list(values)} must be one or several different numbers in rising order, such "
            "as [256, 512]."
        )
