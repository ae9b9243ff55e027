"""Shards: every document once, whatever they come from; the same bytes however often killed."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from statelab.corpus import plan
from statelab.corpus import tokenise as tokenising
from statelab.corpus.shards import ShardWriter
from statelab.corpus.sources import Source, kind_of, qualified
from statelab.corpus.tokenizer import load
from statelab.data.hf import Hf, shards_of
from statelab.data.split import split
from statelab.errors import ConfigError, DataError


def contents(folder):
    """SHA-256 of every file by name."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.iterdir()
        if file.is_file()
    }


@pytest.fixture(params=["jsonl", "parquet", "arrow", "txt", "folder", "saved", "mixed"])
def path(request, tmp_path, documents):
    """The documents in each form that local ones come in."""
    from datasets import Dataset

    folder = tmp_path / "given"
    folder.mkdir()
    halves = (documents[:150], documents[150:])
    kind = request.param
    kinds = ["jsonl", "parquet"] if kind == "mixed" else [kind, kind]
    for number, (each, half) in enumerate(zip(kinds, halves, strict=True)):
        table = Dataset.from_dict({"text": half, "id": [*range(150)]})
        if each == "jsonl":
            lines = (json.dumps({"text": text, "id": 0}) for text in half)
            (folder / f"{number}.jsonl").write_text("\n".join(lines))
        elif each in ("parquet", "folder"):
            table.to_parquet(folder / f"train-{number}.parquet")
        elif each == "arrow":
            table.save_to_disk(folder / "saved")
            (arrow,) = (folder / "saved").glob("*.arrow")
            arrow.rename(folder / f"{number}.arrow")
            shutil.rmtree(folder / "saved")
        elif each == "txt":
            for row, text in enumerate(half):
                (folder / f"{number}-{row:03}.txt").write_text(text)
    if kind == "saved":
        Dataset.from_dict({"text": documents}).save_to_disk(folder)
    return str(folder) if kind in ("folder", "saved") else f"{folder}/*"


def test_every_document_is_there_once_in_its_order(path, documents, configure, documents_of):
    config = configure(path, val_fraction=0.2, shard_tokens=3000)
    shards = shards_of(config)
    assert len(shards.records) > 3
    train, val = documents_of(config)
    wanted = split([each.encode() for each in documents], 0.2)
    assert [train, val] == [[each.decode() for each in part] for part in wanted]
    assert shards.counts["train"].documents + shards.counts["val"].documents == 300
    assert sum(each.bytes for each in shards.counts.values()) == sum(
        len(each.encode()) for each in documents
    )


def test_local_data_are_read_without_the_net(path, configure, monkeypatch, capfd):
    def refuse(*args, **options):
        raise AssertionError("the net was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    shards_of(configure(path))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["bpe", "metaspace"])
def test_shards_change_no_text(jsonl, documents, configure, documents_of, request, name):
    file = request.getfixturevalue(name)
    whole = configure(jsonl, tokenizer=str(file), val_fraction=0.2)
    parts = configure(jsonl, tokenizer=str(file), val_fraction=0.2, shard_tokens=500)
    assert len(shards_of(parts).records) > len(shards_of(whole).records) == 1
    assert documents_of(whole) == documents_of(parts)
    assert Counter(itertools.chain(*documents_of(parts))) == Counter(documents)


def test_a_long_document_is_cut_for_the_tokenizer_and_is_one_all_the_same(
    tmp_path, configure, bpe, monkeypatch, documents_of
):
    monkeypatch.setattr(plan, "_PIECE_BYTES", 64)
    texts = ["é☃" * 500, "x" * 200 + "\n" + "y" * 200, "word\n" * 100, "😀" * 99]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text)
    config = configure(f"{tmp_path}/*.txt", tokenizer=str(bpe), shard_tokens=200)
    assert Counter(itertools.chain(*documents_of(config))) == Counter(texts)


def test_a_single_document_is_cut_between_characters_and_its_end_validates(
    tmp_path, configure, bpe, documents_of
):
    text = "記憶☃" * 100
    (tmp_path / "a.txt").write_text(text)
    for shard_tokens in (50, 10**6):
        config = configure(
            tmp_path / "a.txt", tokenizer=str(bpe), val_fraction=0.301, shard_tokens=shard_tokens
        )
        (train,), (val,) = documents_of(config)
        assert train + val == text
        assert 0.69 < len(train) / len(text) < 0.71


