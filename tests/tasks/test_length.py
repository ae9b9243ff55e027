"""Perplexity by length: an independent loop, streaming, what is counted, the named corpora."""

import gzip
import itertools
import json
import math
import zipfile

import pyarrow
import pyarrow.parquet
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from statelab import train as training
from statelab.errors import ConfigError, DataError
from statelab.evaluate import evaluate, load_checkpoint
from statelab.runs.stored import find_run
from statelab.tasks.corpora import own_text, read_text, text_name
from statelab.tasks.hub import CORPORA, GROUPS
from statelab.tasks.scores import curve
from statelab.tasks.windows import position_losses

EXACT = {"rtol": 1e-9, "atol": 1e-9}


def length(run, *overrides):
    return evaluate(run, task="length", overrides=overrides)


def plain_loop(run, text, window):
    """Mean loss of the predicted tokens and of each position, one window and token at a time."""
    model = load_checkpoint(run.checkpoint("last"))
    stream = [*text.read_bytes(), 0]
    losses = []
    for start in range(0, len(stream) - window + 1, window):
        tokens = torch.tensor([stream[start : start + window]])
        with torch.no_grad():
            logits, _ = model(tokens)
        chances = logits[0].double().softmax(-1)
        losses.append([-math.log(chances[t - 1, tokens[0, t]]) for t in range(1, window)])
    return torch.tensor(losses)


@pytest.mark.parametrize("method", ["pass", "stream"])
def test_it_agrees_with_an_independent_loop(text_run, corpus, method):
    found = length(text_run, f"text={corpus}", "lengths=24,64", f"method={method}", "chunk=7")
    assert found.checkpoint == text_run.checkpoint("last")
    for window in (24, 64):
        losses = plain_loop(text_run, corpus, window)
        row = next(
            each for each in found.report.tables["perplexity by length"] if each["length"] == window
        )
        size = len(corpus.read_bytes()) + 1
        assert row["windows"] == len(losses) == size // window
        assert row["dropped"] == size % window
        assert row["predicted"] == losses.numel()
        assert found.metrics[f"length/ppl/len_{window}"] == pytest.approx(
            losses.mean().exp().item(), rel=1e-5
        )
        # The separator, a token without a byte, is at the very end, and dropped here.
        bits = losses.sum().item() / math.log(2)
        assert found.metrics[f"length/bpb/len_{window}"] == pytest.approx(
            bits / losses.numel(), rel=1e-5
        )
    for each in found.report.data["loss_by_position"]["curves"]["little-tale"]:
        part = losses[:, each["first"] - 1 : each["last"]]
        assert each["loss"] == pytest.approx(part.mean().item(), rel=1e-5)
    assert found.metrics["length/ppl"] == found.metrics["length/ppl/len_64"]


#: A memory of each family, and the reads that carry more than it; `statelab check` has all pairs.
PAIRS = (
    ("gla", "interdomain"),
    ("deltanet", "ccq"),
    ("s4d", "plain"),
    ("s4d", "interdomain"),
    ("kv", "softmax"),
)


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_streaming_gives_what_one_pass_gives(pair, toy_config, stirred):
    options = ("model.positions=rope",) if pair[0] == "kv" else ()
    model = stirred(toy_config(f"write={pair[0]}", f"read={pair[1]}", *options)).eval()
    stream = torch.randint(32, (61,), generator=torch.Generator().manual_seed(0))
    whole = position_losses(model, stream, 20, batch_tokens=40)
    assert whole.shape == (3, 19)
    for chunk in (1, 6, 19):
        assert_close(position_losses(model, stream, 20, chunk=chunk), whole, **EXACT)


def test_in_single_precision_too(text_run, corpus):
    one, other = (
        length(text_run, f"text={corpus}", "lengths=300", f"method={each}", "chunk=64").metrics
        for each in ("pass", "stream")
    )
    assert one == pytest.approx(other, rel=1e-5)


def test_a_fixed_memory_streams_in_the_memory_of_a_chunk(toy_config, stirred):
    """The state behind a window is as large as that behind a chunk; a cache's is not."""
    seen = {}
    for write, read in (("gla", "plain"), ("kv", "softmax")):
        model = stirred(toy_config(f"write={write}", f"read={read}")).eval()
        sizes = seen[write] = set()
        hidden = model.hidden

        def watched(tokens, state=None, hidden=hidden, sizes=sizes):
            out, state = hidden(tokens, state)
            sizes.add((tokens.shape[1], sum(each.numel() for each in state.values())))
            return out, state

        model.hidden = watched
        position_losses(model, torch.arange(32), 17, chunk=4)
    assert {tokens for tokens, _ in seen["gla"]} == {4}
    assert len(seen["gla"]) == 1
    assert len(seen["kv"]) == 4


