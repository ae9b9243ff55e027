"""A needle in a haystack: one sentence of a long text is asked for at its end.

Source: Hsieh et al. 2024, "RULER", arXiv:2404.06654, the single-needle tasks; all words are ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from statelab.data import documents
from statelab.data.draws import Stream
from statelab.errors import DataError
from statelab.options import option
from statelab.registries import data_modules
from statelab_plugins.data.answers import Cell, Draw, Part, Tokens
from statelab_plugins.data.grid import GridConfig
from statelab_plugins.data.haystack import Haystack, prose
from statelab_plugins.data.tokenized import TokenizedConfig, TokenizedData
from statelab_plugins.data.wording import ADJECTIVES, NOUNS, clashes, number, pairs_of, uuid4

__all__ = ["Needle", "NeedleConfig"]

_TASK = "One line of this text names a code. Keep it in mind.\n"
_NOISE = ("The kettle hums. ", "The cat sleeps. ", "Rain runs down the glass. ", "Nobody hurries. ")
_LETTERS = {"number": 7, "uuid": 36}


@dataclass(frozen=True, kw_only=True, slots=True)
class NeedleConfig(GridConfig, TokenizedConfig):
    """The defaults are like S-NIAH-1."""

    filler: Literal["noise", "text"] = option(
        "noise", "the haystack: four sentences again and again, or sentences of data.files"
    )
    value: Literal["number", "uuid"] = option(
        "number", "what is asked for: 7 digits, or the 36 characters of a UUID"
    )
    files: str = option(
        documents.STDLIB, "glob of files of prose; or stdlib, the docstrings of Python's library"
    )
    column: str = option("text", "the column with the text, in .jsonl, .parquet and .arrow files")
    val_fraction: float = option(
        0.1, "share of the documents to validate on, chosen by their content", above=0, below=1
    )
    max_bytes: int = option(2**18, "read no more prose than this", at_least=1, smoke=2**16)

    def __post_init__(self) -> None:
        TokenizedConfig.__post_init__(self)
        GridConfig.__post_init__(self)
        object.__setattr__(self, "files", documents.absolute(self.files))


@data_modules.register("needle", config=NeedleConfig)
class Needle(TokenizedData):
    """One sentence of a haystack gives a key its value; at the end, the key is asked for.

        task        One line of this text names a code. Keep it in mind.
        haystack    ... The code of the brisk-lantern is 4071583. ...
        question    Which code was it? The code of the brisk-lantern is 4071583

    An example has exactly as many tokens as its length says, the value's included. Its haystack
    ends with a whole sentence and begins with one that is cut as needed; the needle stands between
    two sentences, at the place that is nearest to its depth. Depth 0 is before all filler, 100
    after it.

    No key, no number and no document of prose is in both splits, and a key and its value stand
    nowhere but in the needle and the question: sentences that could hold one are left out.

    Raises:
        DataError: If an example has no room for its needle, or the prose is too short.
    """

    config: NeedleConfig

    def __init__(self, config: NeedleConfig) -> None:
        super().__init__(config, config.train_cells, config.val_cells)
        self._task = self.tokens(_TASK)
        cells = (*config.train_cells, *config.val_cells)
        self._check_shortest(min(cell.size for cell in cells))
        longest = max(cell.size for cell in cells)
        if config.filler == "noise":
            round_ = self.each_tokens(_NOISE)
            same = Haystack(round_ * (-(-longest // sum(map(len, round_)))))
            self._haystacks = {Stream.TRAIN: same, Stream.VAL: same}
        else:
            self._haystacks = self._read(longest)

    def example(self, cell: Cell, split: Stream, draw: Draw) -> Iterator[Part]:
        """A haystack around its needle, and the question."""
        u = draw(8)
        able = pairs_of(split, len(ADJECTIVES) * len(NOUNS))
        left, right = divmod(int(able[int(u[0] * len(able))]), len(NOUNS))
        key = ADJECTIVES[left], NOUNS[right]
        value = number(u[1], split) if self.config.value == "number" else uuid4(u[2:6])
        needle, question, answer = self._around(key, value)
        fixed = len(self._task) + len(needle) + len(question) + len(answer)
        filler, places = self._haystacks[split].stretch(cell.size - fixed, u[7])
        depth = u[6] if cell.depth is None else cell.depth / 100
        place = places[np.abs(places - depth * len(filler)).argmin()]
        yield self._task, False
        yield filler[:place], False
        yield needle, False
        yield filler[place:], False
        yield question, False
        yield answer, True

    def _around(self, key: tuple[str, str], value: str) -> tuple[Tokens, Tokens, Tokens]:
        """Needle, question and answer."""
        texts = "The code of the ", key[0], f"-{key[1]}", " is "
        names = np.concatenate(self.each_tokens(texts))
        which, answer, end = self.each_tokens(["\nWhich code was it? ", value, ". "])
        return np.concatenate([names, answer, end]), np.concatenate([which, names]), answer

    def _check_shortest(self, length: int) -> None:
        """Whether the longest key and value leave room for some filler."""
        # Around no key and no value; both stand twice.
        bare = sum(map(len, self._around(("", ""), ""))) - 2 * len(self.tokens("-"))
        key = self.longest(ADJECTIVES) + self.longest([f"-{each}" for each in NOUNS])
        # No tokenizer makes more tokens of digits than there are.
        value = _LETTERS[self.config.value]
        least = len(self._task) + bare + 2 * key + 2 * value + 1
        if length < least:
            raise DataError(
                f"data.lengths: {length} tokens have no room for a needle and its question. Make "
                f"it {least} or more."
            )

    def _read(self, longest: int) -> dict[Stream, Haystack]:
        """The prose, and whether it is long enough."""
        config = self.config
        parts = prose(config.files, config.column, config.val_fraction, config.max_bytes)
        haystacks = {}
        for split, texts in zip((Stream.TRAIN, Stream.VAL), parts, strict=True):
            kept = [f"{text} " for text in texts if not clashes(text)]
            num = sum(map(len, self.each_tokens(kept)))
            if num < longest:
                raise DataError(
                    f"data.files={config.files!r} has {num} tokens of prose to "
                    f"{'train' if split == Stream.TRAIN else 'validate'} on, less than the longest "
                    f"example's {longest}. Give more text, a larger data.max_bytes, another "
                    "data.val_fraction, or smaller lengths."
                )
            haystacks[split] = Haystack(self.each_tokens(kept))
        return haystacks
