"""Tokenizers: bytes, a tokenizer.json, or the one of a model on the Hugging Face Hub."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from statelab.errors import DataError

if TYPE_CHECKING:
    import tokenizers

__all__ = [
    "BYTES",
    "Tokenizer",
    "check",
    "fetch",
    "find",
    "fingerprint",
    "load",
    "qualified",
    "vocab_size",
]

BYTES = "bytes"
"""The tokenizer whose tokens are the bytes of the text, and 0 the end of a document."""

_FILE, _SETTINGS = "tokenizer.json", "tokenizer_config.json"


class Tokenizer(ABC):
    """Text to tokens and back.

    Attributes:
        vocab_size: How many tokens there are.
        end: The token that stands after every document; no text holds it.
    """

    vocab_size: int
    end: int

    @abstractmethod
    def encode(self, texts: Sequence[bytes]) -> list[NDArray[np.uint32]]:
        """The tokens of each text.

        Raises:
            DataError: If one isn't UTF-8, which all but bytes need.
        """

    @abstractmethod
    def encode_sized(
        self, texts: Sequence[bytes]
    ) -> list[tuple[NDArray[np.uint32], NDArray[np.int64]]]:
        """`encode`, and the bytes of the text that each token stands for.

        A byte belongs to the first token that reaches it. So the sizes of a text's tokens sum up to
        its length, whatever the tokenizer normalises, leaves out or puts before it; what no token
        reaches at its very end is not counted.
        """

    @abstractmethod
    def pieces(self, tokens: Iterable[int]) -> Iterator[str]:
        """The text of tokens, each piece as soon as it is complete."""

    @abstractmethod
    def spell(self, token: int) -> str:
        """A token as a short label."""


def qualified(name: str) -> str:
    """The name as it means the same from every folder: a file's path is made absolute."""
    return os.path.abspath(os.path.expanduser(name)) if _is_local(name) else name


def find(name: str) -> Path | None:
    """The file of a tokenizer that is on this machine; None if it is not. Asks no server."""
    if _is_local(name):
        path = Path(name).expanduser()
        path = path / _FILE if path.is_dir() else path
        return path if path.is_file() else None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(name, _FILE)
    return Path(cached) if isinstance(cached, str) else None


def fetch(name: str) -> Path:
    """The file of a tokenizer, from the hub if it has to be.

    Raises:
        DataError: If there is none.
    """
    file = find(name)
    if file is not None:
        return file
    if _is_local(name):
        raise DataError(
            f"data.tokenizer={name!r}: no such file. Give {BYTES}, a {_FILE}, or a name on the "
            "hub; statelab tokenizer train makes one."
        )
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        file = Path(hf_hub_download(name, _FILE))
        with suppress(EntryNotFoundError):
            # Names the token that ends a document; the parent is the file's commit.
            hf_hub_download(name, _SETTINGS, revision=file.parent.name)
        return file
    except Exception as error:
        raise DataError(
            f"data.tokenizer={name!r} can't be fetched from the hub: {type(error).__name__}: "
            f"{(str(error).splitlines() or [''])[0]}. Give {BYTES}, the path of a {_FILE}, or the "
            f"name of a model with one; a gated one needs `hf auth login`."
        ) from error


def vocab_size(name: str) -> int | None:
    """How many tokens there are, read from the file alone; None where it isn't on this machine.

    Raises:
        DataError: If the file is no tokenizer.
    """
    if name == BYTES:
        return 256
    file = find(name)
    return None if file is None else _read(file, _stamp(file))[1]


def fingerprint(name: str) -> str | None:
    """What changes with the tokenizer; None where its file isn't on this machine.

    Raises:
        DataError: If the file is no tokenizer.
    """
    if name == BYTES:
        return BYTES
    file = find(name)
    return None if file is None else _read(file, _stamp(file))[0]


def check(name: str, expected: str | None) -> None:
    """See that a tokenizer is there, and the one that is expected.

    Raises:
        DataError: If it isn't.
    """
    if name != BYTES:
        fetch(name)
    found = fingerprint(name)
    if expected not in (None, found):
        raise DataError(
            f"data.tokenizer={name!r} is not the one that this was made with: its fingerprint is "
            f"{found}, not {expected}. Put that file back, or train a new run with this one."
        )


def load(name: str, *, end_token: str | None = None, expected: str | None = None) -> Tokenizer:
    """The tokenizer of that name.

    Args:
        name: `bytes`, the path of a tokenizer.json or of its folder, or a name on the hub.
        end_token: What stands after every document; None is the tokenizer's own.
        expected: The fingerprint that it must have, if any.

    Raises:
        DataError: If there is none, it is another one, or it has no such token.
    """
    check(name, expected)
    if name == BYTES:
        return _Bytes()
    return _Json(fetch(name), end_token)


class _Bytes(Tokenizer):
    vocab_size = 256
    end = 0

    def encode(self, texts: Sequence[bytes]) -> list[NDArray[np.uint32]]:
        return [np.frombuffer(text, np.uint8).astype(np.uint32) for text in texts]

    def encode_sized(
        self, texts: Sequence[bytes]
    ) -> list[tuple[NDArray[np.uint32], NDArray[np.int64]]]:
        return [(ids, np.ones(len(ids), np.int64)) for ids in self.encode(texts)]

    def pieces(self, tokens: Iterable[int]) -> Iterator[str]:
        from statelab.data.text import text_of

        return text_of(tokens)

    def spell(self, token: int) -> str:
        from statelab.data.text import spell_byte

        return spell_byte(token)


