"""Multi-query associative recall: read key-value pairs, then give the value of each key asked for.

Source: Arora, Eyuboglu et al. 2023, "Zoology", arXiv:2312.04927, and its code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from statelab.config import DataConfig
from statelab.data.draws import Stream, distinct, uniform
from statelab.data.module import IGNORED, Batch, DataModule
from statelab.data.segments import MOST, Segment, parse_segments, slice_names
from statelab.errors import ConfigError
from statelab.options import option
from statelab.registries import data_modules

__all__ = ["MQAR", "MQARConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MQARConfig(DataConfig):
    """The defaults are the first cell of the paper's figure 2, but for its 64 tokens a sequence."""

    num_pairs: tuple[int, ...] = option(
        (4,),
        "key-value pairs of an example; of several counts all get equally many",
        at_least=1,
        smoke=(4,),
    )
    num_train: int = option(
        100_000,
        "training examples; their order is held in memory",
        at_least=1,
        at_most=MOST,
        smoke=16,
    )
    num_val: int = option(3_000, "validation examples, likewise", at_least=1, at_most=MOST, smoke=8)
    vocab_size: int = option(8192, "tokens; the lower half are keys, the upper values", at_least=4)
    power_a: float = option(
        0.01, "chance of a query g places on is as g^(power_a - 1); 1 is uniform", above=0
    )
    filler: Literal["zero", "random"] = option(
        "zero", "between queries; random: any token but the example's keys"
    )
    segments: tuple[str, ...] = option(
        (),
        "training examples of several lengths, each as tokens/pairs x examples, [64/4 x 1000, "
        "128/8 x 200]; then num_pairs and num_train say nothing, and seq_len is the longest",
        smoke=(),
    )
    val_segments: tuple[str, ...] = option((), "validation examples, likewise", smoke=())

    def __post_init__(self) -> None:
        DataConfig.__post_init__(self)
        if not self.num_pairs or len(set(self.num_pairs)) < len(self.num_pairs):
            raise ConfigError(
                f"data.num_pairs={list(self.num_pairs)} must name one count or several different "
                "ones, such as [4, 8]."
            )
        parts = [*self.parts(Stream.TRAIN), *self.parts(Stream.VAL)]
        longest = max(parts, key=lambda each: each.seq_len)
        if longest.seq_len > self.seq_len:
            raise ConfigError(
                f"data.seq_len={self.seq_len} is less than the {longest.seq_len} tokens of segment "
                f"{longest.shape}. Set data.seq_len={longest.seq_len}."
            )
        # Segments have been asked for themselves.
        tight = max(parts, key=lambda each: each.num_pairs / each.seq_len)
        if tight.seq_len < 4 * tight.num_pairs:
            raise ConfigError(
                f"data.seq_len={self.seq_len} has no room for data.num_pairs={tight.num_pairs}: a "
                f"pair and its query take 4 tokens. Set data.seq_len={4 * tight.num_pairs} or "
                "more, or fewer pairs."
            )
        most = max(each.num_pairs for each in parts)
        if most > self.vocab_size // 2 - 1:
            raise ConfigError(
                f"data.vocab_size={self.vocab_size} has {self.vocab_size // 2 - 1} keys, too few "
                f"for data.num_pairs={most}. Set data.vocab_size={2 * most + 2} or more."
            )

    def parts(self, split: Stream) -> tuple[Segment, ...]:
        """The segments of a split; one for each of `num_pairs`, where none are given."""
        train = split == Stream.TRAIN
        key, num = ("segments", self.num_train) if train else ("val_segments", self.num_val)
        if given := getattr(self, key):
            return parse_segments(f"data.{key}", given)
        kinds = len(self.num_pairs)
        return tuple(
            Segment(self.seq_len, num_pairs, len(range(kind, num, kinds)))
            for kind, num_pairs in enumerate(self.num_pairs)
        )


@data_modules.register("mqar", config=MQARConfig)
class MQAR(DataModule):
    """Multi-query associative recall, the synthetic task that tells memories apart.

    An example of n pairs, T tokens and V words of vocabulary:

        tokens   k1 v1 k2 v2 ... kn vn  .  .  k2 .  .  .  k1 .  ...
        labels   -  -  -  -      -  -   -  -  v2 -  -  -  v1 -  ...

    Keys are drawn from 1 .. V/2 - 1 and values from V/2 .. V - 1, both without replacement. After
    the pairs come (T - 2n) / 2 places of two tokens each; every key is asked for once, at the first
    token of a place of its own. The keys choose in turn, place g = 1, 2, ... with a chance that is
    proportional to a g^(a - 1) among the free ones.

    Everything else is filler: zeros, as in the paper's figure 2, or random tokens, as in its later
    runs. Theirs are any tokens at all; ours leave out the keys of the example, since a key amid
    the filler looks like a pair written anew, which has another right answer.

    Segments mix lengths and numbers of pairs in shares of their own, with longer or denser ones to
    validate on, perhaps. A batch has examples of one segment, so that none pays for another's
    length.

    An example is a pure function of (data.seed, split, index), apart from every other generator.
    """

    def __init__(self, config: MQARConfig) -> None:
        self.vocab_size = config.vocab_size
        self.slices = slice_names(config.parts(Stream.VAL))
        self._config = config

    def train(self) -> MQARExamples:
        """The same examples in each epoch."""
        return MQARExamples(self._config, Stream.TRAIN)

    def val(self) -> MQARExamples:
        """Drawn apart from the training's."""
        return MQARExamples(self._config, Stream.VAL)


