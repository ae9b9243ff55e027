"""Tokenise a source into shards: on all cores, in bounded memory, and from wherever it broke off.

One thread reads, two hand pieces of text to the tokenizer, which spreads them over all cores, and
what comes back is written in the order of the documents. What a shard holds depends on the
documents and the recipe alone: not on the cores, and not on how often it broke off.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from statelab.corpus.shards import (
    FORMAT,
    SPLITS,
    Counts,
    Record,
    Shards,
    ShardWriter,
    SplitName,
    token_type,
    write_json,
)
from statelab.corpus.sources import Place, Source
from statelab.corpus.tokenizer import Tokenizer
from statelab.data.split import draw, limit
from statelab.errors import DataError
from statelab.search.turn import FileTurn

__all__ = ["Recipe", "tokenise"]

log = logging.getLogger(__name__)

_PIECE_BYTES = 2**20
"""What is encoded at once; a longer document is cut behind the end of a line, where it has one."""
_JOB_BYTES = 2**21
_JOBS_AHEAD = 4
_HEAD_DOCUMENTS, _HEAD_BYTES = 1000, 2**24

_NOTHING_LEFT: Place = {"end": True}
"""The place behind the last shard: if only the index is missing, nothing is read again."""

Tell = Callable[[str], None]
_Encoded = tuple[NDArray[np.uint32], NDArray[np.int64] | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """What a tokenised corpus is made of, and how.

    Attributes:
        source: The documents.
        tokenizer: The fingerprint of the tokenizer.
        end_token: The token after each document, where it isn't the tokenizer's own.
        val_split: The split to validate on; None takes documents by their content.
        val_fraction: How many of them.
        max_tokens: Where to stop, in training tokens; None takes all documents.
        shard_tokens: How many a shard has, about.
    """

    source: Source
    tokenizer: str
    end_token: str | None
    val_split: str | None
    val_fraction: float
    max_tokens: int | None
    shard_tokens: int

    def about(self) -> dict[str, Any]:
        """All that the shards depend on, as plain values."""
        return {
            "format": FORMAT,
            "source": self.source.identity(),
            "tokenizer": self.tokenizer,
            "end_token": self.end_token,
            "val_split": self.val_split,
            "val_fraction": None if self.val_split else self.val_fraction,
            "max_tokens": self.max_tokens,
            "shard_tokens": self.shard_tokens,
        }

    def folder(self, cache: Path) -> Path:
        """Where its shards lie: no other recipe's do."""
        values = json.dumps(self.about(), sort_keys=True).encode()
        words = re.findall(r"\w[\w-]*", f"{self.source.path} {self.source.subset or ''}")
        return cache / f"{'-'.join(words[-3:])[-60:]}-{hashlib.sha256(values).hexdigest()[:16]}"


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
    plan = _Plan.of(recipe, folder)
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


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a document.

    Attributes:
        text: In UTF-8, no character cut.
        split: Where it goes.
        source: The number of the source it is from.
        is_first: Whether its document begins with it.
        is_last: Whether its document ends with it.
        behind: Where reading can go on after it; None if it can't there.
    """

    text: bytes
    split: SplitName
    source: int
    is_first: bool
    is_last: bool
    behind: Place | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """What is decided once, before the first shard.

    Attributes:
        recipe: What it is for, its source bound to one commit.
        most: The largest draw that validates.
        is_single: Whether there is but one document, whose end validates.
    """

    recipe: Recipe
    most: float
    is_single: bool

    @classmethod
    def of(cls, recipe: Recipe, folder: Path) -> _Plan:
        """The one that the folder has, or a new one."""
        file = folder / "plan.json"
        if file.is_file():
            values = json.loads(file.read_text(encoding="utf-8"))
        else:
            values = {"commit": recipe.source.commit()}
        commit = values["commit"] or recipe.source.revision
        recipe = replace(recipe, source=replace(recipe.source, revision=commit))
        if not file.is_file():
            values |= cls._look(recipe)
            write_json(file, values)
        return cls(recipe=recipe, most=values["most"], is_single=values["is_single"])

    @staticmethod
    def _look(recipe: Recipe) -> dict[str, Any]:
        """Read the beginning: where that is all, a document of it must validate in any case."""
        draws: list[float] = []
        size = 0
        for document, _ in recipe.source.read({}):
            draws.append(draw(document))
            size += len(document)
            if len(draws) == _HEAD_DOCUMENTS or (size >= _HEAD_BYTES and len(draws) > 1):
                return {"most": recipe.val_fraction, "is_single": False}
        if not draws:
            raise DataError(f"data.path={recipe.source.path!r} has no text. Give some.")
        if recipe.val_split:
            return {"most": 0.0, "is_single": False}
        return {"most": limit(draws, recipe.val_fraction), "is_single": len(draws) == 1}

    def pieces(self, place: Place, is_full: Callable[[], bool]) -> Iterator[_Piece]:
        """The documents after a place, in pieces; the named validation split comes last.

        Args:
            place: Empty for the beginning.
            is_full: Whether there is enough to train on.
        """
        sources = [self.recipe.source]
        if self.recipe.val_split:
            sources.append(replace(self.recipe.source, split=self.recipe.val_split))
        first = place.get("source", 0)
        for number, source in enumerate(sources[first:], first):
            if number < len(sources) - 1 and is_full():
                continue
            for document, behind in source.read(place.get("at", {}) if number == first else {}):
                yield from self._cut(document, number, {"source": number, "at": behind})
                if number < len(sources) - 1 and is_full():
                    break

    def _cut(self, document: bytes, source: int, behind: Place) -> Iterator[_Piece]:
        if self.is_single and not self.recipe.val_split:
            cut = _boundary(document, len(document) * (1 - self.recipe.val_fraction))
            yield from _cut(document[:cut], "train", source, None)
            yield from _cut(document[cut:], "val", source, behind)
        elif self.recipe.val_split:
            yield from _cut(document, "val" if source else "train", source, behind)
        else:
            split: SplitName = "val" if draw(document) <= self.most else "train"
            yield from _cut(document, split, source, behind)


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

    def take(self, piece: _Piece, ids: NDArray[np.uint32], sizes: NDArray[np.int64] | None) -> None:
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
    pool: ThreadPoolExecutor, tokenizer: Tokenizer, plan: _Plan, corpus: _Corpus
) -> Iterator[tuple[list[_Piece], list[_Encoded]]]:
    """The jobs in their order, each with its tokens; a few are in work at any time."""
    if corpus.is_done or corpus.place == _NOTHING_LEFT:
        return
    pieces = plan.pieces(corpus.place, lambda: corpus.is_full)
    work: deque[tuple[list[_Piece], Future[list[_Encoded]]]] = deque()
    for job in _jobs(pieces, min(_JOB_BYTES, plan.recipe.shard_tokens)):
        work.append((job, pool.submit(_encode, tokenizer, job)))
        if len(work) > _JOBS_AHEAD:
            ready, tokens = work.popleft()
            yield ready, tokens.result()
    for ready, tokens in work:
        yield ready, tokens.result()


def _encode(tokenizer: Tokenizer, job: list[_Piece]) -> list[_Encoded]:
    train = iter(tokenizer.encode([each.text for each in job if each.split == "train"]))
    val = iter(tokenizer.encode_sized([each.text for each in job if each.split == "val"]))
    return [(next(train), None) if each.split == "train" else next(val) for each in job]


def _jobs(pieces: Iterator[_Piece], size: int) -> Iterator[list[_Piece]]:
    """Pieces in lists of that many bytes or a little more, each of one source."""
    for _, group in itertools.groupby(pieces, lambda piece: piece.source):
        job: list[_Piece] = []
        total = 0
        for piece in group:
            job.append(piece)
            total += len(piece.text)
            if total >= size:
                yield job
                job, total = [], 0
        if job:
            yield job


def _cut(document: bytes, split: SplitName, source: int, behind: Place | None) -> Iterator[_Piece]:
    """A document in pieces."""
    start = 0
    while True:
        stop = len(document)
        if stop - start > _PIECE_BYTES:
            line = document.rfind(b"\n", start + _PIECE_BYTES // 2, start + _PIECE_BYTES)
            stop = line + 1 if line >= 0 else _boundary(document, start + _PIECE_BYTES)
        is_last = stop == len(document)
        text, after = document[start:stop], behind if is_last else None
        yield _Piece(text, split, source, start == 0, is_last, after)
        if is_last:
            return
        start = stop


def _boundary(document: bytes, place: float) -> int:
    """The first place from there on, at which no character of UTF-8 is cut."""
    start = round(place)
    inside = itertools.takewhile(lambda byte: byte & 0xC0 == 0x80, document[start : start + 3])
    return start + sum(1 for _ in inside)


def _records(folder: Path) -> Iterator[Record]:
    """The shards that are complete."""
    for number in itertools.count():
        record = Record.read(folder, number)
        if record is None:
            return
        yield record
