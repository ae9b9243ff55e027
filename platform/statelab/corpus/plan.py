"""What is to be tokenised: the recipe, its documents in pieces, and which of them validate."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from statelab.corpus.shards import FORMAT, UNREADABLE, SplitName, damaged, write_json
from statelab.corpus.sources import Place, Source
from statelab.data.split import draw, limit
from statelab.errors import DataError

__all__ = ["Piece", "Plan", "Recipe", "jobs"]

_PIECE_BYTES = 2**20
"""What is encoded at once; a longer document is cut behind the end of a line, where it has one."""
_HEAD_DOCUMENTS, _HEAD_BYTES = 1000, 2**24


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


@dataclass(frozen=True, slots=True)
class Piece:
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
class Plan:
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
    def of(cls, recipe: Recipe, folder: Path) -> Plan:
        """The one that the folder has, or a new one.

        Raises:
            DataError: If the folder's can't be read, or the source can't.
        """
        file = folder / "plan.json"
        if file.is_file():
            try:
                values = json.loads(file.read_text(encoding="utf-8"))
                return cls._with(recipe, **values)
            except UNREADABLE as error:
                raise damaged(file, f"can't be read ({type(error).__name__})") from error
        commit = recipe.source.commit()
        values = {"commit": commit, **cls._look(_bound(recipe, commit))}
        write_json(file, values)
        return cls._with(recipe, **values)

    @classmethod
    def _with(cls, recipe: Recipe, commit: str | None, most: float, is_single: bool) -> Plan:
        """Of what the file says."""
        return cls(recipe=_bound(recipe, commit), most=most, is_single=is_single)

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

    def pieces(self, place: Place, is_full: Callable[[], bool]) -> Iterator[Piece]:
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

    def _cut(self, document: bytes, source: int, behind: Place) -> Iterator[Piece]:
        if self.is_single and not self.recipe.val_split:
            cut = _boundary(document, len(document) * (1 - self.recipe.val_fraction))
            yield from _cut(document[:cut], "train", source, None)
            yield from _cut(document[cut:], "val", source, behind)
        elif self.recipe.val_split:
            yield from _cut(document, "val" if source else "train", source, behind)
        else:
            split: SplitName = "val" if draw(document) <= self.most else "train"
            yield from _cut(document, split, source, behind)


def _bound(recipe: Recipe, commit: str | None) -> Recipe:
    """With its source bound to a commit, where it has one."""
    revision = commit or recipe.source.revision
    return replace(recipe, source=replace(recipe.source, revision=revision))


def jobs(pieces: Iterator[Piece], size: int) -> Iterator[list[Piece]]:
    """Pieces in lists of that many bytes or a little more, each of one source."""
    for _, group in itertools.groupby(pieces, lambda piece: piece.source):
        job: list[Piece] = []
        total = 0
        for piece in group:
            job.append(piece)
            total += len(piece.text)
            if total >= size:
                yield job
                job, total = [], 0
        if job:
            yield job


def _cut(document: bytes, split: SplitName, source: int, behind: Place | None) -> Iterator[Piece]:
    """A document in pieces."""
    start = 0
    while True:
        stop = len(document)
        if stop - start > _PIECE_BYTES:
            line = document.rfind(b"\n", start + _PIECE_BYTES // 2, start + _PIECE_BYTES)
            stop = line + 1 if line >= 0 else _boundary(document, start + _PIECE_BYTES)
        is_last = stop == len(document)
        text, after = document[start:stop], behind if is_last else None
        yield Piece(text, split, source, start == 0, is_last, after)
        if is_last:
            return
        start = stop


def _boundary(document: bytes, place: float) -> int:
    """The first place from there on, at which no character of UTF-8 is cut."""
    start = round(place)
    inside = itertools.takewhile(lambda byte: byte & 0xC0 == 0x80, document[start : start + 3])
    return start + sum(1 for _ in inside)
