"""Packed documents: none sees another, and training on them is training on them padded."""

import csv
import json
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.testing import assert_close

from statelab.__main__ import main
from statelab.data.lightning_data import LightningData, build_data
from statelab.data.loader import EpochLoader
from statelab.data.module import IGNORED
from statelab.data.packing import pack, sequences
from statelab.data.split import split
from statelab.data.text import Text, TextConfig
from statelab.language_model import LanguageModel
from statelab.model.build import build_model
from statelab.train import train

WRITES = ("linear", "gla", "deltanet", "gated_deltanet", "s4d")
PAIRS = [*product(WRITES, ("plain", "ccq", "interdomain")), ("kv", "softmax")]
T = 16
DOCUMENTS = [bytes([97 + i]) * (3 + 5 * i % 41) + b"\0." for i in range(24)]


def text_options(folder):
    """Documents of 6 to 46 bytes in windows of 16."""
    rows = "\n".join(json.dumps({"text": each.decode()}) for each in DOCUMENTS)
    (folder / "a.jsonl").write_text(rows)
    return (
        "data.name=text",
        f"data.files={folder}/a.jsonl",
        f"data.seq_len={T}",
        "data.val_fraction=0.3",
    )


def parts(batch):
    """(tokens, labels) of each document of a packed batch."""
    for first, last in pairwise(batch["cu_seqlens"].tolist()):
        yield batch["tokens"][0, first:last], batch["labels"][0, first:last]


def padded(batch):
    """The same documents as rows, zeros and ignored labels behind the short ones."""
    tokens, labels = zip(*parts(batch), strict=True)
    return {
        "tokens": pad_sequence(list(tokens), batch_first=True),
        "labels": pad_sequence(list(labels), batch_first=True, padding_value=IGNORED),
    }


@pytest.fixture
def run(toy_config, tmp_path):
    """Train without a store, and return the result with its metrics by name and step."""

    def run(*overrides):
        config = toy_config("tracking.enabled=false", f"run_dir={tmp_path}/runs", *overrides)
        result = train(config, progress=False)
        with (result.folder / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        names = ("train/loss", "grad_norm", "val/loss", "val/accuracy")
        return result, {
            name: {int(row["step"]): float(row[name]) for row in rows if row.get(name)}
            for name in names
        }

    return run


# Batches.


def test_a_batch_becomes_one_row_that_is_cut_where_documents_end():
    batch = {
        "tokens": torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]),
        "labels": torch.tensor([[2, 3, 4, 5], [6, 7, 8, 9]]),
        "ends": torch.tensor([[False, True, False, False], [True, False, False, True]]),
        "slice": torch.tensor([1, 0]),
    }
    packed = pack(batch)
    assert packed.keys() == {"tokens", "labels", "cu_seqlens", "slice"}
    assert packed["tokens"].tolist() == [[1, 2, 3, 4, 5, 6, 7, 8]]
    no = IGNORED
    assert packed["labels"].tolist() == [[2, no, 4, 5, no, 7, 8, no]]
    assert packed["cu_seqlens"].tolist() == [0, 2, 4, 5, 8]
    assert packed["cu_seqlens"].dtype == torch.int64
    assert packed["slice"].tolist() == [1, 0]


@pytest.mark.parametrize("seq_len", [1, 7, 16, 64])
def test_text_is_cut_at_documents_and_windows_and_predicts_no_first_byte(tmp_path, seq_len):
    text_options(tmp_path)
    config = TextConfig(
        name="text",
        files=f"{tmp_path}/a.jsonl",
        val_fraction=0.3,
        seq_len=seq_len,
        batch_size=3,
        packing=True,
    )
    tokens, labels, cuts = [], [], set()
    for batch in LightningData(Text(config), config).val_dataloader():
        cuts |= {len(tokens) + bound for bound in batch["cu_seqlens"].tolist()}
        tokens += batch["tokens"][0].tolist()
        labels += batch["labels"][0].tolist()
    _, documents = split(DOCUMENTS, 0.3)
    assert len(documents) > 3
    stream = b"".join(document + b"\0" for document in documents)
    starts = {0, *np.cumsum([len(document) + 1 for document in documents]).tolist()}
    edges = set(range(0, len(tokens) + 1, seq_len))
    assert cuts == {start for start in starts if start <= len(tokens)} | edges
    # The last byte of all is predicted, if at all, but never read.
    assert bytes(tokens).rstrip(b"\0") == stream[:-1].rstrip(b"\0")
    for place, label in enumerate(labels):
        if place + 1 in starts or place + 1 >= len(stream):
            assert label == IGNORED
        else:
            assert label == stream[place + 1]


