"""Corpora of a few hundred documents, and tokenizers of three kinds."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from statelab.corpus.bpe import TokenizerConfig, train_tokenizer
from statelab.data.hf import Hf, HfConfig
from statelab.data.module import IGNORED
from statelab.data.windows import Windows

WORDS = [
    *("write", "rule", "read", "memory", "key", "value", "decay", "erase", "3.14", "\t", "line\n"),
    *("naïve", "façade", "☃", "記憶", "e\u0301", "😀"),
]


def make_documents(num: int, seed: int = 0) -> list[str]:
    """Documents of 1 to 80 words, all different."""
    draw = random.Random(seed)
    return [f"{i}: " + " ".join(draw.choices(WORDS, k=draw.randint(1, 80))) for i in range(num)]


def stream_of(windows: Windows) -> list[int]:
    """What an epoch of windows says, put together again."""
    batch = windows.batch(np.arange(len(windows)))
    kept = batch["labels"] != IGNORED
    stream = [int(batch["tokens"][0, 0]), *batch["labels"][kept].tolist()]
    assert batch["tokens"][kept].tolist() == stream[:-1]
    return stream


def parts_of(stream: list[int], end: int) -> list[tuple[int, ...]]:
    """The documents of a stream, which begins with the end token and has one after each."""
    assert stream[0] == stream[-1] == end
    parts: list[tuple[int, ...]] = []
    start = 1
    for place, token in enumerate(stream[1:], 1):
        if token == end:
            parts.append(tuple(stream[start:place]))
            start = place + 1
    return parts


@pytest.fixture(scope="session")
def documents() -> list[str]:
    return make_documents(300)


@pytest.fixture
def jsonl(tmp_path: Path, documents: list[str]) -> Path:
    file = tmp_path / "text" / "a.jsonl"
    file.parent.mkdir()
    file.write_text("\n".join(json.dumps({"text": each}) for each in documents))
    return file


@pytest.fixture(scope="session")
def bpe(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    """Byte-level BPE, as `statelab tokenizer train` makes it."""
    folder = tmp_path_factory.mktemp("bpe")
    (folder / "a.txt").write_text("\n".join(documents))
    config = TokenizerConfig(files=f"{folder}/a.txt", vocab_size=400, out=f"{folder}/bpe.json")
    return train_tokenizer(config)[0]


@pytest.fixture(scope="session")
def metaspace(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    """As Llama's: a space before the text, bytes for unknown characters, three special tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<unk>", "<s>", "</s>", *bytes_],
        limit_alphabet=40,
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        [each for text in documents for each in text.split("\n")], trainer
    )
    folder = tmp_path_factory.mktemp("metaspace")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}}')
    return folder / "tokenizer.json"


@pytest.fixture(scope="session")
def lossy(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    """Words in lower case without accents; what stands between them is left out."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(
        vocab_size=300, special_tokens=["<unk>", "<end>"], show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    file = tmp_path_factory.mktemp("lossy") / "tokenizer.json"
    tokenizer.save(str(file))
    return file


@pytest.fixture
def configure(tmp_path: Path) -> Callable[..., HfConfig]:
    """The configuration of a corpus whose shards lie in an empty folder."""

    def make(path: object, **options: object) -> HfConfig:
        given = {"name": "hf", "seq_len": 16, "cache": str(tmp_path / "cache"), "path": str(path)}
        return HfConfig(**(given | options))

    return make


@pytest.fixture(scope="session")
def documents_of() -> Callable[[HfConfig], list[list[str]]]:
    """The documents of both splits as they are in the windows, training first."""

    def read(config: HfConfig) -> list[list[str]]:
        data, tokenizer = Hf(config), config.load_tokenizer()
        streams = (stream_of(each) for each in (data.train(), data.val()))
        return [
            ["".join(tokenizer.pieces(part)) for part in parts_of(stream, tokenizer.end)]
            for stream in streams
        ]

    return read