def test_the_head_sees_a_part_of_the_positions_at_a_time(toy_config, stirred, monkeypatch):
    model, stream = stirred(toy_config()).eval(), torch.arange(32)
    whole = position_losses(model, stream, 16)
    monkeypatch.setattr("statelab.tasks.windows._LOGITS", 32 * 5)
    assert_close(position_losses(model, stream, 16), whole, **EXACT)


def test_alone_it_reads_the_runs_own_validation_text(text_run, text_config, corpus):
    own = own_text(text_config(), None)
    raw = corpus.read_bytes()
    assert bytes(own.tokens.tolist()) == raw[round(len(raw) * 0.5) :] + b"\0"
    found = length(text_run)
    assert {row["length"] for row in found.report.tables["perplexity by length"]} == {16, 32, 64}
    less = length(text_run, "max_tokens=70")
    assert {row["windows"] for row in less.report.tables["perplexity by length"]} == {4, 2, 1}


def test_bins_hold_each_position_once():
    losses = torch.rand(1000, dtype=torch.float64)
    rows = curve(losses, 32)
    assert [rows[0]["first"], rows[-1]["last"]] == [1, 1000]
    assert all(a["last"] + 1 == b["first"] for a, b in itertools.pairwise(rows))
    total = sum(row["loss"] * (row["last"] - row["first"] + 1) for row in rows)
    assert total == pytest.approx(losses.sum().item())
    assert len(curve(losses[:3], 32)) == 3


def test_several_corpora_have_metrics_of_their_own_and_a_mean(text_run, corpus, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("zebra " * 40)
    found = length(text_run, f"text={corpus},{other}", "lengths=16,32").metrics
    for each in (16, 32):
        own = [found[f"length/{name}/ppl/len_{each}"] for name in ("little-tale", "other")]
        assert found[f"length/ppl/len_{each}"] == pytest.approx(sum(own) / 2)
    assert found["length/other/ppl"] == found["length/other/ppl/len_32"]


@pytest.fixture
def hub(tmp_path):
    """A folder with the six data sets as the hub has them, but little."""
    texts = [f"{word} and more of it. " * 30 for word in ("one", "two")]

    def file(name):
        place = tmp_path / "hub" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def parquet(name, rows):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file(name))

    parquet(
        "ccdv/govreport-summarization/document/test-00000-of-00001.parquet",
        [{"report": text, "summary": "no"} for text in texts],
    )
    parquet(
        "deepmind/narrativeqa/data/test-00000-of-00001.parquet",
        [{"document": {"text": text}, "question": {"text": "no"}} for text in texts * 2],
    )
    parquet("emozilla/pg19/data/test-0.parquet", [{"text": text, "url": "no"} for text in texts])
    parquet("emozilla/pg19/data/train-0.parquet", [{"text": "no", "url": "no"}])
    for name in ("qmsum", "qasper"):
        with zipfile.ZipFile(file(f"tau/scrolls/{name}.zip"), "w") as archive:
            rows = [{"input": f"Who?\n\n{text}"} for text in texts for _ in range(2)]
            archive.writestr(f"{name}/test.jsonl", "\n".join(map(json.dumps, rows)) + "\n")
            archive.writestr(f"{name}/train.jsonl", '{"input": "no"}\n')
    with gzip.open(file("codeparrot/codeparrot-clean-valid/file-0.json.gz"), "wt") as lines:
        lines.writelines(json.dumps({"content": text}) + "\n" for text in texts)
    return tmp_path / "hub", texts


@pytest.mark.parametrize("name", CORPORA)
def test_a_named_corpus_is_read_as_the_hub_has_it(name, hub):
    folder, texts = hub
    assert list(CORPORA[name].documents(str(folder))) == texts


def test_the_groups_are_those_of_the_papers(text_run, hub):
    folder, _ = hub
    assert GROUPS["long6"].lengths == tuple(1024 * k for k in (4, 6, 8, 10, 12, 14, 16, 18, 20))
    assert GROUPS["long6_14k"].lengths == (4096, 8192, 14336)
    for group, members in (("long6", 6), ("long6_14k", 5)):
        found = length(text_run, f"text={group}", f"hub={folder}", "lengths=64").metrics
        own = {name: found[f"length/{name}/ppl"] for name in CORPORA}
        if members == 5:
            del own["narrativeqa"]
        assert found["length/ppl"] == pytest.approx(sum(own.values()) / members)


