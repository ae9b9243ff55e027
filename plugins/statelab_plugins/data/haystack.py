"""Haystacks: sentences of prose, or one line again and again, from which stretches are cut."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from statelab.data import documents
from statelab.data.split import split
from statelab.errors import DataError
from statelab_plugins.data.answers import Tokens

__all__ = ["Haystack", "prose", "sentences"]

_BETWEEN = re.compile(r"(?<=[.!?])\s+")
_LEAST = 20  # characters of a sentence; what is shorter is an abbreviation's end, as a rule


class Haystack:
    """Sentences as tokens.

    Args:
        sentences: Tokens of each, with the space or line break after it.
    """

    def __init__(self, sentences: Sequence[Tokens]) -> None:
        self._tokens = np.concatenate(sentences)
        self._ends = np.cumsum([len(each) for each in sentences])

    def __len__(self) -> int:
        return len(self._tokens)

    def stretch(self, size: int, u: float) -> tuple[Tokens, Tokens]:
        """A stretch of so many tokens that ends where a sentence does.

        Its first sentence is cut as needed.

        Args:
            size: Tokens, at most all.
            u: Which stretch, in [0, 1).

        Returns:
            The tokens, and the places between sentences, from 0 to `size`.
        """
        able = self._ends[np.searchsorted(self._ends, size) :]
        end = able[int(u * len(able))]
        inside = self._ends[(self._ends > end - size) & (self._ends <= end)] - (end - size)
        return self._tokens[end - size : end], np.unique(np.concatenate([[0], inside, [size]]))


def prose(
    files: str, column: str, val_fraction: float, max_bytes: int
) -> tuple[list[str], list[str]]:
    """The sentences of a user's documents to train and to validate on, apart.

    Args:
        files: A glob; `stdlib` is the docstrings of Python's standard library.
        column: Of tables, the column with the text.
        val_fraction: Share of the documents that validates, chosen by their content.
        max_bytes: Read no more text than this.

    Raises:
        DataError: If no text can be read.
    """
    corpus: list[bytes] = []
    left = max_bytes
    for path in documents.find(files):
        for document in documents.read(path, column):
            text = _docstrings(document) if files == documents.STDLIB else document
            if text[:left]:
                corpus.append(text[:left])
            left -= len(text)
            if left <= 0:
                break
        if left <= 0:
            break
    if not corpus:
        raise DataError(f"data.files={files!r} holds no text. Give files of prose.")
    train, val = split(corpus, val_fraction)
    return sentences(train), sentences(val)


def sentences(corpus: Iterable[bytes]) -> list[str]:
    """The sentences of documents, with a single space between words."""
    texts = (document.decode(errors="ignore") for document in corpus)
    flat = (each for text in texts for each in _BETWEEN.split(" ".join(text.split())))
    return [each for each in flat if len(each) >= _LEAST]


def _docstrings(source: bytes) -> bytes:
    """What a module says of itself in whole sentences: no examples, no tables."""
    return "\n".join(
        paragraph
        for text in _literals(source)
        for paragraph in re.split(r"\n\s*\n", text)
        if re.match(r"\s*[A-Z].*[a-z]\.\s*$", paragraph, re.DOTALL) and ">>>" not in paragraph
    ).encode()


def _literals(source: bytes) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""
