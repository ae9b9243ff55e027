"""The files of a tokenised corpus: numbered shards, each with a record, and an index of all.

    index.json           what the corpus is, and the records of all shards; written last
    00000.json           a shard's record: sizes and SHA-256 of its files, and where reading goes on
    00000.train.tokens   the documents' tokens, one after the other: uint8, uint16 or uint32
    00000.train.ends     where the last token of each document stands in the shard: int64
    00000.val.tokens     likewise of the documents to validate on
    00000.val.ends
    00000.val.bytes      the bytes of text that each of those tokens stands for: uint32

All numbers are little-endian. The shards of a split, in their order, are one stream of tokens. It
begins with the token that ends documents, so that each document's first token has one before it.
A file has its name only once it is complete, and a shard counts once it has its record.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from statelab.errors import DataError

__all__ = [
    "FORMAT",
    "SPLITS",
    "UNREADABLE",
    "Counts",
    "Record",
    "ShardWriter",
    "Shards",
    "SplitName",
    "damaged",
    "token_type",
    "write_json",
]

FORMAT = 1
_INDEX = "index.json"
_FILES = ("train.tokens", "train.ends", "val.tokens", "val.ends", "val.bytes")

UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)
"""What a file of JSON raises that is damaged, or not what it was written as."""

SplitName = Literal["train", "val"]

SPLITS: dict[SplitName, str] = {"train": "training", "val": "validation"}
"""The splits, and what messages call them."""


def token_type(vocab_size: int) -> np.dtype[Any]:
    """The smallest type that holds every token."""
    bits = 8 if vocab_size <= 2**8 else 16 if vocab_size <= 2**16 else 32
    return np.dtype(f"<u{bits // 8}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What a shard, or all of them, have of a split.

    Attributes:
        documents: How many.
        tokens: How many, those that end documents and the first of all included.
        bytes: Of their text.
    """

    documents: int = 0
    tokens: int = 0
    bytes: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            documents=self.documents + other.documents,
            tokens=self.tokens + other.tokens,
            bytes=self.bytes + other.bytes,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A shard that is complete.

    Attributes:
        number: From 0.
        counts: By split.
        files: Size in bytes and SHA-256 by name.
        behind: Where reading goes on.
    """

    number: int
    counts: dict[SplitName, Counts]
    files: dict[str, tuple[int, str]]
    behind: dict[str, Any]

    @classmethod
    def read(cls, folder: Path, number: int) -> Record | None:
        """The record of a shard; None if it hasn't one.

        Raises:
            DataError: If it can't be read.
        """
        file = folder / f"{number:05}.json"
        try:
            return cls.of(json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except UNREADABLE as error:
            raise damaged(file, f"can't be read ({type(error).__name__})") from error

    @classmethod
    def of(cls, values: dict[str, Any]) -> Record:
        """Out of plain values."""
        return cls(
            number=values["number"],
            counts={split: Counts(**values["counts"][split]) for split in SPLITS},
            files={name: (size, digest) for name, (size, digest) in values["files"].items()},
            behind=values["behind"],
        )


class ShardWriter:
    """Writes one shard; what is begun and not committed leaves nothing that counts.

    Args:
        folder: Of all shards.
        number: Of this one.
        dtype: Of the tokens.
    """

    def __init__(self, folder: Path, number: int, dtype: np.dtype[Any]) -> None:
        self._folder = folder
        self._number = number
        self._dtype = dtype
        self._parts = {name: _Part(folder, f"{number:05}.{name}") for name in _FILES}
        self.counts: dict[SplitName, Counts] = {"train": Counts(), "val": Counts()}

    @property
    def tokens(self) -> int:
        """How many it has."""
        return sum(each.tokens for each in self.counts.values())

    def write(
        self,
        split: SplitName,
        tokens: NDArray[np.uint32],
        sizes: NDArray[np.int64] | None,
        *,
        num_bytes: int,
    ) -> None:
        """Append tokens to a split.

        Args:
            split: Which.
            tokens: [n].
            sizes: The bytes of text that each stands for, [n]; needed to validate only.
            num_bytes: Of text, in all.
        """
        self._parts[f"{split}.tokens"].write(tokens.astype(self._dtype))
        if split == "val":
            assert sizes is not None
            self._parts["val.bytes"].write(sizes.astype("<u4"))
        self.counts[split] += Counts(tokens=len(tokens), bytes=num_bytes)

    def end_document(self, split: SplitName) -> None:
        """The token written last ends a document."""
        self._parts[f"{split}.ends"].write(np.array([self.counts[split].tokens - 1], "<i8"))
        self.counts[split] += Counts(documents=1)

    def commit(self, behind: dict[str, Any]) -> Record:
        """Give the files their names, then the shard its record."""
        record = Record(
            number=self._number,
            counts=dict(self.counts),
            files={part.name: part.finish() for part in self._parts.values()},
            behind=behind,
        )
        write_json(self._folder / f"{self._number:05}.json", asdict(record))
        return record

    def abandon(self) -> None:
        """Remove what was begun."""
        for part in self._parts.values():
            part.remove()


class _Part:
    """A file on its way."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._folder = folder
        self._file: BinaryIO = _aside(folder / name).open("wb")
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, values: NDArray[Any]) -> None:
        raw = values.tobytes()
        self._file.write(raw)
        self._digest.update(raw)
        self._size += len(raw)

    def finish(self) -> tuple[int, str]:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(_aside(self._folder / self.name), self._folder / self.name)
        return self._size, self._digest.hexdigest()

    def remove(self) -> None:
        self._file.close()
        _aside(self._folder / self.name).unlink(missing_ok=True)