def test_a_named_split_is_all_that_validates(tmp_path, documents, configure, documents_of):
    from datasets import Dataset

    folder = tmp_path / "given"
    folder.mkdir()
    for name, part in (("train", documents[:200]), ("validation", documents[200:])):
        Dataset.from_dict({"body": part}).to_parquet(folder / f"{name}-0.parquet")
    options = {"column": "body", "val_split": "validation"}
    assert documents_of(configure(folder, **options)) == [documents[:200], documents[200:]]
    few = configure(folder, **options, max_tokens=2000, shard_tokens=1000)
    train, val = documents_of(few)
    assert train == documents[: len(train)]
    assert val == documents[200:]
    assert 2000 <= shards_of(few).counts["train"].tokens < 3000


def test_max_tokens_stops_behind_a_document(jsonl, documents, configure, documents_of):
    train, val = documents_of(configure(jsonl, val_fraction=0.01, max_tokens=3000))
    wanted, _ = split([each.encode() for each in documents], 0.01)
    assert train == [each.decode() for each in wanted[: len(train)]]
    sizes = [len(each.encode()) + 1 for each in train]
    assert sum(sizes[:-1]) + 1 < 3000 <= sum(sizes) + 1
    # However rare: reading goes on until there is one.
    assert len(val) == 1


def test_two_configurations_share_no_bytes(jsonl, configure, bpe, metaspace):
    folders = {
        shards_of(configure(jsonl, **options)).folder
        for options in (
            {},
            {"tokenizer": str(bpe)},
            {"tokenizer": str(metaspace)},
            {"tokenizer": str(metaspace), "end_token": "<s>"},
            {"val_fraction": 0.1},
            {"max_tokens": 1000},
            {"shard_tokens": 1000},
        )
    }
    assert len(folders) == 7
    before = shards_of(configure(jsonl)).folder
    # What has nothing to do with the tokens changes nothing.
    assert shards_of(configure(jsonl, seq_len=32, batch_size=2, streaming=False)).folder == before
    jsonl.write_text(jsonl.read_text() + '\n{"text": "one more"}')
    assert shards_of(configure(jsonl)).folder != before


# Broken off.