def test_without_the_hub_one_line_says_so(text_run, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DataError, match=r"^ccdv/govreport-summarization can't be fetched .*hub="):
        length(text_run, "text=govreport")


MISTAKES = {
    "no file": ("text=none/*.txt", DataError, r"^text='none/\*\.txt' matches no file\."),
    "a corpus misspelt": ("text=qmsun", DataError, r"no such corpus\. Did you mean 'qmsum'\?"),
    "a group and more": ("text=long6,stdlib", ConfigError, r"^text=long6,stdlib: the group long6"),
    "one text twice": ("text=a/x.txt,b/x.txt", ConfigError, r"two corpora are called x, x\."),
    "a short text": ("lengths=5000", DataError, r"^corpus validation has \d+ tokens, less than"),
    "a length twice": ("lengths=8,8", ConfigError, r"^lengths=8,8 names one twice\."),
    "a length of 1": ("lengths=1", ConfigError, r"^lengths must be >= 2, got 1\."),
    "an option misspelt": ("lenghts=8", ConfigError, r"^unknown key 'lenghts'\. Did you mean 'len"),
    "a key of the model": ("model.d_model=8", ConfigError, r"^eval can change data\.\* and tr"),
    "no such hub": ("text=pg19", DataError, r"emozilla/pg19 has no file test-\*\.parquet\."),
}


@pytest.mark.parametrize(("given", "kind", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_get_one_line(text_run, given, kind, message, tmp_path):
    with pytest.raises(kind, match=message):
        length(text_run, given, f"hub={tmp_path}")


def test_an_empty_text_and_a_broken_data_set_are_named(text_run, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.touch()
    with pytest.raises(DataError, match=r"^text='.*empty\.txt' has no token\."):
        length(text_run, f"text={empty}")
    folder = tmp_path / "emozilla/pg19"
    folder.mkdir(parents=True)
    (folder / "test-0.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match=r"test-0\.parquet has no texts in 'text' \(ArrowInvalid"):
        length(text_run, "text=pg19", f"hub={tmp_path}")


def test_learned_positions_end_where_training_did(text_config):
    config = text_config("model.positions=learned", "trainer.max_steps=1", "trainer.val_every=1")
    run = find_run(training.train(config, progress=False).run_id, run_dir=config.run_dir)
    assert length(run, "lengths=17").metrics["length/ppl"] > 1
    with pytest.raises(ConfigError, match=r"^lengths=18: model\.positions=learned has 16 posit"):
        length(run, "lengths=18")


def test_the_bytes_of_a_tokenizers_tokens_are_those_of_the_text(tmp_path, toy_config):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    texts = ["Día und Nacht, ", "the same fox saw the same hens 12 times"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text)
    config = toy_config(
        "data.name=hf",
        f"data.path={tmp_path}/*.txt",
        f"data.tokenizer={tmp_path}/tokenizer.json",
        f"data.cache={tmp_path}/cache",
    ).data
    found = read_text(f"{tmp_path}/*.txt", config, column="text", hub=None, max_tokens=None)
    end = tokenizer.token_to_id("<end>")
    assert (found.tokens == end).nonzero().flatten().tolist()[-1] == len(found.tokens) - 1
    assert tokenizer.decode(found.tokens.tolist()) == "".join(texts)
    assert found.sizes.sum().item() == sum(len(text.encode()) + 1 for text in texts)
    assert len(found.tokens) < found.sizes.sum()


def test_a_corpus_is_called_after_its_file_or_folder():
    assert text_name("books/The tale.txt") == "The_tale"
    assert text_name("books/**/*.txt") == "books"
    assert text_name("*.txt") == "text"
    assert text_name("stdlib") == "stdlib"


def test_tokens_that_are_no_text_need_a_text(toy_config):
    with pytest.raises(DataError, match=r"^data\.name=mqar is no text\. Give one with text="):
        own_text(toy_config(), None)


def test_the_loss_of_a_window_is_that_of_torch(toy_config, stirred):
    model, stream = stirred(toy_config()).eval(), torch.arange(30)
    found = position_losses(model, stream, 10)
    for row, window in zip(found, stream.view(3, 10), strict=True):
        logits = model(window[None])[0][0, :-1]
        assert_close(row, F.cross_entropy(logits, window[1:], reduction="none"), **EXACT)
