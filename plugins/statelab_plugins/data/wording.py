"""Names and numbers that recall tasks ask for: which there are, and which only validation has."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from statelab.data.draws import Stream
from statelab_plugins.data.answers import HELD_OUT

__all__ = [
    "ADJECTIVES",
    "FIRST_NAMES",
    "LAST_NAMES",
    "NOUNS",
    "clashes",
    "number",
    "pairs_of",
    "uuid4",
]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ADJECTIVES = _words(
    """
    able agile amber ample bold brave breezy bright brisk calm candid chief clever coarse
    cosy crisp curly damp dapper deep dusty eager early faint fancy fierce firm fluent
    frosty gentle glad golden grand hasty hollow humble ivory jolly keen lively loyal lucid
    mellow merry misty modest narrow nimble noble odd patient plain proud quick quiet rapid
    rough rustic silent sleek solid spare stormy sturdy
    """
)
NOUNS = _words(
    """
    acorn anchor apron badger barrel basket beacon bottle bridge bucket button cabin candle
    canyon carpet castle cellar cherry compass copper cradle cricket curtain donkey engine
    falcon feather ferry fiddle garden goblet hammer harbour helmet island jacket kettle
    ladder lantern lemon marble meadow mirror mitten orchard otter paddle parrot pebble
    pepper pillow pocket raven saddle shovel sparrow spindle tailor teapot thimble tunnel
    turnip violin walnut
    """
)
FIRST_NAMES = _words(
    """
    Ada Alma Anton Arlo Basil Beata Bruno Cara Clara Conor Dana Daria Edgar Elena Emil Enzo
    Felix Flora Gerda Greta Hana Hugo Ida Igor Ines Iris Ivan Jana Jonas Julia Karim Klara
    Lars Leila Lena Lucas Mara Marek Mina Nadia Nils Nora Olga Omar Oscar Paula Petra Rafael
    Rosa Ruben Samir Sara Selma Silas Tara Teo Ulla Vera Viktor Wanda Yara Yusuf Zeno Zora
    """
)
LAST_NAMES = _words(
    """
    Abbot Adler Archer Baker Barlow Becker Bishop Bolton Carver Castle Clarke Cooper Dalton
    Draper Dunn Falk Farmer Fisher Forster Frost Garner Gibson Glover Harper Hayes Holm
    Hooper Hunter Jansen Keller Kent Lang Larsen Marsh Mason Meyer Miller Moreno Nash Novak
    Olsen Page Palmer Parker Porter Quinn Reed Rossi Sadler Sawyer Silva Skinner Stone
    Tanner Thorne Tucker Turner Usher Vance Walker Weaver Webb Wolf York
    """
)

_FIRST_NUMBER, _NUMBERS = 1_000_000, 9_000_000
_KEY = re.compile(rf"\b({'|'.join(ADJECTIVES)})-({'|'.join(NOUNS)})\b", re.IGNORECASE)
_VALUE = re.compile(r"\d{7}|[0-9a-f]{8}-[0-9a-f]{4}", re.IGNORECASE)


def pairs_of(split: Stream, size: int) -> NDArray[np.int64]:
    """Which of so many pairs of words a split has; all words are in both where 7 divides neither.

    Args:
        split: TRAIN or VAL.
        size: Words of the left list times those of the right one.
    """
    held_out = np.arange(size) % HELD_OUT == 0
    return np.flatnonzero(held_out if split == Stream.VAL else ~held_out)


def number(u: float, split: Stream) -> str:
    """Seven digits, of which the first isn't 0; no number is in both splits."""
    num_val = -(-_NUMBERS // HELD_OUT)
    if split == Stream.VAL:
        return str(_FIRST_NUMBER + int(u * num_val) * HELD_OUT)
    rank = int(u * (_NUMBERS - num_val))
    return str(_FIRST_NUMBER + rank + rank // (HELD_OUT - 1) + 1)


def uuid4(u: Iterable[float]) -> str:
    """The 36 characters of a random UUID, from four numbers in [0, 1)."""
    words = [int(each * 2**32) for each in u]
    bits = sum(word << 32 * place for place, word in enumerate(words))
    return str(uuid.UUID(int=bits, version=4))


def clashes(text: str) -> bool:
    """Whether a text has what could be a needle's key or value."""
    return bool(_KEY.search(text) or _VALUE.search(text))