def test_wherever_it_breaks_off_it_ends_with_the_same_bytes(jsonl, configure, bpe, monkeypatch):
    """Every single write, and every file's move, once as the last thing that happened."""
    options = {"tokenizer": str(bpe), "val_fraction": 0.2, "shard_tokens": 2500}
    whole = contents(shards_of(configure(jsonl, **options)).folder)
    assert len([name for name in whole if name.endswith(".train.tokens")]) > 3

    steps, victims = [], []

    def counted(act):
        def step(*args, **options):
            steps.append(act)
            if len(steps) in victims:
                raise KilledError
            return act(*args, **options)

        return step

    monkeypatch.setattr(os, "replace", counted(os.replace))
    monkeypatch.setattr(ShardWriter, "write", counted(ShardWriter.write))
    shards_of(configure(jsonl, **options, cache=f"{jsonl.parent}/counted"))
    num = len(steps)
    # The last step of all gives the index its name.
    for first in (*range(1, num, num // 16), num - 1, num):
        steps.clear()
        victims[:] = [first, first + 3, first + 3 + first // 2]
        config = configure(jsonl, **options, cache=f"{jsonl.parent}/{first}")
        for _ in victims:
            with suppress(KilledError):
                shards_of(config)
        assert len(steps) >= first
        assert contents(shards_of(config).folder) == whole


class KilledError(BaseException):
    """Plays SIGKILL."""


@pytest.mark.slow
def test_killed_at_any_moment_it_ends_with_the_same_bytes(tmp_path, documents, bpe):
    for number in range(60):
        (tmp_path / f"{number}.txt").write_text("\n".join([*documents, str(number)]))
    code = (
        "import sys; from pathlib import Path; from statelab.corpus.sources import Source; "
        "from statelab.corpus.plan import Recipe; from statelab.corpus.tokenise import tokenise; "
        "from statelab.corpus.tokenizer import load; "
        "tokenise(Recipe(source=Source(path=sys.argv[1]), tokenizer='x', end_token=None, "
        "val_split=None, val_fraction=0.1, max_tokens=None, shard_tokens=20_000), "
        "lambda: load(sys.argv[2]), Path(sys.argv[3]))"
    )

    def begin(name):
        words = [sys.executable, "-c", code, f"{tmp_path}/*.txt", str(bpe), str(tmp_path / name)]
        return subprocess.Popen(words)

    assert begin("whole").wait(60) == 0
    num = len(list((tmp_path / "whole").glob("*/*.val.bytes")))
    assert num > 12
    for kill in range(4):
        process = begin("killed")
        # When some shards are complete, and a little later each time.
        while len(list((tmp_path / "killed").glob("*/*.val.bytes"))) < 3 * kill + 1:
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(0.003 * kill)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert begin("killed").wait(60) == 0
    whole, killed = (next((tmp_path / name).iterdir()) for name in ("whole", "killed"))
    assert contents(whole) == contents(killed)


def test_several_who_want_it_at_once_tokenise_once(jsonl, configure, monkeypatch):
    write, writes = tokenising._write, []

    def slow(*args):
        writes.append(args)
        time.sleep(0.2)
        write(*args)

    monkeypatch.setattr(tokenising, "_write", slow)
    with ThreadPoolExecutor(3) as pool:
        # The lock is that of open files, and so also among threads.
        found = [*pool.map(shards_of, [configure(jsonl)] * 3)]
    assert len(writes) == 1
    assert len({each.folder for each in found}) == 1


# Damage.


@pytest.mark.parametrize("name", ["00000.train.tokens", "00000.val.bytes", "00001.train.ends"])
def test_a_truncated_or_missing_shard_is_named(jsonl, configure, name):
    config = configure(jsonl, shard_tokens=3000)
    file = shards_of(config).folder / name
    raw = file.read_bytes()
    file.write_bytes(raw[:-1])
    with pytest.raises(DataError, match=rf"damaged: .*{name} has \d+ bytes instead of \d+\. Rem"):
        shards_of(config)
    file.unlink()
    with pytest.raises(DataError, match=rf"damaged: .*{name} is missing\. Remove the folder"):
        shards_of(config)


def test_a_flipped_bit_is_found_by_verify(jsonl, configure):
    shards = shards_of(configure(jsonl))
    assert shards.verify() == sum(
        size for each in shards.records for size, _ in each.files.values()
    )
    file = shards.folder / "00000.train.tokens"
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    with pytest.raises(DataError, match=r"00000\.train\.tokens has another checksum than the ind"):
        shards.verify()


def test_a_broken_index_is_named(jsonl, configure):
    config = configure(jsonl)
    (shards_of(config).folder / "index.json").write_text('{"about"')
    with pytest.raises(DataError, match=r"index\.json can't be read \(JSONDecodeError\)\. Remove"):
        shards_of(config)


# Sources, and what is wrong with them.


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("HuggingFaceFW/fineweb-edu", "hub"),
        ("wikitext", "hub"),
        ("stdlib", "files"),
        ("corpus/*.txt", "files"),
        ("corpus/a.jsonl", "files"),
        ("a.parquet", "files"),
        ("~/text/a", "files"),
        ("./text", "files"),
        ("/no/such/folder", "files"),
        ("a/b/c", "files"),
    ],
)
def test_a_path_is_taken_for_what_it_looks_like(path, kind, away):
    assert kind_of(path) == kind
    assert qualified(path).startswith("/") == (kind == "files" and path != "stdlib")
    (away / "wikitext").mkdir()
    assert kind_of("wikitext") == "folder"
    assert qualified("wikitext") == str(away / "wikitext")


def test_reading_goes_on_behind_any_document(path, documents):
    source = Source(path=path)
    read = [*source.read({})]
    assert [each.decode() for each, _ in read] == documents
    for number in (0, 1, 149, 150, 151, 298, 299):
        behind = json.loads(json.dumps(read[number][1]))
        assert [*source.read(behind)] == read[number + 1 :]


def test_reading_goes_on_in_a_later_batch_and_file(tmp_path):
    from datasets import Dataset

    for number in range(3):
        rows = [f"{number} {row}" for row in range(2500)]
        Dataset.from_dict({"text": rows}).to_parquet(tmp_path / f"train-{number}.parquet")
    source = Source(path=str(tmp_path))
    read = [*source.read({})]
    assert len({document for document, _ in read}) == 7500
    for number in (999, 1000, 2499, 2500, 4321, 7499):
        rest = [document for document, _ in source.read(read[number][1])]
        assert rest == [document for document, _ in read[number + 1 :]]


def test_what_can_t_be_read_is_named(tmp_path, configure, bpe, monkeypatch):
    cases = {
        "no/*.txt": r"^data\.path='.*no/\*\.txt' matches no file\. Give a glob",
        "empty.txt": r"^data\.path='.*empty\.txt' has no text\. Give some",
        "rows.jsonl": r"^data\.path: '.*rows\.jsonl' has a row without text in column 'text'; its "
        r"columns are body\.",
        "same.jsonl": r"^data\.path='.*' leaves no document for training\. Give more text, another",
        "stray.txt": r"^a document is no UTF-8 text: byte 0xff stands after",
        "nothing": r"^data\.path='.*nothing' can't be loaded: \w+: ",
    }
    (tmp_path / "nothing").mkdir()
    (tmp_path / "empty.txt").touch()
    (tmp_path / "rows.jsonl").write_text('{"body": "x"}\n')
    (tmp_path / "same.jsonl").write_text('{"text": "x"}\n' * 9)
    (tmp_path / "stray.txt").write_bytes(b"x\xff" * 9)
    for name, message in cases.items():
        with pytest.raises(DataError, match=message):
            shards_of(configure(tmp_path / name, tokenizer=str(bpe)))
    (tmp_path / "a.txt").write_text("short")
    with pytest.raises(DataError, match=r"has 6 tokens for training, less than one window of data"):
        Hf(configure(tmp_path / "a.txt", val_fraction=0.1))

    def refuse(*args, **options):
        raise OSError("no net")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", refuse)
    with pytest.raises(DataError, match=r"^data\.path='nobody/nothing' can't be loaded: OSError"):
        shards_of(configure("nobody/nothing"))


def test_a_connection_that_breaks_says_how_to_go_on(tmp_path, documents, configure, monkeypatch):
    from datasets import Dataset, IterableDataset

    (tmp_path / "given").mkdir()
    Dataset.from_dict({"text": documents}).to_parquet(tmp_path / "given" / "train-0.parquet")

    def broken(self, size):
        raise ConnectionError("reset by peer")
        yield

    monkeypatch.setattr(IterableDataset, "iter", broken)
    with pytest.raises(DataError, match=r"reading broke off \(ConnectionError: reset by peer\)\."):
        shards_of(configure(tmp_path / "given"))


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc").exists(), reason="needs /proc")
def test_a_cache_that_can_t_be_written_is_named(jsonl, configure):
    with pytest.raises(DataError, match=r"^data\.cache: /proc/.* can't be written: "):
        shards_of(configure(jsonl, cache="/proc/none"))


def test_the_hub_is_asked_for_a_commit_once_and_read_at_it(
    tmp_path, documents, configure, monkeypatch, documents_of
):
    """The hub is played by a folder: what is asked of it, and with which revision."""
    import datasets

    asked = []
    rows = datasets.Dataset.from_dict({"text": documents})

    class Info:
        sha = "c0ffee"

    def info(self, name, *, revision):
        asked.append((name, revision))
        return Info

    def load_dataset(path, *, split, revision, streaming, **options):
        asked.append((path, options["name"], split, revision, streaming))
        return rows.to_iterable_dataset() if streaming else rows

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", info)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    config = configure("HuggingFaceFW/fineweb-edu", subset="sample-10BT", val_fraction=0.2)
    train, val = documents_of(config)
    assert Counter(train + val) == Counter(documents)
    assert asked[0] == ("HuggingFaceFW/fineweb-edu", None)
    assert set(asked[1:]) == {("HuggingFaceFW/fineweb-edu", "sample-10BT", "train", "c0ffee", True)}
    folder = shards_of(config).folder
    assert folder.name.startswith("HuggingFaceFW-fineweb-edu-sample-10BT-")
    before, count = contents(folder), len(asked)
    for name in ("index.json", "00000.json"):
        (folder / name).unlink()
    assert contents(shards_of(config).folder) == before
    assert ("HuggingFaceFW/fineweb-edu", None) not in asked[count:]
    shutil.rmtree(folder)
    downloaded = configure(
        "HuggingFaceFW/fineweb-edu", subset="sample-10BT", val_fraction=0.2, streaming=False
    )
    assert contents(shards_of(downloaded).folder) == before


def test_bytes_have_no_header(jsonl, configure):
    # The files are what `shards.py` says: readable without statelab.
    import numpy as np

    shards = shards_of(configure(jsonl))
    tokens = np.fromfile(shards.folder / "00000.train.tokens", "<u1")
    ends = np.fromfile(shards.folder / "00000.train.ends", "<i8")
    assert len(tokens) == shards.counts["train"].tokens
    assert (tokens[ends] == load("bytes").end).all()
    assert tokens[0] == 0


@pytest.mark.parametrize("text", ['{"nu', "{}", '{"commit": null}', "[]", "7"])
@pytest.mark.parametrize("name", ["00000.json", "plan.json"])
def test_a_damaged_record_is_said_in_one_line(jsonl, configure, name, text):
    folder = shards_of(configure(jsonl)).folder
    (folder / "index.json").unlink()
    (folder / name).write_text(text)
    with pytest.raises(DataError, match=rf"data are damaged: .*{name} can't be read \(") as caught:
        shards_of(configure(jsonl))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "asked", [{"val_split": "validation"}, {"split": "test"}, {"subset": "a"}, {"revision": "b"}]
)
def test_files_have_no_splits_to_train_and_validate_on_alike(jsonl, configure, asked):
    [(name, value)] = asked.items()
    message = rf"are files, which have no parts: data\.{name}={value} is for data sets"
    with pytest.raises(ConfigError, match=message):
        configure(jsonl, **asked)
