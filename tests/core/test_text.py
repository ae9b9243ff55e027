from __future__ import annotations

import json
import os
import socket
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch

from statelab.data.documents import find
from statelab.data.module import IGNORED
from statelab.data.split import split
from statelab.data.text import ByteStream, Text, TextConfig
from statelab.data.windows import Windows
from statelab.errors import ConfigError, DataError

DOCUMENTS = [bytes([i]) * (40 + 7 * i) + b"\r\n\xff\xfe\0" + str(i).encode() for i in range(40)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i, document in enumerate(DOCUMENTS):
        file = tmp_path / f"part_{i % 3}" / f"{i:02}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(document)
    return tmp_path


def config(files: object, **options: object) -> TextConfig:
    return TextConfig(**({"name": "text", "seq_len": 16, "files": str(files)} | options))


def stream_of(windows: Windows) -> bytes:
    """What an epoch of windows says, put together again."""
    batch = windows.batch(np.arange(len(windows)))
    kept = batch["labels"] != IGNORED
    stream = bytes([int(batch["tokens"][0, 0]), *batch["labels"][kept].tolist()])
    assert bytes(batch["tokens"][kept].tolist()) == stream[:-1]
    return stream


def documents_of(windows: Windows, known: list[bytes]) -> list[bytes]:
    """The documents of a stream, which must be made of them and their separators alone."""
    stream, found = stream_of(windows), []
    while stream:
        first = next(each for each in known if stream.startswith(each + b"\0"))
        found.append(first)
        stream = stream[len(first) + 1 :]
    return found


@pytest.mark.parametrize("seq_len", [1, 7, 16, 64])
def test_every_byte_of_every_document_is_in_one_split_once(folder: Path, seq_len: int) -> None:
    data = Text(config(folder / "**/*.txt", seq_len=seq_len, val_fraction=0.3))
    train, val = (documents_of(each, DOCUMENTS) for each in (data.train(), data.val()))
    assert not set(train) & set(val)
    assert sorted(train + val) == sorted(DOCUMENTS)


@pytest.mark.parametrize("length", [17, 32, 33, 34, 48, 49])
def test_windows_predict_each_byte_but_the_first_once(length: int) -> None:
    source = bytes(range(1, length + 1))
    windows = Windows(ByteStream(bytearray(source), [length - 1]), 16)
    assert stream_of(windows) == source
    batch = windows.batch(np.arange(len(windows)))
    assert (batch["labels"] != IGNORED).sum() == length - 1
    assert batch["tokens"].shape == batch["labels"].shape == (len(windows), 16)
    assert batch["tokens"].dtype == batch["labels"].dtype == torch.int64


def test_documents_stand_in_the_order_of_their_names(folder: Path) -> None:
    data = Text(config(folder / "**/*.txt"))
    paths = sorted(str(path) for path in folder.glob("**/*.txt"))
    named = [Path(path).read_bytes() for path in paths]
    train = documents_of(data.train(), DOCUMENTS)
    assert train == [document for document in named if document in train]


def test_a_label_stands_for_one_byte(folder: Path) -> None:
    data = Text(config(folder / "**/*.txt", seq_len=50))
    labels = data.val().batch(np.arange(len(data.val())))["labels"]
    assert data.num_bytes({"labels": labels}) == (labels != IGNORED).sum()
    assert data.vocab_size == config("x").vocab_size == 256


def test_a_document_keeps_its_split_when_others_come_and_go() -> None:
    _, before = split(DOCUMENTS, 0.3)
    _, after = split(DOCUMENTS[::2], 0.3)
    assert 4 < len(before) < 20
    assert after == [document for document in DOCUMENTS[::2] if document in before]


def test_twins_fall_into_the_same_split() -> None:
    train, val = split(DOCUMENTS + DOCUMENTS, 0.3)
    assert not set(train) & set(val)
    assert len(train) + len(val) == 80


@pytest.mark.parametrize("num", [2, 3, 5])
def test_few_documents_still_leave_one_to_validate_on(num: int) -> None:
    train, val = split(DOCUMENTS[:num], 1e-9)
    assert len(val) == 1
    assert len(train) == num - 1


def test_a_single_document_is_cut_and_its_end_validates(tmp_path: Path) -> None:
    source = bytes(range(1, 201))
    (tmp_path / "one.txt").write_bytes(source)
    data = Text(config(tmp_path / "one.txt", val_fraction=0.2))
    assert stream_of(data.train()) == source[:160] + b"\0"
    assert stream_of(data.val()) == source[160:] + b"\0"


def test_max_bytes_cuts_the_last_document(tmp_path: Path) -> None:
    for name, size in (("a", 50), ("b", 50), ("c", 50), ("d", 50)):
        (tmp_path / name).write_bytes(name.encode() * size)
    data = Text(config(tmp_path / "*", max_bytes=120))
    known = [b"a" * 50, b"b" * 50, b"c" * 20]
    found = documents_of(data.train(), known) + documents_of(data.val(), known)
    assert sorted(found) == known


def test_tables_give_a_document_a_row(tmp_path: Path) -> None:
    texts = [f"row {i}\r\nÄ{'x' * 30}" for i in range(30)]
    rows = "\n".join(json.dumps({"text": text, "number": 1}) for text in texts)
    (tmp_path / "a.jsonl").write_text(rows)
    data = Text(config(tmp_path / "*.jsonl", val_fraction=0.3))
    known = [text.encode() for text in texts]
    found = documents_of(data.train(), known) + documents_of(data.val(), known)
    assert sorted(found) == sorted(known)


def test_parquet_is_read_by_the_named_column(tmp_path: Path) -> None:
    from datasets import Dataset

    bodies = [f"{i} " * 30 for i in range(20)]
    frame = Dataset.from_dict({"body": bodies, "id": list(range(20))}).to_pandas()
    frame.to_parquet(tmp_path / "a.parquet")
    data = Text(config(tmp_path / "*.parquet", column="body"))
    known = [body.encode() for body in bodies]
    found = documents_of(data.train(), known) + documents_of(data.val(), known)
    assert sorted(found) == sorted(known)


def test_reading_is_quiet_and_touches_neither_net_nor_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import datasets

    cache = tmp_path / "home"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("the net was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    rows = "\n".join(json.dumps({"text": "x" * (20 + i)}) for i in range(20))
    (tmp_path / "a.jsonl").write_text(rows)
    (tmp_path / "b.txt").write_text("plain text " * 10)
    Text(config(tmp_path / "*.*"))
    assert not cache.exists()
    assert capfd.readouterr() == ("", "")


def test_stdlib_is_python_source_without_packages_and_tests() -> None:
    data = Text(config("stdlib", max_bytes=1_000_000, seq_len=256))
    text = (stream_of(data.train()) + stream_of(data.val())).decode()
    assert "class ABC(" in text
    assert data.train().batch(np.arange(2))["tokens"].shape == (2, 256)
    assert config("stdlib").files == "stdlib"

    parts = {part for path in find("stdlib") for part in path.parts}
    assert not {"site-packages", "test", "tests"} & parts
    assert Path(sysconfig.get_path("stdlib"), "ast.py") in find("stdlib")


def test_a_relative_glob_is_made_absolute(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    cfg = config("part_*/*.txt")
    assert cfg.files == os.path.join(folder, "part_*/*.txt")
    monkeypatch.chdir("/")
    assert len(Text(cfg).train()) > 0
    assert config("~/x.txt").files == os.path.expanduser("~/x.txt")


@pytest.mark.parametrize("name", ["a[1].txt", "[x", "what?.txt", "a*.txt", "é ☃.txt"])
def test_the_name_of_a_file_is_taken_before_a_glob(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"own " * 50)
    (tmp_path / "a1.txt").write_bytes(b"other " * 50)
    assert find(str(tmp_path / name)) == [tmp_path / name]


def test_a_glob_without_a_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"data\.files='.*/no\*\.txt' matches no file\. Give a glob"
    ):
        Text(config(tmp_path / "no*.txt"))


def test_a_folder_gets_the_glob_of_its_files(folder: Path) -> None:
    with pytest.raises(DataError, match=r"is a folder\. Name its files: data\.files='.*\*\*/\*\.t"):
        Text(config(folder))


def test_empty_files_say_so(tmp_path: Path) -> None:
    for name in ("a.txt", "b.jsonl", "c.parquet"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match="matches only empty files"):
        Text(config(tmp_path / "*"))


def test_an_unreadable_file_is_named_with_the_reason(folder: Path) -> None:
    (folder / "part_0" / "lost.txt").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"can't read '.*lost\.txt': No such file.*leaves it out"):
        Text(config(folder / "**/*.txt"))


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 1000)
    os.mkfifo(tmp_path / "b.txt")
    for files in ("*.txt", "b.txt"):
        with pytest.raises(DataError, match=r"can't read '.*b\.txt': it is no regular file\. Mend"):
            Text(config(tmp_path / files))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file_is_named_with_the_reason(folder: Path) -> None:
    (folder / "part_0" / "00.txt").chmod(0)
    with pytest.raises(DataError, match=r"can't read '.*00\.txt': Permission denied"):
        Text(config(folder / "**/*.txt"))