class MQARExamples:
    """One split, drawn when asked for.

    Attributes:
        groups: Examples of each segment, which batches hold apart; of a split without segments,
            all have one length, and batches mix them.
    """

    def __init__(self, config: MQARConfig, split: Stream) -> None:
        self._config = config
        self._split = split
        self._parts = config.parts(split)
        nums = tuple(each.num for each in self._parts)
        mixed = not (config.segments if split == Stream.TRAIN else config.val_segments)
        self.groups = (sum(nums),) if mixed else nums

    def __len__(self) -> int:
        return sum(self.groups)

    def batch(self, index: NDArray[np.int64]) -> Batch:
        """Draw these examples; the slice of each is its segment, or its number of pairs.

        Of several lengths, the shorter end in zeros without a label.
        """
        kind = self._kind(index)
        kinds = np.unique(kind)
        shape = len(index), max(self._parts[i].seq_len for i in kinds)
        tokens, labels = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
        for i in kinds:
            rows = np.flatnonzero(kind == i)
            place = np.ix_(rows, np.arange(self._parts[i].seq_len))
            tokens[place], labels[place] = self._draw(index[rows], self._parts[i])
        return {
            "tokens": torch.from_numpy(tokens),
            "labels": torch.from_numpy(labels),
            "slice": torch.from_numpy(kind),
        }

    def _kind(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which segment each example is of: they take turns, or come one after the other."""
        if len(self.groups) < len(self._parts):
            return index % len(self._parts)
        return np.searchsorted(np.cumsum(self.groups), index, side="right")

    def _draw(
        self, index: NDArray[np.int64], part: Segment
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        T, V, n = part.seq_len, self._config.vocab_size, part.num_pairs
        num_places = (T - 2 * n) // 2
        counter = np.arange(2 * n + num_places + T)
        u = uniform(self._config.seed, self._split, index[:, None], counter)
        ends = [n, 2 * n, 2 * n + num_places]
        for_keys, for_values, for_places, for_filler = np.split(u, ends, axis=1)

        keys = 1 + distinct(for_keys, V // 2 - 1)
        values = V // 2 + distinct(for_values, V - V // 2)
        queries = 2 * n + 2 * _places(for_places, n, self._config.power_a)

        tokens = np.zeros((len(index), T), np.int64)
        if self._config.filler == "random":
            tokens = _any_but(keys, for_filler, V)
        tokens[:, 0 : 2 * n : 2] = keys
        tokens[:, 1 : 2 * n : 2] = values
        np.put_along_axis(tokens, queries, keys, axis=1)
        labels = np.full_like(tokens, IGNORED)
        np.put_along_axis(labels, queries, values, axis=1)
        return tokens, labels


def _places(u: NDArray[np.float64], num: int, power: float) -> NDArray[np.int64]:
    """Draw `num` of the places 0, 1, ... without replacement, g - 1 with weight g^(power - 1).

    As a race: place g finishes after an exponential time of rate g^(power - 1), and the order of
    finishing is that of draws without replacement.
    """
    g = np.arange(1, u.shape[1] + 1)
    times = -np.log1p(-u) * g ** (1.0 - power)
    return np.argsort(times, axis=1)[:, :num]


def _any_but(
    taken: NDArray[np.int64], u: NDArray[np.float64], vocab_size: int
) -> NDArray[np.int64]:
    """A token for each of `u`, uniform over the vocabulary without the row's `taken` ones."""
    num_taken = taken.shape[1]
    rank = (u * (vocab_size - num_taken)).astype(np.int64)
    # The i-th smallest taken token, i = 0, 1, ..., has `token - i` free ones below it.
    free_below = np.sort(taken, axis=1) - np.arange(num_taken)
    skipped = torch.searchsorted(torch.from_numpy(free_below), torch.from_numpy(rank), right=True)
    tokens: NDArray[np.int64] = rank + skipped.numpy()
    return tokens