class Shards:
    """A corpus that is complete.

    Args:
        folder: Of its shards.

    Raises:
        DataError: If the index can't be read, or a file is missing or has another size.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
            self.records = [Record.of(each) for each in index["shards"]]
            self.about: dict[str, Any] = index["about"]
        except (OSError, *UNREADABLE) as error:
            raise damaged(folder / _INDEX, f"can't be read ({type(error).__name__})") from error
        self.counts: dict[SplitName, Counts] = {
            split: sum((each.counts[split] for each in self.records), Counts()) for split in SPLITS
        }
        for name, (size, _) in self._files():
            there = (folder / name).stat().st_size if (folder / name).is_file() else None
            if there != size:
                raise damaged(
                    folder / name,
                    "is missing" if there is None else f"has {there} bytes instead of {size}",
                )

    @staticmethod
    def exist(folder: Path) -> bool:
        """Whether there is a complete corpus."""
        return (folder / _INDEX).is_file()

    @staticmethod
    def finish(folder: Path, about: dict[str, Any], records: list[Record]) -> None:
        """Write the index: from now on the corpus is complete."""
        values = {"about": about, "shards": [asdict(each) for each in records]}
        write_json(folder / _INDEX, values)

    def verify(self) -> int:
        """Read every file and compare its checksum; returns how many bytes that were.

        Raises:
            DataError: If one has another.
        """
        total = 0
        for name, (size, digest) in self._files():
            with (self.folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    raise damaged(self.folder / name, "has another checksum than the index")
            total += size
        return total

    def _files(self) -> Iterator[tuple[str, tuple[int, str]]]:
        for record in self.records:
            yield from record.files.items()


def write_json(file: Path, values: object) -> None:
    """Write a file in one move."""
    aside = _aside(file)
    with aside.open("w", encoding="utf-8") as writing:
        json.dump(values, writing, indent=1)
        writing.flush()
        os.fsync(writing.fileno())
    os.replace(aside, file)


def _aside(file: Path) -> Path:
    return file.with_name(f".{file.name}.{os.getpid()}")


def damaged(file: Path, what: str) -> DataError:
    """What to raise if a file of the corpus isn't as it was written."""
    return DataError(
        f"the tokenised data are damaged: {file} {what}. Remove the folder {file.parent} and run "
        "the same again: it is tokenised anew."
    )
