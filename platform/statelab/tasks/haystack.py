"""Texts with one sentence that is unlike all others: a needle in a haystack of our own."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass

__all__ = ["Haystack", "make_haystack"]

_WHO = ("The gardener", "A neighbour", "The old teacher", "My brother", "The ferryman")
_DOES = ("walks along", "sits beside", "looks at", "talks about", "comes back to")
_WHERE = ("the quiet river", "the stone bridge", "the open field", "the small market")
_WHEN = ("in the morning", "after the rain", "before supper", "on a warm day")
_THINGS = ("lantern", "compass", "violin", "kettle", "ladder", "mirror", "anchor", "basket")
_COLOURS = ("vermilion", "turquoise", "magenta", "ochre", "indigo", "crimson", "ivory", "jade")


@dataclass(frozen=True, kw_only=True, slots=True)
class Haystack:
    """A text in three parts.

    Attributes:
        before: Sentences before the needle.
        needle: Its words, each with the space before it, and whether the word occurs twice at most
            in the whole text.
        after: Sentences behind it.
    """

    before: str
    needle: tuple[tuple[str, bool], ...]
    after: str

    @property
    def text(self) -> str:
        """All of it."""
        return self.before + "".join(word for word, _ in self.needle) + self.after


def make_haystack(sentences: int, depth: float, seed: int) -> Haystack:
    """A needle among sentences that say the same few things again and again.

    Args:
        sentences: How many are no needle, >= 2.
        depth: The share of them that stands before it, from 0 to 1.
        seed: Of the draws.
    """
    draw = random.Random(seed)
    parts = (_WHO, _DOES, _WHERE, _WHEN)
    filler = [" ".join(map(draw.choice, parts)) + "." for _ in range(sentences)]
    number = "".join(str(draw.randrange(10)) for _ in range(7))
    thing, colour = draw.choice(_THINGS), draw.choice(_COLOURS)
    words = f"The secret number of the {colour} {thing} is {number}.".split()
    place = round(depth * sentences)
    before = " ".join(filler[:place])
    after = "".join(f" {each}" for each in filler[place:])
    spaced = [each if i == 0 and not before else f" {each}" for i, each in enumerate(words)]
    seen = Counter(_words(" ".join((before, *words, after))))
    rare = [seen[_words(each)[0]] <= 2 for each in words]
    return Haystack(before=before, needle=tuple(zip(spaced, rare, strict=True)), after=after)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
