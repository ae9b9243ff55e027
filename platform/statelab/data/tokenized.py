"""Data whose tokens are those of a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from statelab.corpus.tokenizer import Tokenizer
from statelab.data.module import DataModule

__all__ = ["HasTokenizer", "TokenizedModule"]


class HasTokenizer(Protocol):
    """A configuration that names a tokenizer."""

    def load_tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            DataError: If it can't be loaded, or is another one than this was made with.
        """


class TokenizedModule(DataModule):
    """What text and tokens have to do with each other, of a configuration with a tokenizer."""

    @classmethod
    def stop(cls, config: HasTokenizer) -> tuple[int, ...]:  # type: ignore[override]
        """The token that stands after every document."""
        return (config.load_tokenizer().end,)

    @classmethod
    def encode(cls, config: HasTokenizer, text: str) -> list[int]:  # type: ignore[override]
        """The tokens of the text."""
        (tokens,) = config.load_tokenizer().encode([text.encode(errors="surrogateescape")])
        return [int(each) for each in tokens]

    @classmethod
    def encode_sized(  # type: ignore[override]
        cls, config: HasTokenizer, text: str
    ) -> tuple[list[int], list[int]]:
        """The tokens of the text, and the bytes of it that each stands for."""
        texts = [text.encode(errors="surrogateescape")]
        ((tokens, sizes),) = config.load_tokenizer().encode_sized(texts)
        return tokens.tolist(), sizes.tolist()

    @classmethod
    def pieces(  # type: ignore[override]
        cls, config: HasTokenizer, tokens: Iterable[int]
    ) -> Iterator[str]:
        """The text of the tokens, whole characters at a time."""
        return config.load_tokenizer().pieces(tokens)

    @classmethod
    def spell(cls, config: HasTokenizer, token: int) -> str:  # type: ignore[override]
        """The token's text, with signs for what doesn't print."""
        return config.load_tokenizer().spell(token)
