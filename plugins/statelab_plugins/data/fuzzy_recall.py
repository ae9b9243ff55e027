"""Fuzzy in-context recall: keys and values of several tokens.

Source: Poli et al. 2024, arXiv:2403.17844, section 3.1 and its code, several queries an example.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from statelab.data.draws import Stream, distinct, uniform
from statelab.data.module import IGNORED
from statelab.errors import ConfigError
from statelab.options import option
from statelab.registries import data_modules
from statelab_plugins.data.drawn import Arrays, DrawnConfig, DrawnData, next_tokens

__all__ = ["FuzzyRecall", "FuzzyRecallConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FuzzyRecallConfig(DrawnConfig):
    """The defaults are MAD's base setting."""

    seq_len: int = option(128, "tokens a sequence", at_least=5)
    key_size: int = option(3, "most tokens of a key", at_least=1)
    value_size: int = option(3, "most tokens of a value", at_least=1)
    train_on: Literal["all", "answers"] = option(
        "all", "labels to learn from: every next token, as in MAD, or only a known key's value"
    )

    def __post_init__(self) -> None:
        DrawnConfig.__post_init__(self)
        if self.seq_len <= 2 * self.pair_size:
            raise ConfigError(
                f"data.seq_len={self.seq_len} has no room for a pair and its question, which take "
                f"{2 * self.pair_size} tokens and one of padding. Set data.seq_len="
                f"{2 * self.pair_size + 1} or more, or smaller keys."
            )
        keys, values = self.key_tokens, self.vocab_size - 1 - self.key_tokens
        if keys < self.key_size or values < self.value_size:
            raise ConfigError(
                f"data.vocab_size={self.vocab_size} has {keys} tokens for keys and {values} for "
                f"values; data.key_size={self.key_size} and data.value_size={self.value_size} "
                "take as many different ones. Raise data.vocab_size."
            )

    @property
    def pair_size(self) -> int:
        """Most tokens of a pair."""
        return self.key_size + self.value_size

    @property
    def key_tokens(self) -> int:
        """Tokens that keys are made of: the lower half."""
        return (self.vocab_size - 1) // 2


