"""What tasks have in common that are written as text, and read through a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from statelab.corpus import tokenizer as known
from statelab.data.tokenized import HasTokenizer, TokenizedModule
from statelab.errors import DataError
from statelab.options import option
from statelab_plugins.data.answers import AnswerConfig, AnswerData, Cell, Tokens

__all__ = ["TokenizedConfig", "TokenizedData"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizedConfig(HasTokenizer, AnswerConfig):
    """Which tokens the text is made of; the path of a file is made absolute."""

    tokenizer: str = option(
        known.BYTES, "bytes, a tokenizer.json, or a model on the hub", smoke=known.BYTES
    )
    tokenizer_sha: str | None = option(
        None, "fingerprint that the tokenizer must have; null is filled in", smoke=None
    )
    end_token: str | None = option(
        None, "ends a generation; null is the tokenizer's own", smoke=None
    )

    def __post_init__(self) -> None:
        AnswerConfig.__post_init__(self)
        object.__setattr__(self, "tokenizer", known.qualified(self.tokenizer))
        if self.tokenizer_sha is None:
            object.__setattr__(self, "tokenizer_sha", known.fingerprint(self.tokenizer))


class TokenizedData(TokenizedModule, AnswerData):
    """A task in text.

    Each piece of an example is made tokens by itself, so that a name or number is the same tokens
    wherever it stands, and lengths add up.

    Raises:
        DataError: If the tokenizer can't be loaded.
    """

    def __init__(self, config: TokenizedConfig, train: Sequence[Cell], val: Sequence[Cell]) -> None:
        super().__init__(config, train, val)
        self._tokenizer = config.pinned().load_tokenizer()
        self.vocab_size = self._tokenizer.vocab_size

    def tokens(self, text: str) -> Tokens:
        """The tokens of a piece."""
        return self.each_tokens([text])[0]

    def each_tokens(self, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of many pieces."""
        found = self._tokenizer.encode([text.encode() for text in texts])
        return [each.astype(np.int64) for each in found]

    def longest(self, texts: Sequence[str]) -> int:
        """The tokens of the longest of these pieces."""
        return max(map(len, self.each_tokens(texts)))

    def check_room(self, longest: int, content: str) -> None:
        """Refuse examples that are longer than `seq_len`.

        Args:
            longest: Tokens that the longest may have.
            content: What is in it.

        Raises:
            DataError: If they are.
        """
        if longest > self.config.seq_len:
            raise DataError(
                f"data.seq_len={self.config.seq_len} is less than the {longest} tokens that "
                f"{content} may take. Set data.seq_len={longest}."
            )