@pytest.mark.parametrize(("fraction", "name"), [(0.01, "validation"), (0.99, "training")])
def test_a_corpus_too_small_for_a_window_says_how_much_there_is(
    tmp_path: Path, fraction: float, name: str
) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 1000)
    with pytest.raises(DataError, match=rf"has 11 bytes for {name}, less than one window of data"):
        Text(config(tmp_path / "a.txt", val_fraction=fraction))


def test_documents_that_are_all_alike_leave_none_to_train_on(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text((json.dumps({"text": "x" * 100}) + "\n") * 30)
    message = r"leaves no document for training: they all validate, and those of equal content"
    with pytest.raises(DataError, match=message):
        Text(config(tmp_path / "a.jsonl"))


def test_a_row_without_the_column_names_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "x", "id": 1}\n')
    with pytest.raises(DataError, match=r"without text in column 'text'; its columns are body, id"):
        Text(config(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_broken_table_is_named(
    tmp_path: Path, suffix: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"a.{suffix}").write_text('{"text": "x"}\nnot json\n')
    with pytest.raises(DataError, match=rf"a\.{suffix}' is no {suffix} table \(.*\)\. Mend"):
        Text(config(tmp_path / f"a.{suffix}"))
    assert capfd.readouterr() == ("", "")


def test_lengths_out_of_range_are_refused() -> None:
    for options in ({"seq_len": 0}, {"max_bytes": 0}, {"val_fraction": 1.0}, {"batch_size": 0}):
        with pytest.raises(ConfigError, match=rf"{next(iter(options))} must be"):
            config("x", **options)
