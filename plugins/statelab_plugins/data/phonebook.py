"""A phone book, and the question for a number in it.

Source: Jelassi et al. 2024, "Repeat after me", arXiv:2402.01032; names and words are ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from statelab.data.draws import Stream, distinct
from statelab.errors import ConfigError
from statelab.options import option
from statelab.registries import data_modules
from statelab_plugins.data.answers import Cell, Draw, Part, Tokens, check_counts
from statelab_plugins.data.tokenized import TokenizedConfig, TokenizedData
from statelab_plugins.data.wording import FIRST_NAMES, LAST_NAMES, number, pairs_of

__all__ = ["Phonebook", "PhonebookConfig"]

_QUESTION = "\nLook up:\n"
_PAIRS = len(FIRST_NAMES) * len(LAST_NAMES)


@dataclass(frozen=True, kw_only=True, slots=True)
class PhonebookConfig(TokenizedConfig):
    """Books small enough for a CPU."""

    seq_len: int = option(1024, "at least the longest example's tokens", at_least=1, smoke=1024)
    entries: tuple[int, ...] = option(
        (4, 8, 16), "names in the books of training examples", at_least=1, smoke=(4,)
    )
    val_entries: tuple[int, ...] = option(
        (), "likewise to validate on; empty: those of training", at_least=1, smoke=()
    )
    queries: int = option(1, "names that are asked for, one after the other", at_least=1)

    def __post_init__(self) -> None:
        TokenizedConfig.__post_init__(self)
        check_counts("data.entries", self.entries)
        check_counts("data.val_entries", self.val_entries, empty=True)
        sizes = self.entries + self.val_entries
        if max(sizes) > len(pairs_of(Stream.VAL, _PAIRS)):
            raise ConfigError(
                f"data.entries: {max(sizes)} names are more than the "
                f"{len(pairs_of(Stream.VAL, _PAIRS))} that validation has. Give fewer."
            )
        if self.queries > min(sizes):
            raise ConfigError(
                f"data.queries={self.queries} is more than the {min(sizes)} names of the smallest "
                f"book. Ask for {min(sizes)} or fewer."
            )


@data_modules.register("phonebook", config=PhonebookConfig)
class Phonebook(TokenizedData):
    """Names with their numbers, then a name whose number is the answer.

        Ada Abbot: 407-1583
        Hugo Marsh: 922-0146
        ...

        Look up:
        Hugo Marsh: 922-0146

    With more queries, exact match wants all numbers. No name and no number is in both splits; all
    first names and all last names are.

    Raises:
        DataError: If a book doesn't fit into `seq_len`.
    """

    config: PhonebookConfig

    def __init__(self, config: PhonebookConfig) -> None:
        val = config.val_entries or config.entries
        super().__init__(
            config,
            [Cell(size=size, num=config.num_train) for size in config.entries],
            [Cell(size=size, num=config.num_val, name=f"entries_{size}") for size in val],
        )
        most = max(config.entries + val)
        name = self.longest(FIRST_NAMES) + self.longest([f" {each}" for each in LAST_NAMES])
        # No tokenizer makes more tokens of a number than it has signs.
        line = name + len(self.tokens(": ")) + len("000-0000\n")
        self.check_room(
            (most + config.queries) * line + len(self.tokens(_QUESTION)), f"{most} entries"
        )

    def example(self, cell: Cell, split: Stream, draw: Draw) -> Iterator[Part]:
        """A book, and the questions."""
        num = cell.size
        for_names, for_numbers, for_asked = np.split(draw(3 * num), 3)
        able = pairs_of(split, _PAIRS)
        names = [
            self._name(FIRST_NAMES[i // len(LAST_NAMES)], LAST_NAMES[i % len(LAST_NAMES)])
            for i in able[distinct(for_names[None], len(able))[0]]
        ]
        numbers = [number(each, split) for each in for_numbers]
        values = self.each_tokens([f"{each[:3]}-{each[3:]}" for each in numbers])
        (end,) = self.each_tokens(["\n"])
        for name, value in zip(names, values, strict=True):
            yield np.concatenate([name, value, end]), False
        yield self.tokens(_QUESTION), False
        for i in np.argsort(for_asked)[: self.config.queries]:
            yield names[i], False
            yield values[i], True
            yield end, False

    def _name(self, first: str, last: str) -> Tokens:
        return np.concatenate(self.each_tokens([first, f" {last}", ": "]))
