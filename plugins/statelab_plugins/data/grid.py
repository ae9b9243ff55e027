"""Grids of lengths and depths, which needles in haystacks are asked for by."""

from __future__ import annotations

from dataclasses import dataclass

from statelab.errors import ConfigError
from statelab.options import option
from statelab_plugins.data.answers import AnswerConfig, Cell, check_counts

__all__ = ["GridConfig"]


# Without slots, so that it goes beside another base that has some.
@dataclass(frozen=True, kw_only=True)
class GridConfig(AnswerConfig):
    """Training examples have their needle anywhere; validation has a cell for each depth."""

    seq_len: int = option(1024, "the longest example's tokens", at_least=1, smoke=1024)
    lengths: tuple[int, ...] = option(
        (256, 512, 1024), "tokens of training examples, the answer's too", at_least=1, smoke=(256,)
    )
    val_lengths: tuple[int, ...] = option(
        (), "likewise to validate on; empty: those of training", at_least=1, smoke=()
    )
    depths: tuple[int, ...] = option(
        (0, 25, 50, 75, 100),
        "share of the filler before the needle to validate on, percent",
        at_least=0,
        at_most=100,
    )

    def __post_init__(self) -> None:
        AnswerConfig.__post_init__(self)
        check_counts("data.lengths", self.lengths)
        check_counts("data.val_lengths", self.val_lengths, empty=True)
        check_counts("data.depths", self.depths)
        longest = max(self.lengths + self.val_lengths)
        if longest > self.seq_len:
            raise ConfigError(
                f"data.seq_len={self.seq_len} is less than the {longest} tokens of the longest "
                f"example. Set data.seq_len={longest}."
            )

    @property
    def train_cells(self) -> list[Cell]:
        """One for each length, with needles at any depth."""
        return [Cell(size=length, num=self.num_train) for length in self.lengths]

    @property
    def val_cells(self) -> list[Cell]:
        """One for each length and depth."""
        return [
            Cell(size=length, num=self.num_val, depth=depth, name=f"len_{length}_depth_{depth}")
            for length in self.val_lengths or self.lengths
            for depth in self.depths
        ]
