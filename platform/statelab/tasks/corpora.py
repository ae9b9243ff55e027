"""Texts to evaluate on, as streams of the model's tokens."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from statelab.config import Config, DataConfig
from statelab.data import documents
from statelab.data.lightning_data import build_data
from statelab.data.module import IGNORED, DataModule
from statelab.errors import DataError
from statelab.registries import data_modules
from statelab.tasks.hub import CORPORA

__all__ = ["TokenText", "own_text", "read_text", "text_name"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenText:
    """A text as one stream of tokens.

    Attributes:
        name: The corpus, as metrics are called after it.
        tokens: [n] int64.
        sizes: The bytes of text that each token stands for, [n] int64; None where it is unknown.
    """

    name: str
    tokens: Tensor
    sizes: Tensor | None


def text_name(text: str) -> str:
    """What a corpus is called: its own name, or that of its file or folder.

    Args:
        text: A name of `CORPORA`, `stdlib`, or a glob.
    """
    if text in CORPORA or text == documents.STDLIB:
        return text
    plain = [part for part in Path(text).parts if not glob.has_magic(part)]
    stem = Path(plain[-1]).stem if plain else "text"
    return re.sub(r"[^\w.-]+", "_", stem).strip("_.") or "text"


def read_text(
    text: str, config: DataConfig, *, column: str, hub: str | None, max_tokens: int | None
) -> TokenText:
    """The tokens of a corpus, as the run's data module makes them of text.

    The documents follow each other, with the token between them that ends one, if there is such a
    token.

    Args:
        text: A name of `CORPORA`, `stdlib`, or a glob of files.
        config: The data module's.
        column: The column with the text, in files that are tables.
        hub: A folder in place of the hub.
        max_tokens: Reading ends here; None reads all.

    Raises:
        DataError: If the text can't be read, or has no token.
    """
    data = data_modules.get(config.name).cls
    texts = _documents(text, column=column, hub=hub)
    tokens, sizes = _gather(data, config, texts, max_tokens)
    if not len(tokens):
        raise DataError(f"text={text!r} has no token. Give files with text.")
    return TokenText(name=text_name(text), tokens=tokens, sizes=sizes)


def own_text(config: Config, max_tokens: int | None) -> TokenText:
    """The run's validation documents.

    Raises:
        DataError: If the run's data are no text.
    """
    name = config.data.name
    data = build_data(config)
    if not data.data.is_text:
        raise DataError(
            f"data.name={name} is no text. Give one with text=FILES, or text={documents.STDLIB}."
        )
    examples = data.data.val()
    parts: list[Tensor] = []
    sizes: list[Tensor] = []
    total = 0
    for index in range(len(examples)):
        batch = examples.batch(np.array([index]))
        asked = batch["labels"] != IGNORED
        # Windows follow each other: the labels of all are the stream behind its first token.
        parts += [*([batch["tokens"][0, :1]] if index == 0 else []), batch["labels"][asked]]
        each = batch["bytes"][asked] if "bytes" in batch else torch.ones_like(parts[-1])
        sizes += [*([torch.zeros(1, dtype=torch.int64)] if index == 0 else []), each]
        total += len(parts[-1])
        if max_tokens is not None and total >= max_tokens:
            break
    return TokenText(
        name="validation",
        tokens=torch.cat(parts)[:max_tokens],
        sizes=torch.cat(sizes)[:max_tokens],
    )


def _documents(text: str, *, column: str, hub: str | None) -> Iterator[str]:
    if text in CORPORA:
        yield from CORPORA[text].documents(hub)
        return
    for file in documents.find(text, "text"):
        for raw in documents.read(file, column, "text"):
            yield raw.decode(errors="surrogateescape")


def _gather(
    data: type[DataModule], config: DataConfig, texts: Iterable[str], most: int | None
) -> tuple[Tensor, Tensor | None]:
    """Tokens, and the bytes of each; an end counts as one, as it does in validation."""
    end = data.stop(config)[:1]
    tokens: list[Tensor] = []
    sizes: list[Tensor] = []
    total = 0
    for text in texts:
        if not text:
            continue
        own, own_sizes = data.encode_sized(config, text)
        tokens += [torch.tensor([*own, *end], dtype=torch.int64)]
        if own_sizes is not None:
            sizes += [torch.tensor([*own_sizes, *(1 for _ in end)], dtype=torch.int64)]
        total += len(tokens[-1])
        if most is not None and total >= most:
            break
    if not tokens:
        return torch.empty(0, dtype=torch.int64), None
    return torch.cat(tokens)[:most], torch.cat(sizes)[:most] if sizes else None