class _Json(Tokenizer):
    def __init__(self, file: Path, end_token: str | None) -> None:
        self._file = file
        self.vocab_size = _read(file, _stamp(file))[1]
        self._tokenizer = _tokenizer(file, _stamp(file))
        self.end = self._end(end_token)

    def encode(self, texts: Sequence[bytes]) -> list[NDArray[np.uint32]]:
        found = self._tokenizer.encode_batch_fast(self._decoded(texts), add_special_tokens=False)
        return [np.array(each.ids, np.uint32) for each in found]

    def encode_sized(
        self, texts: Sequence[bytes]
    ) -> list[tuple[NDArray[np.uint32], NDArray[np.int64]]]:
        decoded = self._decoded(texts)
        found = self._tokenizer.encode_batch(decoded, add_special_tokens=False)
        return [
            (np.array(each.ids, np.uint32), _sizes(text, each.offsets))
            for text, each in zip(decoded, found, strict=True)
        ]

    def pieces(self, tokens: Iterable[int]) -> Iterator[str]:
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        for token in tokens:
            known = self._tokenizer.id_to_token(token) is not None
            piece = stream.step(self._tokenizer, token) if known else "\N{REPLACEMENT CHARACTER}"
            if piece:
                yield piece

    def spell(self, token: int) -> str:
        text = self._tokenizer.decode([token], skip_special_tokens=False) or str(token)
        return text.replace(" ", "␣").replace("\n", "\\n").replace("\t", "\\t")

    def _decoded(self, texts: Sequence[bytes]) -> list[str]:
        try:
            return [text.decode() for text in texts]
        except UnicodeDecodeError as error:
            raise DataError(
                f"a document is no UTF-8 text: byte {error.object[error.start]:#04x} stands after "
                f"{bytes(error.object[max(0, error.start - 20) : error.start])!r}. Mend it or "
                f"leave it out; data.tokenizer={BYTES} takes any bytes."
            ) from error

    def _end(self, name: str | None) -> int:
        """The token after each document: the one named, or the tokenizer's own."""
        special = {
            token.content: number
            for number, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special
        }
        own = self._own_end() or (next(iter(special)) if len(special) == 1 else None)
        chosen = name or own
        if chosen not in special:
            what = f"no special token {chosen!r}" if chosen else "no end of a document of its own"
            raise DataError(
                f"the tokenizer {str(self._file)!r} has {what}. Set data.end_token to one of "
                f"{', '.join(map(repr, sorted(special))) or 'its special tokens: it has none'}."
            )
        return special[chosen]

    def _own_end(self) -> str | None:
        beside = self._file.with_name(_SETTINGS)
        settings = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
        end = settings.get("eos_token")
        return end["content"] if isinstance(end, dict) else end


def _sizes(text: str, offsets: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Bytes from where the tokens before have reached to where each one does."""
    reached = np.array([end for _, end in offsets], np.int64)
    if not text.isascii():
        lengths = np.fromiter((len(each.encode()) for each in text), np.int64, len(text))
        reached = np.concatenate([[0], lengths.cumsum()])[reached]
    return np.diff(np.maximum.accumulate(reached), prepend=0)


def _is_local(name: str) -> bool:
    if name == BYTES:
        return False
    looks_so = name.startswith(("/", ".", "~")) or name.endswith(".json") or name.count("/") > 1
    return looks_so or os.path.exists(name)


def _stamp(file: Path) -> tuple[int, int]:
    """What a changed file has another one of."""
    stat = file.stat()
    return stat.st_mtime_ns, stat.st_size


@functools.lru_cache(maxsize=8)
def _read(file: Path, stamp: tuple[int, int]) -> tuple[str, int]:
    """Fingerprint and vocabulary size, by its own account and without the library."""
    raw = file.read_bytes()
    try:
        settings: dict[str, Any] = json.loads(raw)
        vocabulary = settings["model"]["vocab"]
        # Unigram has a list of pairs, all others a token's number by its text.
        numbers = range(len(vocabulary)) if isinstance(vocabulary, list) else vocabulary.values()
        added = [each["id"] for each in settings.get("added_tokens") or []]
        size = max((*numbers, *added)) + 1
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"data.tokenizer: {str(file)!r} is no {_FILE} as Hugging Face tokenizers writes it "
            f"({type(error).__name__}: {error}). Give another one."
        ) from error
    return hashlib.sha256(raw).hexdigest()[:16], size


@functools.lru_cache(maxsize=2)
def _tokenizer(file: Path, stamp: tuple[int, int]) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Library

    try:
        tokenizer = Library.from_file(str(file))
    except Exception as error:
        raise DataError(
            f"data.tokenizer: {str(file)!r} can't be loaded: {error}. Give another one."
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    # A text that spells a special token out means its letters.
    tokenizer.encode_special_tokens = True
    return tokenizer