def test_a_row_of_padding_is_a_document_without_labels():
    class Numbers:
        def __len__(self):
            return 3

        def batch(self, index):
            numbers = torch.from_numpy(index)[:, None].expand(-1, 2)
            return {"tokens": numbers.clone(), "labels": numbers.clone()}

    for rank, labels in ((0, [0, 0, 2, 2]), (1, [1, 1, IGNORED, IGNORED])):
        loader = EpochLoader(
            Numbers(),
            order=lambda _: np.arange(3),
            batch_size=2,
            packing=True,
            rank=rank,
            world=2,
        )
        (batch,) = loader
        assert batch["labels"].tolist() == [labels]
        assert batch["cu_seqlens"].tolist() == [0, 2, 4]


def test_workers_change_no_packed_batch(tmp_path, toy_config):
    alone, helped = (
        build_data(
            toy_config(*text_options(tmp_path), "data.packing=true", f"data.num_workers={n}")
        )
        for n in (0, 2)
    )
    for one, other in zip(alone.val_dataloader(), helped.val_dataloader(), strict=True):
        assert one.keys() == other.keys() == {"tokens", "labels", "cu_seqlens"}
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_sequences_to_look_at_are_the_beginnings_of_the_longest_documents():
    tokens = torch.arange(20)[None]
    bounds = torch.tensor([0, 1, 6, 10, 20])
    batch = {"tokens": tokens, "cu_seqlens": bounds}
    # Ten tokens of one, or five of each of two, or four of each of three.
    assert sequences(batch, 2).tolist() == [list(range(10, 20))]
    assert sequences(batch, 4).tolist() == [[10, 11, 12, 13], [1, 2, 3, 4], [6, 7, 8, 9]]
    rows = {"tokens": tokens.view(5, 4)}
    assert torch.equal(sequences(rows, 3), rows["tokens"][:3])
    equal = {"tokens": tokens, "cu_seqlens": torch.arange(0, 24, 4)}
    assert torch.equal(sequences(equal, 3), rows["tokens"][:3])


# The model.


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_no_document_moves_another_one(pair, toy_config, stirred):
    write, read = pair
    layers = "[memory, conv(width=3), attention(window=5)]"
    config = toy_config(
        f"write={write}",
        f"read={read}",
        "model.num_layers=null",
        f"model.layers={layers}",
        "model.positions=rope",
        "model.mixer.conv=3",
    )
    model = stirred(config)
    generator = torch.Generator().manual_seed(0)
    documents = [torch.randint(32, (1, n), generator=generator) for n in (7, 1, 12, 70)]
    bounds = torch.tensor([0, 7, 8, 20, 90])
    apart = torch.cat([model(each)[0] for each in documents], 1)
    row = torch.cat(documents, 1)
    packed, _ = model(row, cu_seqlens=bounds)
    assert_close(packed, apart, rtol=1e-9, atol=1e-9)
    for moved, (first, last) in enumerate(pairwise(bounds.tolist())):
        other = row.clone()
        other[:, first:last] = (other[:, first:last] + 1) % 32
        logits, _ = model(other, cu_seqlens=bounds)
        same = torch.ones(90, dtype=torch.bool)
        same[first:last] = False
        assert torch.equal(logits[:, same], packed[:, same]), f"document {moved} moves another"
        assert not torch.isclose(logits[:, first:last], packed[:, first:last]).all()


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_no_layer_asks_the_device_where_documents_end(pair, toy_config):
    # A tensor on this device has no numbers, and refuses to be waited for.
    layers = "[memory, conv(width=3), attention(window=5)]"
    options = ("model.num_layers=null", f"model.layers={layers}", "model.positions=rope")
    model = build_model(toy_config(f"write={pair[0]}", f"read={pair[1]}", *options), device="meta")
    tokens = torch.zeros(1, 90, dtype=torch.int64, device="meta")
    logits, _ = model(tokens, cu_seqlens=torch.tensor([0, 7, 8, 20, 90]))
    logits.sum().backward()
    assert logits.device.type == "meta"


