"""Data whose tokens are those of a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Self

from statelab.corpus import tokenizer as known
from statelab.data.module import DataModule

__all__ = ["HasTokenizer", "TokenizedModule"]


class HasTokenizer:
    """What a configuration knows of the tokenizer that it names.

    Attributes:
        tokenizer: `bytes`, the path of a tokenizer.json, or a name on the hub.
        tokenizer_sha: The fingerprint that it must have; None where it isn't known yet.
        end_token: What stands after every document; None is the tokenizer's own.
    """

    __slots__ = ()

    tokenizer: str
    tokenizer_sha: str | None
    end_token: str | None

    @property
    def vocab_size(self) -> int | None:
        """How many tokens there are; None while the tokenizer is on the hub only."""
        return known.vocab_size(self.tokenizer)

    def pinned(self) -> Self:
        """With the tokenizer fetched, and its fingerprint.

        Raises:
            DataError: If there is none, or it has another one.
        """
        known.check(self.tokenizer, self.tokenizer_sha)
        return replace(self)  # type: ignore[type-var]

    def load_tokenizer(self) -> known.Tokenizer:
        """The tokenizer.

        Raises:
            DataError: If it can't be loaded, or is another one than this was made with.
        """
        return known.load(self.tokenizer, end_token=self.end_token, expected=self.tokenizer_sha)


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
