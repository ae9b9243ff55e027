"""What every task that is drawn keeps."""

import pickle

import numpy as np
import pytest
import torch

from statelab.data.draws import Stream
from statelab.data.module import IGNORED

#: The published base settings: tokens, vocabulary, training examples.
BASE = {
    "in_context_recall": (128, 16, 12_800),
    "fuzzy_recall": (128, 16, 12_800),
    "noisy_recall": (128, 32, 12_800),
    "selective_copying": (256, 16, 12_800),
    "memorisation": (32, 256, 256),
    "compression": (32, 16, 12_800),
    "induction": (256, 16, 12_800),
}
#: One variation of each.
VARIED = {
    "in_context_recall": {"vocab_size": 64, "seq_len": 256},
    "fuzzy_recall": {"vocab_size": 128, "seq_len": 256},
    "noisy_recall": {"vocab_size": 144, "noise": 0.8},
    "selective_copying": {"num_copy": 96},
    "memorisation": {"vocab_size": 8192},
    "compression": {"vocab_size": 128, "seq_len": 256},
    "induction": {"seq_len": 30, "vocab_size": 20},
}
CASES = [(name, {}) for name in BASE] + list(VARIED.items())


@pytest.mark.parametrize("name", BASE)
def test_the_defaults_are_the_published_sizes(task, name):
    seq_len, vocab_size, num_train = BASE[name]
    data = task(name)
    assert data.vocab_size == data.config.vocab_size == vocab_size
    assert (len(data.train()), len(data.val())) == (num_train, 1_280)
    batch = data.train().batch(np.arange(4))
    assert batch["tokens"].shape == batch["labels"].shape == (4, seq_len)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_shapes_and_ranges(task, name, options):
    data = task(name, **options)
    for split in (data.train(), data.val()):
        batch = split.batch(np.arange(64))
        tokens, labels = batch["tokens"], batch["labels"]
        assert tokens.shape == labels.shape == (64, data.config.seq_len)
        assert tokens.dtype == labels.dtype == torch.int64
        assert 0 <= tokens.min() <= tokens.max() < data.vocab_size
        asked = labels != IGNORED
        assert asked.any(dim=1).all()
        assert 0 <= labels[asked].min() <= labels[asked].max() < data.vocab_size


@pytest.mark.parametrize(("name", "options"), CASES)
def test_an_example_is_a_function_of_seed_split_and_index_alone(task, name, options):
    index = np.array([5, 1, 200])
    for split in ("train", "val"):
        together = getattr(task(name, **options), split)().batch(index)
        torch.manual_seed(1)
        np.random.seed(1)
        for row, each in enumerate(index):
            alone = getattr(task(name, **options), split)().batch(np.array([each]))
            for key in together:
                assert torch.equal(together[key][row], alone[key][0])


@pytest.mark.parametrize("name", BASE)
def test_another_seed_draws_other_examples(task, name):
    one, two = (task(name, seed=seed).train().batch(np.arange(50))["tokens"] for seed in (0, 1))
    assert not (one == two).all(dim=1).any()


@pytest.mark.parametrize("name", BASE)
def test_training_and_validation_share_no_example(task, name):
    data = task(name)
    train = data.train().batch(np.arange(len(data.train())))["tokens"]
    val = data.val().batch(np.arange(len(data.val())))["tokens"]
    rows = {tuple(row) for row in train.tolist()}
    assert len(rows) == len(train)
    assert rows.isdisjoint(tuple(row) for row in val.tolist())


@pytest.mark.parametrize("name", BASE)
def test_loader_processes_can_have_a_copy(task, name):
    examples = task(name).val()
    copy = pickle.loads(pickle.dumps(examples))
    index = np.arange(3)
    assert torch.equal(copy.batch(index)["tokens"], examples.batch(index)["tokens"])


@pytest.mark.parametrize("name", ["in_context_recall", "noisy_recall", "fuzzy_recall"])
def test_training_learns_from_every_next_token_or_from_answers(task, name):
    index = np.arange(64)
    everywhere = task(name).train().batch(index)
    tokens, labels = everywhere["tokens"], everywhere["labels"]
    assert torch.equal(labels[:, :-1], tokens[:, 1:])
    assert (labels[:, -1] == IGNORED).all()
    answers = task(name, train_on="answers").train().batch(index)
    asked = answers["labels"] != IGNORED
    assert torch.equal(answers["tokens"], tokens)
    assert torch.equal(answers["labels"][asked], labels[asked])
    assert 0 < asked.sum() < labels.numel() / 2


@pytest.mark.parametrize("name", sorted(set(BASE) - {"compression"}))
def test_no_label_stands_at_its_own_token_or_after_it_was_last_read(task, name):
    """A label is of what comes next, or of what no token shows: its place's token is another."""
    batch = task(name).val().batch(np.arange(200))
    asked = batch["labels"] != IGNORED
    if name == "fuzzy_recall":  # a value's second token stands at its first, and they differ
        assert (batch["labels"] != batch["tokens"])[asked].all()
    else:
        half = {"selective_copying": 14, "induction": 15, "memorisation": 255}.get(name, 0)
        seen = batch["tokens"][asked]
        assert (seen == half).all() if half else (seen < batch["labels"][asked]).all()


def test_streams_have_numbers_of_their_own():
    assert len({*Stream}) == len(Stream.__members__) == 4