def test_ccq_restarts_its_count_and_its_sums(toy_config, stirred):
    model = stirred(toy_config("write=gla", "read=ccq", "model.mixer.conv=3"))
    document, other = torch.arange(9)[None], torch.arange(20, 25)[None]
    bounds = torch.tensor([0, 5, 14, 23])
    _, packed = model(torch.cat([other, document, document], 1), cu_seqlens=bounds)
    assert packed["position"].tolist() == [5, 9, 9]
    sums = [name for name in packed if "curvature" in name]
    assert {name.rpartition(".")[2] for name in sums} == {"first", "second"}
    for place, alone in enumerate((other, document, document)):
        _, state = model(alone)
        for name in packed:
            assert_close(packed[name][place], state[name][0], rtol=1e-9, atol=1e-9)


# Runs.

RUNS = {
    "gla+ccq": ("write=gla", "read=ccq", "model.mixer.conv=4", "model.positions=rope"),
    "deltanet+interdomain": ("write=deltanet", "read=interdomain", "model.mixer.conv=4"),
    "s4d+ccq": ("write=s4d", "read=ccq"),
    "kv+softmax": ("write=kv", "read=softmax", "model.positions=learned"),
    "hybrid": (
        "write=gated_deltanet",
        "read=plain",
        "model.num_layers=null",
        "model.layers=[memory, conv(width=3), attention(window=5)]",
    ),
}


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_training_on_packed_documents_is_training_on_them_padded(
    options, run, tmp_path, monkeypatch
):
    options = (
        *options,
        *text_options(tmp_path),
        "data.packing=true",
        "trainer.max_steps=20",
        "trainer.val_every=10",
        "optim.lr=3e-3",
    )
    _, packed = run(*options)
    for name in ("training_step", "validation_step"):
        step = getattr(LanguageModel, name)

        def on_padded(self, batch, batch_idx, step=step):
            return step(self, padded(batch), batch_idx)

        monkeypatch.setattr(LanguageModel, name, on_padded)
    _, apart = run(*options)
    assert list(packed["train/loss"]) == list(range(1, 21))
    assert list(packed["val/loss"]) == [10, 20]
    for name in packed:
        assert packed[name] == pytest.approx(apart[name], rel=0, abs=1e-5), name
    assert packed["train/loss"][20] < packed["train/loss"][1] - 0.1


@pytest.mark.parametrize("pair", [("gla", "ccq"), ("kv", "softmax")], ids="+".join)
def test_where_each_row_is_a_document_packing_changes_nothing(pair, run):
    # Five batches an epoch, and validation by slices.
    options = (f"write={pair[0]}", f"read={pair[1]}", "trainer.max_steps=7", "data.num_train=18")
    rows, packed = run(*options), run(*options, "data.packing=true")
    assert rows[0].metrics.keys() == packed[0].metrics.keys() >= {"val/accuracy/kv_2"}
    for name, expected in rows[1].items():
        assert packed[1][name] == pytest.approx(expected, rel=0, abs=1e-5), name
    for name, value in rows[0].metrics.items():
        if name.startswith("val/"):
            assert packed[0].metrics[name] == pytest.approx(value, rel=0, abs=1e-5), name


@pytest.mark.slow
def test_every_command_takes_a_packed_run(toy, away, capsys):
    def statelab(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--json"])
        out, err = capsys.readouterr()
        assert ended.value.code == 0, err
        return json.loads(out)

    options = ("tracking.enabled=false", "data.packing=true", "tracking.figures=true", "read=ccq")
    trained = statelab("train", *toy(*text_options(away), *options))
    run = f"run={trained['run_id']}"
    logged = {name: each for name, each in trained["metrics"].items() if name.startswith("val/")}
    assert statelab("eval", run)["metrics"] == logged
    folder = Path(trained["folder"])
    assert (folder / "figures/weights.png").stat().st_size > 0
    assert (folder / "distributions.jsonl").stat().st_size > 0
    assert f"{folder}/inspect/weights.png" in statelab("inspect", run)["figures"]
    assert statelab("show", *toy("data.packing=true"))["data"]["packing"] is True
