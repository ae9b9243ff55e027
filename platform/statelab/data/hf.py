"""Text of any size, from the Hugging Face Hub or local files, under any tokenizer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from statelab.config import DataConfig
from statelab.corpus import sources
from statelab.corpus import tokenizer as known
from statelab.corpus.plan import Recipe
from statelab.corpus.shards import SPLITS, Shards, SplitName
from statelab.corpus.stream import ShardStream
from statelab.corpus.tokenise import tokenise
from statelab.data.documents import STDLIB
from statelab.data.module import IGNORED, Batch
from statelab.data.tokenized import HasTokenizer, TokenizedModule
from statelab.data.windows import Windows
from statelab.errors import ConfigError, DataError
from statelab.options import option
from statelab.registries import data_modules

__all__ = ["Hf", "HfConfig", "shards_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HfConfig(HasTokenizer, DataConfig):
    """Which text, which tokenizer, and where the tokens lie; paths are made absolute."""

    path: str = option(
        STDLIB,
        "data set on the hub, its folder, or a glob of files; stdlib is Python's source",
        smoke=STDLIB,
    )
    subset: str | None = option(None, "the data set's configuration: sample-10BT", smoke=None)
    split: str = option("train", "the data set's split to train on", smoke="train")
    val_split: str | None = option(
        None, "split to validate on; null takes documents of data.split", smoke=None
    )
    val_fraction: float = option(
        0.05,
        "share of the documents to validate on, chosen by their content",
        above=0,
        below=1,
        smoke=0.05,
    )
    column: str = option("text", "the column with the text", smoke="text")
    revision: str | None = option(
        None, "branch, tag or commit on the hub; null is the newest when tokenised", smoke=None
    )
    streaming: bool = option(True, "read the hub's rows as they come; false downloads all first")
    tokenizer: str = option(
        known.BYTES, "bytes, a tokenizer.json, or a model on the hub", smoke=known.BYTES
    )
    tokenizer_sha: str | None = option(
        None, "fingerprint that the tokenizer must have; null is filled in", smoke=None
    )
    end_token: str | None = option(
        None, "stands after every document; null is the tokenizer's own", smoke=None
    )
    max_tokens: int | None = option(
        None, "stop tokenising at so many to train on; null is all", at_least=1, smoke=65536
    )
    shard_tokens: int = option(
        2**24, "tokens a shard file, about; a kill costs no more", at_least=1, smoke=65536
    )
    cache: str | None = option(
        None, "folder of tokenised data; null is $STATELAB_CACHE, or ~/.cache/statelab"
    )

    def __post_init__(self) -> None:
        DataConfig.__post_init__(self)
        for name in ("path", "tokenizer"):
            if not getattr(self, name).strip():
                raise ConfigError(f"data.{name}= is empty. Give one, or leave it out.")
        sources.check_parts(
            self.path,
            "data.path",
            {
                "data.subset": self.subset,
                "data.split": self.split if self.split != "train" else None,
                "data.val_split": self.val_split,
                "data.revision": self.revision,
            },
        )
        object.__setattr__(self, "path", sources.qualified(self.path))
        object.__setattr__(self, "tokenizer", known.qualified(self.tokenizer))
        if self.cache is not None:
            object.__setattr__(self, "cache", os.path.abspath(os.path.expanduser(self.cache)))
        if self.tokenizer_sha is None:
            object.__setattr__(self, "tokenizer_sha", known.fingerprint(self.tokenizer))


@data_modules.register("hf", config=HfConfig)
class Hf(TokenizedModule):
    """Windows of a tokenised corpus, which lies in files and is mapped into memory.

    It is tokenised once, by whichever command is the first to want it; `corpus/` says how. The
    documents of a split, the end token after each and before the first, make one stream, of which
    window i predicts the tokens i T + 1 .. i T + T. So every token but the very first is predicted
    once an epoch.

    Bits per byte divide by the bytes of the text, and one for each end of a document: the same
    number whatever the tokenizer. With `data.packing` a document's first token is predicted by
    nothing, and its bytes don't count.

    Raises:
        DataError: If the text can't be read, or a split has less than one window.
    """

    is_text = True

    def __init__(self, config: HfConfig) -> None:
        config = config.pinned()
        assert config.vocab_size is not None
        self.vocab_size = config.vocab_size
        self._config = config
        self._shards = shards_of(config)
        for split, name in SPLITS.items():
            tokens = self._shards.counts[split].tokens
            if tokens <= config.seq_len:
                raise DataError(
                    f"data.path={config.path!r} has {tokens} tokens for {name}, less than one "
                    f"window of data.seq_len={config.seq_len} and the token after it. Give more "
                    "text, another data.val_fraction, or a smaller data.seq_len."
                )

    def train(self) -> Windows:
        """The windows of the training documents."""
        return self._windows("train")

    def val(self) -> Windows:
        """The windows of the validation documents."""
        return self._windows("val")

    def num_bytes(self, batch: Batch) -> Tensor:
        """The bytes of the labels, and one for each end of a document."""
        sizes = batch["bytes"].reshape(batch["labels"].shape)
        return sizes[batch["labels"] != IGNORED].sum()

    def _windows(self, split: SplitName) -> Windows:
        return Windows(ShardStream(self._shards, split), self._config.seq_len)


def shards_of(config: HfConfig) -> Shards:
    """The tokenised text of a configuration, made now if it isn't there.

    Raises:
        DataError: If it can't be made, or is damaged.
    """
    from statelab.console import progress

    config = config.pinned()
    assert config.tokenizer_sha is not None
    recipe = Recipe(
        source=sources.Source(
            path=config.path,
            subset=config.subset,
            split=config.split,
            column=config.column,
            revision=config.revision,
            streaming=config.streaming,
        ),
        tokenizer=config.tokenizer_sha,
        end_token=config.end_token,
        val_split=config.val_split,
        val_fraction=config.val_fraction,
        max_tokens=config.max_tokens,
        shard_tokens=config.shard_tokens,
    )
    with progress(f"tokenising {config.path}") as tell:
        return tokenise(recipe, config.load_tokenizer, _cache(config), tell)


def _cache(config: HfConfig) -> Path:
    """The folder of tokenised data."""
    cache = config.cache or os.environ.get("STATELAB_CACHE") or "~/.cache/statelab"
    return Path(cache).expanduser().absolute() / "shards"
