"""What a data module is; free of Lightning, so that its keys can be listed without it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from statelab.config import DataConfig
from statelab.errors import DataError

__all__ = ["IGNORED", "Batch", "DataModule", "Examples", "GroupedExamples", "groups_of"]

IGNORED = -100
"""The label of a position that predicts nothing."""

Batch = dict[str, Tensor]
"""`tokens` and `labels`, both [B, T] int64, and where the module has slices `slice`, [B] int64.

A label stands at the position that predicts it. Where a row may hold several documents, `ends`,
[B, T] bool, marks the last token of each; `packing.py` makes use of it. Where tokens are texts of
several lengths, `bytes`, [B, T] int64, says how many bytes of it each label stands for.
"""


class Examples(Protocol):
    """One split; loader processes get a pickled copy."""

    def __len__(self) -> int:
        """How many examples an epoch has."""

    def batch(self, index: NDArray[np.int64]) -> Batch:
        """The examples of these numbers, each the same whenever and wherever it is asked for.

        Args:
            index: [B], from 0 to `len` - 1.
        """


@runtime_checkable
class GroupedExamples(Examples, Protocol):
    """A split of several groups, such as lengths; no batch has examples of two."""

    @property
    def groups(self) -> tuple[int, ...]:
        """How many examples each has: first come those of the first group, and so on."""


def groups_of(examples: Examples) -> tuple[int, ...]:
    """How many examples each group has; all are of one group where a split says nothing."""
    return examples.groups if isinstance(examples, GroupedExamples) else (len(examples),)


class DataModule(ABC):
    """Two splits of examples, and what their tokens mean. Built once, from its configuration.

    Attributes:
        vocab_size: How many tokens there are.
        slices: Kinds of examples that metrics are shown apart for; in a batch to validate on,
            `slice` counts in it.
        is_text: Whether tokens stand for bytes of text, so that there are bits per byte.
        is_one_answer: Whether the labels of an example to validate on are one answer, so that
            there is exact match. With `data.packing` such a module needs slices.
        readout: What of the model a label is predicted from: the token at its own position, or
            the last of its sequence, which then has to hold all of it (`LastReadout`).
    """

    vocab_size: int
    slices: tuple[str, ...] = ()
    is_text: bool = False
    is_one_answer: bool = False
    readout: Literal["each", "last"] = "each"

    @abstractmethod
    def __init__(self, config: DataConfig) -> None: ...

    @abstractmethod
    def train(self) -> Examples:
        """What is learned from."""

    @abstractmethod
    def val(self) -> Examples:
        """What is only looked at; shares no example with `train`."""

    def num_bytes(self, batch: Batch) -> Tensor | None:
        """How many bytes of text the labels of a batch stand for; None where they are no text."""
        return None

    @classmethod
    def stop(cls, config: DataConfig) -> tuple[int, ...]:
        """The tokens that end a document, and with it a generation."""
        return ()

    @classmethod
    def encode(cls, config: DataConfig, text: str) -> list[int]:
        """The tokens of a text; where tokens are no text, their numbers: `5 40 7 41`.

        Raises:
            DataError: If it has none.
        """
        try:
            return [int(each) for each in text.split()]
        except ValueError as error:
            raise DataError(
                f"the tokens of data.name={config.name} are numbers, such as '5 40 7 41'; "
                f"got {text!r:.60}."
            ) from error

    @classmethod
    def encode_sized(cls, config: DataConfig, text: str) -> tuple[list[int], list[int] | None]:
        """`encode`, and the bytes of text that each token stands for; None if they are no text."""
        return cls.encode(config, text), None

    @classmethod
    def decode(cls, config: DataConfig, tokens: Iterable[int]) -> str:
        """The text of tokens: what `encode` was given, where they stand for one."""
        return "".join(cls.pieces(config, tokens))

    @classmethod
    def pieces(cls, config: DataConfig, tokens: Iterable[int]) -> Iterator[str]:
        """`decode` while the tokens come: each piece as soon as it is complete."""
        for index, token in enumerate(tokens):
            yield f" {token}" if index else str(token)

    @classmethod
    def spell(cls, config: DataConfig, token: int) -> str:
        """A token as a short label."""
        return str(token)
