"""A tokenised corpus as training sees it: a stream of tokens, mapped into memory where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statelab.corpus.shards import Counts, Shards, SplitName, token_type

__all__ = ["ShardStream"]


class ShardStream:
    """All tokens of a split.

    Loader processes get the folder's name and the counts alone, and map the files themselves.

    Args:
        shards: The corpus.
        split: train or val.
    """

    def __init__(self, shards: Shards, split: SplitName) -> None:
        self._folder: Path = shards.folder
        self._split = split
        self._dtype = token_type(shards.about["vocab_size"])
        counts = [(each.number, each.counts[split]) for each in shards.records]
        self._counts: list[tuple[int, Counts]] = [each for each in counts if each[1].tokens]
        lengths = [each.tokens for _, each in self._counts]
        self._starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self._maps: dict[str, NDArray[Any]] = {}

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": {}}

    def tokens(self, places: Tensor) -> Tensor:
        """The tokens at these places."""
        return self._gather(places, "tokens", self._dtype)

    def ends(self, places: Tensor) -> Tensor:
        """Whether the last token of a document stands there."""
        where = places.numpy()
        found = np.zeros(where.shape, bool)
        for shard, chosen, local in self._by_shard(where):
            documents = self._counts[shard][1].documents
            if documents:
                ends = self._map(shard, "ends", np.dtype("<i8"), documents)
                nearest = np.minimum(np.searchsorted(ends, local), documents - 1)
                found[chosen] = ends[nearest] == local
        return torch.from_numpy(found)

    def num_bytes(self, places: Tensor) -> Tensor | None:
        """The bytes of text that the tokens there stand for; kept to validate only."""
        return self._gather(places, "bytes", np.dtype("<u4")) if self._split == "val" else None

    def _gather(self, places: Tensor, kind: str, dtype: np.dtype[Any]) -> Tensor:
        where = places.numpy()
        found = np.empty(where.shape, np.int64)
        for shard, chosen, local in self._by_shard(where):
            found[chosen] = self._map(shard, kind, dtype, self._counts[shard][1].tokens)[local]
        return torch.from_numpy(found)

    def _by_shard(
        self, where: NDArray[np.int64]
    ) -> Iterator[tuple[int, NDArray[np.bool_], NDArray[np.int64]]]:
        """(shard, which of the places it has, where in it)."""
        shards = np.searchsorted(self._starts, where, side="right") - 1
        for shard in np.unique(shards):
            chosen = shards == shard
            yield int(shard), chosen, where[chosen] - self._starts[shard]

    def _map(self, shard: int, kind: str, dtype: np.dtype[Any], length: int) -> NDArray[Any]:
        name = f"{self._counts[shard][0]:05}.{self._split}.{kind}"
        if name not in self._maps:
            self._maps[name] = np.memmap(self._folder / name, dtype, "r", shape=(length,))
        return self._maps[name]
