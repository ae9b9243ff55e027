"""Train a tokenizer: byte-level BPE, as Hugging Face tokenizers does it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from statelab.corpus import sources
from statelab.errors import ConfigError, DataError
from statelab.options import Section, option

__all__ = ["TokenizerConfig", "train_tokenizer"]

_END = "<|endoftext|>"


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerConfig(Section):
    """What a tokenizer is trained on, and where it goes."""

    files: str = option(doc="glob of files, folder or hub name of a data set, or stdlib")
    vocab_size: int = option(
        32_000, "tokens: 256 bytes, the end of a document, and what is merged", at_least=257
    )
    out: str = option("tokenizer.json", "the file to write")
    overwrite: bool = option(False, "replace that file where there is one")
    subset: str | None = option(None, "the data set's configuration")
    split: str = option("train", "the data set's split")
    column: str = option("text", "the column with the text")
    revision: str | None = option(None, "branch, tag or commit on the hub; null is the newest")
    max_bytes: int = option(
        10**9, "learn from the first so many; more takes memory for its rare words", at_least=1
    )


def train_tokenizer(config: TokenizerConfig) -> tuple[Path, int]:
    """Train and write a tokenizer; the same text gives the same file, byte for byte.

    Documents are read one by one; what is kept of them is how often each word occurs.

    Returns:
        The file, and how many tokens there are: fewer than asked for where the text is too small.

    Raises:
        ConfigError: If the file is there already, or a part of files is asked for.
        DataError: If the text can't be read, is none, or the file can't be written.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if not config.files.strip():
        raise ConfigError("files= is empty. Give a glob, a folder or a name on the hub.")
    parts = {"subset": config.subset, "revision": config.revision}
    parts |= {"split": config.split if config.split != "train" else None}
    sources.check_parts(config.files, "files", parts)
    out = Path(config.out).expanduser().absolute()
    if out.exists() and not config.overwrite:
        raise ConfigError(f"out={config.out} exists. Take another name, or say overwrite=true.")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=[_END],
        # All bytes, so that every text has tokens; sorted, since a set has no order.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(config), trainer)
    aside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        aside.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        os.replace(aside, out)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise DataError(f"out={config.out} can't be written: {error.strerror or error}.") from error
    return out, tokenizer.get_vocab_size()


def _texts(config: TokenizerConfig) -> Iterator[str]:
    source = sources.Source(
        path=sources.qualified(config.files),
        subset=config.subset,
        split=config.split,
        column=config.column,
        revision=config.revision,
    )
    left = config.max_bytes
    for document, _ in source.read({}):
        # A stray byte that is no UTF-8 doesn't matter here: all bytes are tokens.
        yield document[:left].decode(errors="ignore")
        left -= len(document)
        if left <= 0:
            return
    if left == config.max_bytes:
        raise DataError(f"files={config.files!r} has no text. Give some.")
