"""Which documents validate: their content says it, whatever else there is and in what order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

__all__ = ["draw", "limit", "split"]


def draw(document: bytes) -> float:
    """A number in [0, 1] that depends on the content alone."""
    digest = hashlib.blake2b(document, digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


def limit(draws: Iterable[float], val_fraction: float) -> float:
    """The largest draw that validates; the smallest of all does in any case."""
    return max(val_fraction, min(draws))


def split(corpus: Sequence[bytes], val_fraction: float) -> tuple[list[bytes], list[bytes]]:
    """Documents to train and to validate on.

    Args:
        corpus: At least one document; a single one is cut, and its end validates.
        val_fraction: How many validate, about.
    """
    if len(corpus) == 1:
        cut = round(len(corpus[0]) * (1 - val_fraction))
        return [corpus[0][:cut]], [corpus[0][cut:]]
    draws = [draw(document) for document in corpus]
    most = limit(draws, val_fraction)
    train = [document for document, each in zip(corpus, draws, strict=True) if each > most]
    val = [document for document, each in zip(corpus, draws, strict=True) if each <= most]
    return train, val
