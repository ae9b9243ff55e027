"""In-context recall: pairs of keys and values, in which a key that comes again has its value again.

Source: Poli et al. 2024, "Mechanistic design and scaling of hybrid architectures",
arXiv:2403.17844, section 3.1 and its code, several queries an example.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from statelab.data.draws import Stream, distinct
from statelab.data.module import IGNORED
from statelab.errors import ConfigError
from statelab.options import option
from statelab.registries import data_modules
from statelab_plugins.data.drawn import Arrays, DrawnConfig, DrawnData, next_tokens

__all__ = ["InContextRecall", "InContextRecallConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class InContextRecallConfig(DrawnConfig):
    """The defaults are MAD's base setting."""

    seq_len: int = option(128, "tokens a sequence, an even number", at_least=4)
    num_keys: tuple[int, ...] = option(
        (),
        "different keys of an example, all of them shown; of several counts all get equally many; "
        "empty: any of the vocabulary's, as they fall",
        at_least=1,
        smoke=(),
    )
    train_on: Literal["all", "answers"] = option(
        "all", "labels to learn from: every next token, as in MAD, or only a known key's value"
    )

    def __post_init__(self) -> None:
        DrawnConfig.__post_init__(self)
        if self.seq_len % 2:
            raise ConfigError(
                f"data.seq_len={self.seq_len} must be even, since a key and its value take 2 "
                f"tokens; try {self.seq_len + 1}."
            )
        if len(set(self.num_keys)) < len(self.num_keys):
            raise ConfigError(
                f"data.num_keys={list(self.num_keys)} names a count twice. Give each once."
            )
        most = min(self.key_tokens, self.seq_len // 2 - 1)
        if max(self.num_keys, default=1) > most:
            raise ConfigError(
                f"data.num_keys={list(self.num_keys)}: data.vocab_size={self.vocab_size} has "
                f"{self.key_tokens} keys, and data.seq_len={self.seq_len} room to show "
                f"{self.seq_len // 2 - 1}. Ask for {most} or fewer."
            )

    @property
    def plain_tokens(self) -> int:
        """Tokens that are keys or values."""
        return self.vocab_size

    @property
    def key_tokens(self) -> int:
        """Tokens that are keys: the lower half."""
        return self.plain_tokens // 2

    @property
    def noise_share(self) -> float:
        """The chance of a place for a pair to hold noise instead."""
        return 0.0


@data_modules.register("in_context_recall", config=InContextRecallConfig)
class InContextRecall(DrawnData):
    """In-context recall, with a question wherever a key comes again.

    An example of T tokens is T / 2 pairs; of V tokens the lower half are keys:

        tokens   k3 v9 k1 v8 k3 v9 k5 v9 k1 v8 ... k5 v9
        labels   -  -  -  -  v9 -  -  -  v8 -      v9 -

    Each pair's key is drawn from all, and each key's value once an example, also from all: two
    keys may have the same. The last pair's key is drawn from those shown before it, so that there
    is always a question.

    The labels above are those to validate on. What is learned from are by default all next tokens,
    also those that can't be known, as in MAD.

    With `num_keys` an example has exactly so many different keys. Each is shown at a place of its
    own; the other pairs draw from them. Accuracy is also shown for each count, as keys_8.

    Differs from MAD's: T tokens where theirs leave out the last one, which is never asked about.
    """

    config: InContextRecallConfig

    def __init__(self, config: InContextRecallConfig) -> None:
        super().__init__(config)
        self.slices = tuple(f"keys_{num}" for num in config.num_keys)

    def draw(self, split: Stream, index: NDArray[np.int64]) -> Arrays:
        """Draw pairs, count by count of keys."""
        counts = self.config.num_keys
        if not counts:
            return self._examples(split, index, None)
        kind = index % len(counts)
        shape = len(index), self.config.seq_len
        batch = {"tokens": np.empty(shape, np.int64), "labels": np.empty(shape, np.int64)}
        for i in np.unique(kind):
            rows = kind == i
            for name, each in self._examples(split, index[rows], counts[i]).items():
                batch[name][rows] = each
        return batch | {"slice": kind}

    def _examples(self, split: Stream, index: NDArray[np.int64], num_keys: int | None) -> Arrays:
        config, B = self.config, len(index)
        K, places = config.key_tokens, config.seq_len // 2 - 1
        n, num_shown = (K, 1) if num_keys is None else (num_keys, num_keys)
        u = self.uniform(split, index, 2 * n + K + 5 * places + 3)
        for_pool, for_values, for_order, for_keys, for_noise, for_noises, for_last = np.split(
            u, np.cumsum([n, K, places, places, places, 2 * places]), axis=1
        )
        # The first places in a random order show a key each, whatever the others do.
        pool = distinct(for_pool, K)
        shown = np.argsort(for_order, axis=1)[:, :num_shown]
        which = (for_keys * n).astype(np.int64)
        np.put_along_axis(which, shown, np.arange(num_shown)[None], axis=1)
        noisy = for_noise < config.noise_share
        np.put_along_axis(noisy, shown, False, axis=1)
        keys = np.take_along_axis(pool, which, axis=1)
        known = np.zeros((B, K), bool)
        np.logical_or.at(known, (np.arange(B)[:, None], keys), ~noisy)

        keys = np.concatenate([keys, _one_of(known, for_last[:, 0])], axis=1)
        noisy = np.pad(noisy, ((0, 0), (0, 1)))
        value_of = K + (for_values * (config.plain_tokens - K)).astype(np.int64)
        values = np.take_along_axis(value_of, keys, axis=1)
        tokens = np.stack([keys, values], axis=2)
        noise = for_noises.reshape(B, places, 2) * (config.vocab_size - config.plain_tokens)
        tokens[:, :-1][noisy[:, :-1]] = config.plain_tokens + noise[noisy[:, :-1]].astype(np.int64)
        tokens = tokens.reshape(B, -1)
        if split == Stream.TRAIN and config.train_on == "all":
            return {"tokens": tokens, "labels": next_tokens(tokens)}
        labels = np.full_like(tokens, IGNORED)
        labels[:, ::2] = np.where(_again(keys, noisy, K), values, IGNORED)
        return {"tokens": tokens, "labels": labels}


def _one_of(known: NDArray[np.bool_], u: NDArray[np.float64]) -> NDArray[np.int64]:
    """One of each row's true columns, all with the same chance, [B, 1]."""
    rank = (u * known.sum(axis=1)).astype(np.int64)
    chosen: NDArray[np.int64] = (np.cumsum(known, axis=1) > rank[:, None]).argmax(axis=1)
    return chosen[:, None]


def _again(keys: NDArray[np.int64], noisy: NDArray[np.bool_], size: int) -> NDArray[np.bool_]:
    """Where a key stands that has stood before, [B, N]."""
    place = np.arange(keys.shape[1])[None]
    first = np.full((len(keys), size), keys.shape[1])
    rows = np.arange(len(keys))[:, None]
    np.minimum.at(first, (rows, keys), np.where(noisy, keys.shape[1], place))
    again: NDArray[np.bool_] = ~noisy & (place > np.take_along_axis(first, keys, axis=1))
    return again
