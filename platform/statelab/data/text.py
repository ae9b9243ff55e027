"""Text as bytes: the user's own files, or the standard library's source."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from statelab.config import DataConfig
from statelab.data import documents
from statelab.data.module import IGNORED, Batch, DataModule
from statelab.data.split import split
from statelab.data.windows import Windows
from statelab.errors import DataError
from statelab.options import option
from statelab.registries import data_modules

__all__ = ["ByteStream", "Text", "TextConfig", "bytes_in", "spell_byte", "text_of"]

SEPARATOR = b"\0"
"""Stands after every document; text has no such byte of its own."""

_SIGNS = {9: "\\t", 10: "\\n", 32: "␣"}


@dataclass(frozen=True, kw_only=True, slots=True)
class TextConfig(DataConfig):
    """Bytes of files; a relative glob is made absolute, from the current folder."""

    files: str = option(
        documents.STDLIB, "glob of files; or stdlib, the source of Python's standard library"
    )
    column: str = option("text", "the column with the text, in .jsonl, .parquet and .arrow files")
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

    A file is a document; in a `.jsonl`, `.parquet` or `.arrow` file each row is one. A hash of its
    content puts a document into one split, always the same one, and twins into the same; the one
    with the smallest hash validates in any case. A single document is cut: its end validates.

    The documents of a split, a zero byte after each, make one stream. Window i predicts bytes
    i T + 1 .. i T + T from i T .. i T + T - 1; labels past the end are ignored.

    With `data.packing` the documents of a window don't see each other, and the zero byte after one
    does not predict the next. The edge of a window cuts a document: its rest is one of its own.

    Raises:
        DataError: If no file is found or readable, or a split has less than one window.
    """

    is_text = True

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

    def num_bytes(self, batch: Batch) -> Tensor:
        """One byte a label, separators included."""
        return (batch["labels"] != IGNORED).sum()

    @classmethod
    def stop(cls, config: DataConfig) -> tuple[int, ...]:
        """The byte that stands after every document."""
        return tuple(SEPARATOR)

    @classmethod
    def encode(cls, config: DataConfig, text: str) -> list[int]:
        """The bytes of the text in UTF-8; what the shell gave that is no UTF-8 stays as it is."""
        return list(bytes_in(text))

    @classmethod
    def encode_sized(cls, config: DataConfig, text: str) -> tuple[list[int], list[int]]:
        """`encode`, and one byte a token."""
        tokens = cls.encode(config, text)
        return tokens, [1] * len(tokens)

    @classmethod
    def pieces(cls, config: DataConfig, tokens: Iterable[int]) -> Iterator[str]:
        """The text of the bytes, a character at a time; � for what is no UTF-8, or no byte."""
        return text_of(tokens)

    @classmethod
    def spell(cls, config: DataConfig, token: int) -> str:
        """The character, or the byte in hexadecimal where it is none that prints."""
        return spell_byte(token)


def bytes_in(text: str) -> bytes:
    """A text in UTF-8; what the shell gave that is no UTF-8 stays as it is."""
    return text.encode(errors="surrogateescape")


def text_of(tokens: Iterable[int]) -> Iterator[str]:
    """The text of bytes, a character at a time; � for what is no UTF-8, or no byte."""
    known = (bytes([token]) if token < 256 else b"\xff" for token in tokens)
    return codecs.iterdecode(known, "utf-8", "replace")


def spell_byte(token: int) -> str:
    """The character, or the byte in hexadecimal where it is none that prints."""
    return chr(token) if 32 < token < 127 else _SIGNS.get(token, f"{token:02x}")


class ByteStream:
    """Bytes in memory.

    Args:
        stream: Documents, one after the other.
        ends: Where the last byte of each stands in the stream, in rising order.
    """

    def __init__(self, stream: bytearray, ends: Sequence[int]) -> None:
        # Tensors, since loader processes share their memory instead of copying it.
        self._stream = torch.frombuffer(stream, dtype=torch.uint8)
        self._ends = torch.tensor(ends)

    def __len__(self) -> int:
        return len(self._stream)

    def tokens(self, places: Tensor) -> Tensor:
        """The bytes at these places."""
        return self._stream[places].long()

    def ends(self, places: Tensor) -> Tensor:
        """Whether the last byte of a document stands there."""
        nearest = torch.searchsorted(self._ends, places).clamp(max=len(self._ends) - 1)
        return self._ends[nearest] == places

    def num_bytes(self, places: Tensor) -> None:
        """Not kept: each token is one."""


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
    return Windows(ByteStream(stream, ends), config.seq_len)
