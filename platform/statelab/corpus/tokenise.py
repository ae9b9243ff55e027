"""Tokenise a source into shards: on all cores, in bounded memory, and from wherever it broke off.

One thread reads, two hand pieces of text to the tokenizer, which spreads them over all cores, and
what comes back is written in the order of the documents. What a shard holds depends on the
documents and the recipe alone: not on the cores, and not on how often it broke off.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from statelab.corpus.plan import Piece, Plan, Recipe, jobs
from statelab.corpus.shards import (
    SPLITS,
    Counts,
    Record,
    Shards,
    ShardWriter,
    SplitName,
    token_type,
)
from statelab.corpus.sources import Place
from statelab.corpus.tokenizer import Tokenizer
from statelab.errors import DataError
from statelab.search.turn import FileTurn

__all__ = ["tokenise"]

log = logging.getLogger(__name__)

_JOB_BYTES = 2**21
_JOBS_AHEAD = 4

_NOTHING_LEFT: Place = {"end": True}
"""The place behind the last shard: if only the index is missing, nothing is read again."""

Tell = Callable[[str], None]
_Encoded = tuple[NDArray[np.uint32], NDArray[np.int64] | None]


def tokenise(
    recipe: Recipe, tokenizer: Callable[[], Tokenizer], cache: Path, tell: Tell = lambda _: None
) -> Shards:
    """The shards of a recipe, written now if they aren't there; others wait who want the same.

    Args:
        recipe: What they are made of.
        tokenizer: Loads the tokenizer; called only if something is to be written.
        cache: The folder of all corpora.
        tell: Is told how far it is.

    Raises:
        DataError: If the documents can't be read, a split has none, or the folder can't be written.
    """
    folder = recipe.folder(cache)
    if not Shards.exist(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with FileTurn(folder / "lock").taken():
                if not Shards.exist(folder):
                    _write(recipe, tokenizer(), folder, tell)
        except OSError as error:
            raise DataError(
                f"data.cache: {folder} can't be written: {error.strerror or error}. Make room or "
                "give another folder, and run the same again: whole shards stay."
            ) from error
    return Shards(folder)


def _write(recipe: Recipe, tokenizer: Tokenizer, folder: Path, tell: Tell) -> None:
    for left in folder.glob(".*"):
        left.unlink()
    plan = Plan.of(recipe, folder)
    corpus = _Corpus(recipe, tokenizer, folder)
    with closing(corpus), ThreadPoolExecutor(2) as pool:
        for job, encoded in _encoded(pool, tokenizer, plan, corpus):
            for piece, (ids, sizes) in zip(job, encoded, strict=True):
                corpus.take(piece, ids, sizes)
            corpus.commit_if_due(job[-1].behind)
            tell(corpus.summary())
            if corpus.is_done:
                break
        corpus.finish()
    log.info("tokenised into %s: %s", folder, corpus.summary())


class _Corpus:
    """The shards so far, and the one in work.

    Args:
        recipe: What they are made of.
        tokenizer: Made their tokens.
        folder: Where they lie.
    """

    def __init__(self, recipe: Recipe, tokenizer: Tokenizer, folder: Path) -> None:
        self._recipe = recipe
        self._tokenizer = tokenizer
        self._folder = folder
        self._records: list[Record] = []
        self._counts: dict[SplitName, Counts] = {"train": Counts(), "val": Counts()}
        self._writer: ShardWriter | None = None
        self._takes = True
        self._missed = 0
        for record in _records(folder):
            self._add(record)
        if self._records:
            log.info("%s goes on behind shard %d", folder, len(self._records) - 1)

    @property
    def place(self) -> Place:
        """Where reading goes on."""
        return self._records[-1].behind if self._records else {}

    def counts(self, split: SplitName) -> Counts:
        """What there is of a split."""
        whole = self._counts[split]
        return whole + self._writer.counts[split] if self._writer else whole

    @property
    def is_full(self) -> bool:
        """Whether there is enough to train on."""
        most = self._recipe.max_tokens
        return most is not None and self.counts("train").tokens >= most

    @property
    def is_done(self) -> bool:
        """Whether no document is wanted any more; a named validation split is read to its end."""
        has_val = self._recipe.val_split is None and self.counts("val").documents > 0
        return has_val and self.is_full

    def take(self, piece: Piece, ids: NDArray[np.uint32], sizes: NDArray[np.int64] | None) -> None:
        """Write a piece, unless there is enough of its kind."""
        if piece.is_first:
            self._takes = not self.is_full or (piece.split == "val" and not self.is_done)
            self._missed = 0
        if not self._takes:
            return
        writer = self._writer or self._begin()
        writer.write(piece.split, ids, sizes, num_bytes=len(piece.text))
        self._missed += 0 if sizes is None else len(piece.text) - int(sizes.sum())
        if piece.is_last:
            # One byte, as the zero byte would be that stands there among bytes; and what of the
            # text no token has reached.
            size = np.array([1 + self._missed])
            writer.write(piece.split, np.array([self._tokenizer.end], np.uint32), size, num_bytes=0)
            writer.end_document(piece.split)

    def commit_if_due(self, behind: Place | None) -> None:
        """End the shard if it is long enough and reading can go on there."""
        if self._writer and behind and self._writer.tokens >= self._recipe.shard_tokens:
            self._end(behind)

    def finish(self) -> None:
        """End the last shard, and the corpus.

        Raises:
            DataError: If a split has no document.
        """
        for split, name in SPLITS.items():
            if not self.counts(split).documents:
                raise DataError(
                    f"data.path={self._recipe.source.path!r} leaves no document for {name}. Give "
                    "more text, another data.val_fraction, or a data.val_split."
                )
        if self._writer:
            self._end(_NOTHING_LEFT)
        about = {"vocab_size": self._tokenizer.vocab_size, "end": self._tokenizer.end}
        Shards.finish(self._folder, self._recipe.about() | about, self._records)

    def close(self) -> None:
        """Leave nothing half-written behind."""
        if self._writer:
            self._writer.abandon()

    def summary(self) -> str:
        """In words."""
        total = self.counts("train") + self.counts("val")
        return (
            f"{total.documents:,} documents, {total.bytes / 1e6:,.1f} MB, "
            f"{total.tokens / 1e6:,.1f} M tokens"
        )

    def _end(self, behind: Place) -> None:
        assert self._writer is not None
        self._add(self._writer.commit(behind))
        self._writer = None

    def _add(self, record: Record) -> None:
        self._records.append(record)
        for split in SPLITS:
            self._counts[split] += record.counts[split]

    def _begin(self) -> ShardWriter:
        number = len(self._records)
        writer = ShardWriter(self._folder, number, token_type(self._tokenizer.vocab_size))
        self._writer = writer
        if number == 0:
            end, size = np.array([self._tokenizer.end], np.uint32), np.array([0])
            for split in SPLITS:
                writer.write(split, end, size, num_bytes=0)
        return writer


def _encoded(
    pool: ThreadPoolExecutor, tokenizer: Tokenizer, plan: Plan, corpus: _Corpus
) -> Iterator[tuple[list[Piece], list[_Encoded]]]:
    """The jobs in their order, each with its tokens; a few are in work at any time."""
    if corpus.is_done or corpus.place == _NOTHING_LEFT:
        return
    pieces = plan.pieces(corpus.place, lambda: corpus.is_full)
    work: deque[tuple[list[Piece], Future[list[_Encoded]]]] = deque()
    for job in jobs(pieces, min(_JOB_BYTES, plan.recipe.shard_tokens)):
        work.append((job, pool.submit(_encode, tokenizer, job)))
        if len(work) > _JOBS_AHEAD:
            ready, tokens = work.popleft()
            yield ready, tokens.result()
    for ready, tokens in work:
        yield ready, tokens.result()


def _encode(tokenizer: Tokenizer, job: list[Piece]) -> list[_Encoded]:
    train = iter(tokenizer.encode([each.text for each in job if each.split == "train"]))
    val = iter(tokenizer.encode_sized([each.text for each in job if each.split == "val"]))
    return [(next(train), None) if each.split == "train" else next(val) for each in job]


def _records(folder: Path) -> Iterator[Record]:
    """The shards that are complete."""
    for number in itertools.count():
        record = Record.read(folder, number)
        if record is None:
            return
        yield record
