"""Text as bytes: the user's own files, or the standard library's source."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statelab.config import DataConfig
from statelab.data import documents
from statelab.data.module import IGNORED, Batch, DataModule
from statelab.errors import DataError
from statelab.options import option
from statelab.registries import data_modules

__all__ = ["Text", "TextConfig"]

SEPARATOR = b"\0"
"""Stands after every document; text has no such byte of its own."""

_SIGNS = {9: "\\t", 10: "\\n", 32: "␣"}


@dataclass(frozen=True, kw_only=True, slots=True)
class TextConfig(DataConfig):
    """Bytes of files; a relative glob is made absolute, from the current folder."""

    files: str = option(
        documents.STDLIB, "glob of files; or stdlib, the source of Python's standard library"
    )
    column: str = option("text", "the column with the text, in .jsonl and .parquet files")
    val_fraction: float = option(
        0.05, "share of the documents to validate on, chosen by their content", above=0, below=1
    )
    max_bytes: int | None = option(
        None, "read no more than these; null is all", at_least=1, smoke=65536
    )

    def __post_init__(self) -> None:
        DataConfig.__post_init__(self)
        object.__setattr__(self, "files", documents.absolute(self.files))

    @property
    def vocab_size(self) -> int:
        """One token a byte."""
        return 256


@data_modules.register("text", config=TextConfig)
class Text(DataModule):
    """Bytes of text, in windows of `seq_len` that follow each other without loss or overlap.

    A file is a document, or each row is in a `.jsonl` or `.parquet` file. A hash of its content
    puts a document into one split, always the same one, and twins into the same; the one with the
    smallest hash validates in any case. A single document is cut: its end validates.

    The documents of a split, a zero byte after each, make one stream. Window i predicts bytes
    i T + 1 .. i T + T from i T .. i T + T - 1; labels past the end are ignored.

    With `data.packing` the documents of a window don't see each other, and the zero byte after one
    does not predict the next. The edge of a window cuts a document: its rest is one of its own.

    Raises:
        DataError: If no file is found or readable, or a split has less than one window.
    """

    stop = tuple(SEPARATOR)

    def __init__(self, config: TextConfig) -> None:
        self.vocab_size = config.vocab_size
        corpus = [document for document in _read(config) if document]
        if not corpus:
            raise DataError(
                f"data.files={config.files!r} matches only empty files. Give a file with text."
            )
        train, val = split(corpus, config.val_fraction)
        self._train = _windows("training", train, config)
        self._val = _windows("validation", val, config)

    def train(self) -> Windows:
        """The windows of the training documents."""
        return self._train

    def val(self) -> Windows:
        """The windows of the validation documents."""
        return self._val

    def num_bytes(self, labels: Tensor) -> Tensor:
        """One byte a label, separators included."""
        return (labels != IGNORED).sum()

    @classmethod
    def encode(cls, config: DataConfig, text: str) -> list[int]:
        """The bytes of the text in UTF-8; what the shell gave that is no UTF-8 stays as it is."""
        return list(text.encode(errors="surrogateescape"))

    @classmethod
    def pieces(cls, config: DataConfig, tokens: Iterable[int]) -> Iterator[str]:
        """The text of the bytes, a character at a time; � for what is no UTF-8, or no byte."""
        known = (bytes([token]) if token < 256 else b"\xff" for token in tokens)
        return codecs.iterdecode(known, "utf-8", "replace")

    @classmethod
    def spell(cls, config: DataConfig, token: int) -> str:
        """The character, or the byte in hexadecimal where it is none that prints."""
        return chr(token) if 32 < token < 127 else _SIGNS.get(token, f"{token:02x}")


class Windows:
    """A stream of bytes in windows of `seq_len` tokens.

    Args:
        stream: Documents, one after the other.
        ends: Where the last byte of each stands in the stream, in rising order.
        seq_len: T.
    """

    def __init__(self, stream: bytearray, ends: Sequence[int], seq_len: int) -> None:
        self._seq_len = seq_len
        self._num_bytes = len(stream)
        self._ends = torch.tensor(ends)
        stream.extend(bytes(len(self) * seq_len + 1 - len(stream)))
        # A tensor, since loader processes share its memory instead of copying it.
        self._stream = torch.frombuffer(stream, dtype=torch.uint8)

    def __len__(self) -> int:
        return -(-(self._num_bytes - 1) // self._seq_len)

    def batch(self, index: NDArray[np.int64]) -> Batch:
        """The windows of these numbers."""
        starts = torch.from_numpy(index * self._seq_len)
        places = starts[:, None] + torch.arange(self._seq_len + 1)
        window = self._stream[places].long()
        past_end = places[:, 1:] >= self._num_bytes
        ends_before = torch.searchsorted(self._ends, places)
        return {
            "tokens": window[:, :-1].contiguous(),
            "labels": window[:, 1:].masked_fill(past_end, IGNORED),
            "ends": ends_before[:, :-1] < ends_before[:, 1:],
        }


def split(corpus: Sequence[bytes], val_fraction: float) -> tuple[list[bytes], list[bytes]]:
    """Documents to train and to validate on.

    Args:
        corpus: At least one document.
        val_fraction: How many validate, about.
    """
    if len(corpus) == 1:
        cut = round(len(corpus[0]) * (1 - val_fraction))
        return [corpus[0][:cut]], [corpus[0][cut:]]
    draws = [_draw(document) for document in corpus]
    limit = max(val_fraction, min(draws))
    train = [document for document, draw in zip(corpus, draws, strict=True) if draw > limit]
    val = [document for document, draw in zip(corpus, draws, strict=True) if draw <= limit]
    return train, val


def _draw(document: bytes) -> float:
    """A number in [0, 1] that depends on the content alone."""
    digest = hashlib.blake2b(document, digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


def _read(config: TextConfig) -> Iterator[bytes]:
    """The documents, the last one cut where `max_bytes` are full."""
    left = config.max_bytes
    for path in documents.find(config.files):
        for document in documents.read(path, config.column):
            yield document[:left]
            if left is not None:
                left -= len(document)
                if left <= 0:
                    return


def _windows(name: str, corpus: Sequence[bytes], config: TextConfig) -> Windows:
    if not corpus:
        raise DataError(
            f"data.files={config.files!r} leaves no document for {name}: they all validate, and "
            "those of equal content together. Give others, or a smaller data.val_fraction."
        )
    stream, ends = bytearray(), []
    for document in corpus:
        stream += document + SEPARATOR
        ends.append(len(stream) - 1)
    if len(stream) <= config.seq_len:
        raise DataError(
            f"data.files={config.files!r} has {len(stream)} bytes for {name}, less than one window "
            f"of data.seq_len={config.seq_len} and the byte after it. Give more text, another "
            "data.val_fraction, or a smaller data.seq_len."
        )
    return Windows(stream, ends, config.seq_len)