@data_modules.register("fuzzy_recall", config=FuzzyRecallConfig)
class FuzzyRecall(DrawnData):
    """In-context recall whose keys and values are motifs: 1 to 3 different tokens in a row.

        tokens   _  _  3 1 4  9  0 2 1  8 7  3 1 4  9
        labels   -  -  - - -  -  - - -  - -  - - 9  -

    Of V tokens the lower half of 0 .. V - 2 makes keys, the upper half values; V - 1 is the
    padding _, at the beginning. Keys are of 1 to `key_size` tokens in training and always of
    `key_size` in validation; values are of 1 to `value_size`. Size and tokens of a motif are
    uniform. A key has one value in an example.

    The example ends with a question: a pair that stood before it, at least once. All values of
    keys that have been shown already are asked for, and these labels are what is validated on. What
    is learned from are by default all next tokens, as in MAD. (In training the first token of a
    value is never certain, since the key may yet go on.)

    Differs from MAD's: there the pair of the last question is now and then left out before it,
    so that some answers can't be known. Ours takes the last place then. And there is one token of
    padding less, since the last token of all is read, too.
    """

    config: FuzzyRecallConfig

    def draw(self, split: Stream, index: NDArray[np.int64]) -> Arrays:
        """Draw more pairs than fit, set the one to ask for among them, and lay them out."""
        config, B, T = self.config, len(index), self.config.seq_len
        least = config.key_size if split == Stream.VAL else 1
        N = -(-T // (least + 1))
        u = self.uniform(split, index, N + 2, 1 + config.key_size)
        keys = _motifs(u[:, : N + 1], (least, config.key_size), (0, config.key_tokens))
        pairs = np.concatenate([keys, self._values(split, index, keys)], axis=2)
        pairs, asked = pairs[:, :N], pairs[:, N:]

        # The pair to ask for takes the first place from a random one on, unless it stood before.
        sizes, asked_size = _sizes(pairs), _sizes(asked)
        earliest = (u[:, N + 1, 0] * (T - 2 * asked_size[:, 0])).astype(np.int64)
        start = _starts(sizes)
        fits = start < T - asked_size - config.pair_size
        wanted = (start >= earliest[:, None]) & fits
        place = np.where(wanted.any(axis=1), wanted.argmax(axis=1), fits.sum(axis=1) - 1)
        before = np.arange(N) < place[:, None]
        stood = (_same_key(pairs, asked, config.key_size) & before).any(axis=1)
        rows = np.flatnonzero(~stood)
        pairs[rows, place[rows]] = asked[rows, 0]
        sizes = _sizes(pairs)
        fits = _starts(sizes) < T - asked_size - config.pair_size

        pairs = np.where(fits[:, :, None], pairs, _NONE)
        pairs = np.concatenate([pairs, asked], axis=1)
        again = _again(_names(pairs[:, :, : config.key_size], self.vocab_size))
        answer = np.zeros(pairs.shape, bool)
        answer[:, :, config.key_size :] = again[:, :, None]
        return self._lay_out(split, pairs.reshape(B, -1), answer.reshape(B, -1))

    def _values(
        self, split: Stream, index: NDArray[np.int64], keys: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The value of each key: a function of the example and the key, so that it has one."""
        config, V = self.config, self.vocab_size
        name = _names(keys, V)
        counter = np.arange(1 + config.value_size)
        u = uniform(config.seed, split, index[:, None, None], 1, name[:, :, None], counter)
        return _motifs(u, (1, config.value_size), (config.key_tokens, V - 1))

    def _lay_out(
        self, split: Stream, slots: NDArray[np.int64], answer: NDArray[np.bool_]
    ) -> Arrays:
        """Push the tokens to the end, and put padding where there are none."""
        T = self.config.seq_len
        order = np.argsort(slots != _NONE, axis=1, kind="stable")[:, -T:]
        slots = np.take_along_axis(slots, order, axis=1)
        answer = np.take_along_axis(answer, order, axis=1)
        tokens = np.where(slots == _NONE, self.vocab_size - 1, slots)
        labels = next_tokens(tokens)
        if split == Stream.VAL or self.config.train_on == "answers":
            labels[:, :-1][~(answer & (slots != _NONE))[:, 1:]] = IGNORED
        return {"tokens": tokens, "labels": labels}


_NONE = -1
"""Where a motif has no token."""


def _motifs(
    u: NDArray[np.float64], sizes: tuple[int, int], tokens: tuple[int, int]
) -> NDArray[np.int64]:
    """Draw motifs of different tokens.

    Args:
        u: [B, N, 1 + most] uniform numbers: the size's, then the tokens'.
        sizes: The least and the most tokens.
        tokens: The first token, and the end of them.

    Returns:
        [B, N, most], with nothing at the end of the smaller ones.
    """
    (least, most), (first, end) = sizes, tokens
    size = least + (u[..., 0] * (most - least + 1)).astype(np.int64)
    drawn = first + distinct(u[..., 1:].reshape(-1, most), end - first)
    return np.where(np.arange(most) < size[..., None], drawn.reshape(*size.shape, most), _NONE)


def _sizes(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    sizes: NDArray[np.int64] = (pairs != _NONE).sum(axis=2)
    return sizes


def _starts(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many tokens stand before each pair."""
    return np.cumsum(sizes, axis=1) - sizes


def _same_key(
    pairs: NDArray[np.int64], asked: NDArray[np.int64], key_size: int
) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = (pairs[:, :, :key_size] == asked[:, :, :key_size]).all(axis=2)
    return same


def _names(keys: NDArray[np.int64], base: int) -> NDArray[np.int64]:
    """A number for each key, another for each other one, [B, N]."""
    names: NDArray[np.int64] = ((keys - _NONE) * base ** np.arange(keys.shape[2])).sum(axis=2)
    return names


def _again(names: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of each row's numbers have stood before, [B, N]."""
    order = np.argsort(names, axis=1, kind="stable")
    ordered = np.take_along_axis(names, order, axis=1)
    again = np.zeros(names.shape, bool)
    np.put_along_axis(again, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
    return again
