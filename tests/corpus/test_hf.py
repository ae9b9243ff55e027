"""Training on tokenised data: exact resume, ranks, bits per byte, packing, generation."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
import signal
from collections import Counter

import numpy as np
import pytest
import torch

from statelab.data.hf import Hf, HfConfig, shards_of
from statelab.data.lightning_data import LightningData, build_data
from statelab.data.loader import EpochLoader
from statelab.data.module import IGNORED
from statelab.data.order import permutation
from statelab.errors import ConfigError, DataError
from statelab.evaluate import evaluate
from statelab.language_model import LanguageModel
from statelab.loading import load_config, to_dict
from statelab.runs.resume import load_resumable
from statelab.runs.stored import StoredRun
from statelab.train import train

POEM = """\
A state remembers what was written last,
and what was written long ago it keeps
by half, by quarter, as the tokens pass;
a gate decides how quickly it forgets.
Naïve it is to ask for all of it:
the door is narrow — ein Schlüssel nur —
yet what a query turns to, it may get,
記憶 is finite, and the text is more.
    So write with care, and read with care as well;
\twhat no one asks for, no one has to tell.
"""


@pytest.fixture
def hf(toy_config, jsonl, bpe, tmp_path):
    """The configuration of a run of a second on tokenised text in several shards."""

    def make(*overrides):
        return toy_config(
            "data.name=hf",
            f"data.path={jsonl}",
            f"data.tokenizer={bpe}",
            f"data.cache={tmp_path}/cache",
            "data.shard_tokens=2000",
            "data.val_fraction=0.2",
            "trainer.max_steps=6",
            "trainer.val_every=3",
            "trainer.val_batches=2",
            "trainer.checkpoint_every=1",
            "tracking.enabled=false",
            *overrides,
        )

    return make


def history(folder):
    with (folder / "metrics.csv").open() as file:
        return [
            {name: each for name, each in row.items() if not name.startswith("perf/")}
            for row in csv.DictReader(file)
        ]


# Resume, ranks.


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["false", "true"])
def test_a_broken_run_goes_on_to_the_bit_with_shuffle_and_workers(
    hf, tmp_path, monkeypatch, packing
):
    keys = ("data.num_workers=2", f"data.packing={packing}", "read=ccq")
    whole = train(hf(*keys, f"run_dir={tmp_path}/whole"), progress=False)
    step = LanguageModel.training_step

    def stopping(model, batch, batch_idx):
        if model.global_step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(model, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "training_step", stopping)
        broken = train(hf(*keys, f"run_dir={tmp_path}/broken"), progress=False)
    assert broken.status == "KILLED"
    config = load_resumable(
        [f"resume={broken.run_id}", f"run_dir={tmp_path}/broken", "data.num_workers=0"]
    )
    ended = train(config, progress=False)
    assert ended.status == "FINISHED"
    assert history(ended.folder) == history(whole.folder)
    ours, theirs = (
        torch.load(each.checkpoint, weights_only=True)["state_dict"] for each in (ended, whole)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_two_processes_train_as_one_does_and_tokenise_once(hf, tmp_path):
    alone = train(hf(f"run_dir={tmp_path}/alone"), progress=False)
    keys = ("trainer.devices=2", "data.batch_size=2")
    both = train(hf(*keys, f"run_dir={tmp_path}/both"), progress=False)
    wanted = [float(row["train/loss"]) for row in history(alone.folder) if row["train/loss"]]
    losses = [float(row["train/loss"]) for row in history(both.folder) if row["train/loss"]]
    assert len(losses) == 6
    assert losses == pytest.approx(wanted, abs=1e-5)
    # Bits per byte are those of all processes together.
    assert both.metrics["val/bpb"] == pytest.approx(alone.metrics["val/bpb"], abs=1e-5)
    assert len([*(tmp_path / "cache" / "shards").iterdir()]) == 1


@pytest.mark.slow
def test_two_processes_go_on_to_the_bit(hf, tmp_path):
    keys = ("trainer.devices=2", "data.batch_size=2", "optim.schedule=constant")
    whole = train(hf(*keys, f"run_dir={tmp_path}/whole"), progress=False)
    place = f"run_dir={tmp_path}/parts"
    part = train(hf(*keys, place, "trainer.max_steps=3"), progress=False)
    again = (place, f"resume={part.run_id}", "data.num_workers=1")
    ended = train(hf(*keys, *again), progress=False)
    assert history(ended.folder) == history(whole.folder)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_each_epoch_without_loss_or_doubling(configure, jsonl, world):
    data = Hf(configure(jsonl, shard_tokens=1000))
    examples = data.train()
    windows = examples.batch(np.arange(len(examples)))
    wanted = Counter(tuple(row) for row in windows["labels"].tolist())

    def loader(rank, num_workers=0):
        return EpochLoader(
            examples,
            order=lambda epoch: permutation(len(examples), seed=5, epoch=epoch),
            batch_size=4,
            num_workers=num_workers,
            rank=rank,
            world=world,
        )

    for epoch in (0, 1):
        seen = Counter()
        for rank in range(world):
            for batch in loader(rank).batches(epoch=epoch, finished=0):
                rows = batch["labels"][(batch["labels"] != IGNORED).any(1)]
                seen.update(tuple(row) for row in rows.tolist())
        assert seen == wanted


# Bits per byte.


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("seq_len", [7, 16, 100])
def test_bytes_of_a_text_are_the_same_under_all_tokenizers(
    configure, tmp_path, bpe, metaspace, seq_len, packing
):
    """The byte count of ten lines, by hand, whatever the tokens are and wherever windows end."""
    lines = POEM.splitlines(keepends=True)
    assert len(lines) == 10
    by_hand = sum(1 if ord(c) < 128 else 2 if ord(c) < 2048 else 3 for c in POEM)
    assert by_hand == len(POEM.encode()) == 415
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "train.jsonl").write_text(json.dumps({"text": "x" * 3000}))
    (folder / "validation.jsonl").write_text(json.dumps({"text": POEM}))
    counts = {}
    for name in ("bytes", str(bpe), str(metaspace)):
        config = configure(
            folder,
            tokenizer=name,
            val_split="validation",
            seq_len=seq_len,
            packing=packing,
            batch_size=2,
        )
        data = LightningData(Hf(config), config)
        batches = list(data.val_dataloader())
        counts[name] = sum(int(data.num_bytes(batch)) for batch in batches)
        labels = sum(int((batch["labels"] != IGNORED).sum()) for batch in batches)
        # Every token of the document and its end is predicted once.
        tokenizer = config.load_tokenizer()
        assert labels == len(tokenizer.encode([POEM.encode()])[0]) + 1
    # And one byte for the end of the document.
    assert set(counts.values()) == {415 + 1}


def test_bits_per_byte_are_the_loss_by_those_bytes(hf, tmp_path):
    config = hf(f"run_dir={tmp_path}/runs", "trainer.val_batches=null")
    result = train(config, progress=False)
    counts = shards_of(config.data).counts["val"]
    nats = result.metrics["val/loss"] * (counts.tokens - 1)
    wanted = nats / (counts.bytes + counts.documents) / math.log(2)
    assert result.metrics["val/bpb"] == pytest.approx(wanted, rel=1e-6)
    run = StoredRun(id=result.run_id, folder=result.folder)
    assert evaluate(run).metrics["val/bpb"] == result.metrics["val/bpb"]


def test_packing_parts_documents_at_their_ends(configure, jsonl, bpe):
    config = configure(jsonl, tokenizer=str(bpe), packing=True, batch_size=3, shard_tokens=500)
    end = config.load_tokenizer().end
    *whole, _ = LightningData(Hf(config), config).val_dataloader()
    for batch in whole:
        tokens, bounds = batch["tokens"][0], batch["cu_seqlens"]
        ends = {int(place) + 1 for place in (tokens == end).nonzero()}
        windows = set(range(0, len(tokens) + 1, 16))
        # The first token of all ends no document.
        assert (set(bounds.tolist()) ^ (ends | windows)) <= {1}
        assert ((batch["labels"][0, [b - 1 for b in ends if b - 1]]) == IGNORED).all()


# Tokens as text, and the configuration.


def test_a_run_generates_text(hf, tmp_path, statelab):
    result = train(hf(f"run_dir={tmp_path}/runs"), progress=False)
    arguments = (f"run={result.run_id}", "prompt=naïve key", "max_new_tokens=8", "seed=1")
    status, out, _ = statelab("generate", *arguments)
    assert status == 0
    assert out.startswith("naïve key")
    status, out, _ = statelab("inspect", f"run={result.run_id}", "text=memory ☃ decay", "--json")
    assert status == 0
    assert Hf.spell(hf().data, 0) == "<|endoftext|>"


def test_another_tokenizer_is_refused_wherever_tokens_are_used(hf, tmp_path, bpe, statelab):
    mine = tmp_path / "mine.json"
    mine.write_bytes(bpe.read_bytes())
    result = train(hf(f"data.tokenizer={mine}", f"run_dir={tmp_path}/runs"), progress=False)
    values = json.loads(mine.read_text())
    values["model"]["merges"].pop()
    mine.write_text(json.dumps(values))
    for command in (
        ("train", f"resume={result.run_id}", "trainer.max_steps=7"),
        ("eval", f"run={result.run_id}"),
        ("generate", f"run={result.run_id}", "prompt=a"),
        ("inspect", f"run={result.run_id}", "text=a b c"),
    ):
        status, _, err = statelab(*command)
        assert status == 2
        (line,) = [line for line in err.splitlines() if line.startswith("statelab: ")]
        assert "is not the one that this was made with" in line
    assert statelab("runs")[0] == 0
    mine.unlink()
    assert statelab("runs")[0] == 0
    status, _, err = statelab("eval", f"run={result.run_id}")
    assert (status, "no such file" in err) == (2, True)


def test_a_configuration_means_the_same_from_every_folder(hf, bpe, jsonl, monkeypatch):
    monkeypatch.chdir(jsonl.parent)
    config = hf("data.path=a.jsonl", f"data.tokenizer={os.path.relpath(bpe)}", "data.cache=here")
    assert config.data.path == str(jsonl)
    assert config.data.tokenizer == str(bpe)
    assert config.data.cache == str(jsonl.parent / "here")
    assert config.data.tokenizer_sha == hf().data.tokenizer_sha
    assert config.model.vocab_size == 400
    monkeypatch.chdir("/")
    assert load_config(to_dict(config)) == config


def test_the_cache_is_where_the_environment_says(configure, jsonl, tmp_path, monkeypatch):
    config = dataclasses.replace(configure(jsonl), cache=None)
    monkeypatch.setenv("STATELAB_CACHE", str(tmp_path / "elsewhere"))
    assert shards_of(config).folder.is_relative_to(tmp_path / "elsewhere")
    monkeypatch.delenv("STATELAB_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert shards_of(config).folder.is_relative_to(tmp_path / "home/.cache/statelab")


def test_a_tokenizer_on_the_hub_is_fetched_when_training_begins(hf, bpe, tmp_path, monkeypatch):
    with pytest.raises(
        ConfigError, match=r"^data\.tokenizer='some/model' is not on this machine, "
    ):
        hf("data.tokenizer=some/model")
    config = hf("data.tokenizer=some/model", "model.vocab_size=400", f"run_dir={tmp_path}/runs")
    assert (config.data.tokenizer_sha, config.data.vocab_size) == (None, None)
    hub = tmp_path / "hub"
    hub.mkdir()

    def download(name, file, revision=None):
        assert name == "some/model"
        (hub / file).write_bytes(bpe.read_bytes() if file == "tokenizer.json" else b"{}")
        return str(hub / file)

    def cached(name, file):
        return str(hub / file) if (hub / file).exists() else None

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", cached)
    result = train(config, progress=False)
    saved = StoredRun(id=result.run_id, folder=result.folder).config()
    assert saved.data.tokenizer_sha == hf().data.tokenizer_sha
    small = hf("data.tokenizer=some/model", "data.tokenizer_sha=null")
    assert small.model.vocab_size == 400
    (hub / "tokenizer.json").unlink()
    few = hf("data.tokenizer=some/model", "model.vocab_size=300")
    with pytest.raises(ConfigError, match=r"model\.vocab_size=300 is less than the data's 400"):
        train(few, progress=False)


def test_empty_names_are_refused(configure, jsonl):
    with pytest.raises(ConfigError, match=r"data\.path= is empty\. Give one"):
        configure(" ")
    with pytest.raises(ConfigError, match=r"data\.tokenizer= is empty\. Give one"):
        configure(jsonl, tokenizer="")


def test_build_data_needs_no_model(hf):
    data = build_data(hf())
    assert (data.vocab_size, data.is_text) == (400, True)
    with pytest.raises(DataError, match="no UTF-8"):
        Hf.encode(hf().data, "\udcff")
    assert HfConfig(name="hf", path="stdlib").vocab_size == 256


# The command.


def test_the_command_trains_shows_and_tokenises(statelab, jsonl, documents, toy, tmp_path):
    status, out, _ = statelab(
        "tokenizer", "train", f"files={jsonl}", "vocab_size=300", "out=t.json", "--json"
    )
    assert (status, json.loads(out)["vocab_size"]) == (0, 300)
    status, out, _ = statelab("tokenizer", "show", "tokenizer=t.json", "text=naïve", "--json")
    shown = json.loads(out)
    assert (status, sum(shown["bytes"]), shown["end"]) == (0, 6, 0)
    assert "".join(shown["pieces"]).startswith("na")
    keys = toy("data.name=hf", f"data.path={jsonl}", "data.tokenizer=t.json", "data.cache=c")
    status, out, _ = statelab("tokenizer", "shards", *keys, "verify=true", "--json")
    told = json.loads(out)
    assert status == 0
    assert told["train_documents"] + told["val_documents"] == len(documents)
    assert told["verified_bytes"] > told["train_tokens"]
    status, out, _ = statelab("tokenizer", "shards", *keys)
    assert (status, "train_tokens" in out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tokenizer", "trian"), "tokenizer takes train, show, shards, got 'trian'."),
        (("tokenizer", "show", "text=a"), "tokenizer show takes tokenizer=NAME, text and end_"),
        (("tokenizer", "train", "vocab_size=300"), "files is required: say files=VALUE."),
        (("tokenizer", "shards", "experiment=mqar"), "tokenizer shards needs data.name=hf, got"),
        (("tokenizer", "shards", "verify=yes"), "verify must be true or false, got 'yes'."),
    ],
)
def test_the_command_says_what_is_wrong(statelab, arguments, message):
    status, _, err = statelab(*arguments)
    assert status == 2
    assert message in err
