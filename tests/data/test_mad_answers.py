"""Each task against a solver that reads only the tokens so far: it is right, at every label.

The solvers are plain loops. They also say where there is an answer at all, so that no label is
missing and none is one too many.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from statelab.data.module import IGNORED

N = 150


def solve_recall(tokens, num_keys, plain):
    """Keys below `num_keys`, values from there to `plain`, noise above."""
    values, last = {}, None
    for token in tokens:
        answer = IGNORED
        if token < num_keys:
            answer, last = values.get(token, IGNORED), token
        elif token < plain:
            values[last] = token
        yield answer


def solve_fuzzy(tokens, num_keys, key_size, pad):
    """Keys of `key_size` tokens below `num_keys`, values of any size."""
    values, key, value = {}, (), ()

    def learn():
        if value:
            values[key] = value

    for token in tokens:
        if token == pad:
            yield IGNORED
            continue
        if token < num_keys:
            if value:
                learn()
                key, value = (), ()
            key += (token,)
        else:
            value += (token,)
        known = values.get(key, ()) if len(key) == key_size else ()
        yield known[len(value)] if len(value) < len(known) else IGNORED


def solve_copying(tokens, blank, sign):
    kept, asked = [], None
    for token in tokens:
        if asked is not None:
            yield kept[asked]
            asked += 1
            continue
        if token == sign:
            asked = 0
        elif token != blank:
            kept.append(token)
        yield IGNORED


def solve_induction(tokens, sign):
    previous, answer = None, IGNORED
    for token in tokens:
        if token == sign:
            yield answer
        else:
            yield IGNORED
        if previous == sign:
            answer = token
        previous = token


RECALL = [
    ("in_context_recall", {}, (8, 16)),
    ("in_context_recall", {"vocab_size": 128, "seq_len": 256}, (64, 128)),
    ("in_context_recall", {"vocab_size": 33, "seq_len": 64}, (16, 33)),
    ("in_context_recall", {"vocab_size": 64, "num_keys": (4, 32, 8)}, (32, 64)),
    ("in_context_recall", {"seq_len": 4}, (8, 16)),
    ("noisy_recall", {}, (8, 16)),
    ("noisy_recall", {"noise": 0.8}, (8, 16)),
    ("noisy_recall", {"vocab_size": 144, "seq_len": 256}, (64, 128)),
    ("noisy_recall", {"noise": 0.5, "num_keys": (8,)}, (8, 16)),
]


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize(("name", "options", "sizes"), RECALL)
def test_recall_asks_for_each_value_that_is_known(task, name, options, sizes, split):
    data = task(name, train_on="answers", **options)
    batch = getattr(data, split)().batch(np.arange(N))
    for tokens, labels in zip(batch["tokens"].tolist(), batch["labels"].tolist(), strict=True):
        assert list(solve_recall(tokens, *sizes)) == labels
        assert labels[-2] != IGNORED


FUZZY = [
    ({}, (7, 3, 15)),
    ({"vocab_size": 128}, (63, 3, 127)),
    ({"vocab_size": 17, "seq_len": 40}, (8, 3, 16)),
    ({"seq_len": 512}, (7, 3, 15)),
    ({"key_size": 1, "value_size": 2}, (7, 1, 15)),
    ({"seq_len": 13}, (7, 3, 15)),
]


@pytest.mark.parametrize(("options", "sizes"), FUZZY)
def test_fuzzy_recall_asks_for_each_value_that_is_known(task, options, sizes):
    batch = task("fuzzy_recall", **options).val().batch(np.arange(N))
    for tokens, labels in zip(batch["tokens"].tolist(), batch["labels"].tolist(), strict=True):
        assert list(solve_fuzzy(tokens, *sizes)) == labels
        assert labels[-2] != IGNORED  # the last question


@pytest.mark.parametrize("options", [{}, {"vocab_size": 32}])
def test_fuzzy_training_keys_have_one_value_each_and_the_last_one_stood_before(task, options):
    data = task("fuzzy_recall", train_on="answers", **options)
    num_keys, pad = data.config.key_tokens, data.vocab_size - 1
    batch = data.train().batch(np.arange(N))
    for tokens, labels in zip(batch["tokens"].tolist(), batch["labels"].tolist(), strict=True):
        pairs = list(read_pairs(tokens, num_keys, pad))
        values = {}
        wanted = []
        for start, key, value in pairs:
            assert values.get(key, value) == value
            if key in values:
                place = start + len(key) - 1
                wanted += list(zip(range(place, len(tokens)), value, strict=False))
            values[key] = value
        assert pairs[-1][1] in [key for _, key, _ in pairs[:-1]]
        asked = [(place, label) for place, label in enumerate(labels) if label != IGNORED]
        assert asked == wanted


def read_pairs(tokens, num_keys, pad):
    """(place, key, value) of an example, however large the motifs."""
    place = next(i for i, token in enumerate(tokens) if token != pad)
    while place < len(tokens):
        start, key, value = place, (), ()
        while place < len(tokens) and tokens[place] < num_keys:
            key, place = (*key, tokens[place]), place + 1
        while place < len(tokens) and tokens[place] >= num_keys:
            value, place = (*value, tokens[place]), place + 1
        assert len(set(key)) == len(key) >= 1
        assert len(set(value)) == len(value) >= 1
        yield start, key, value


@pytest.mark.parametrize(
    "options",
    [{}, {"num_copy": 96}, {"vocab_size": 128, "seq_len": 512}, {"seq_len": 33}],
)
def test_copying_asks_for_all_tokens_in_their_order(task, options):
    data = task("selective_copying", **options)
    V, n = data.vocab_size, data.config.num_copy
    batch = data.val().batch(np.arange(N))
    for tokens, labels in zip(batch["tokens"].tolist(), batch["labels"].tolist(), strict=True):
        assert list(solve_copying(tokens, V - 2, V - 1)) == labels
        assert tokens.count(V - 1) == 1
        assert tokens[-n:] == [V - 2] * n
        assert tokens[-n - 1] == V - 1
        assert sum(token < V - 2 for token in tokens) == n


@pytest.mark.parametrize("options", [{}, {"seq_len": 3}, {"seq_len": 30, "vocab_size": 20}])
def test_induction_asks_for_what_followed(task, options):
    data = task("induction", **options)
    batch = data.val().batch(np.arange(N))
    for tokens, labels in zip(batch["tokens"].tolist(), batch["labels"].tolist(), strict=True):
        assert list(solve_induction(tokens, data.vocab_size - 1)) == labels
        assert tokens.count(data.vocab_size - 1) == 2
        assert labels[:-1] == [IGNORED] * (len(labels) - 1)


@pytest.mark.parametrize("vocab_size", [256, 4096, 8192, 7])
def test_facts_that_were_learned_in_training_are_right_in_validation(task, vocab_size):
    data = task("memorisation", vocab_size=vocab_size)
    facts = {}
    num_keys = (vocab_size - 1) // 2
    batch = data.train().batch(np.arange(256))
    for tokens, labels in zip(batch["tokens"].tolist(), batch["labels"].tolist(), strict=True):
        assert tokens[1::2] == [vocab_size - 1] * 16
        assert labels[::2] == [IGNORED] * 16
        for key, value in zip(tokens[::2], labels[1::2], strict=True):
            assert key < num_keys <= value < vocab_size - 1
            assert facts.setdefault(key, value) == value
    assert len(set(facts.values())) == len(facts)
    batch = data.val().batch(np.arange(1280))
    keys, values = batch["tokens"][:, ::2].flatten(), batch["labels"][:, 1::2].flatten()
    seen = torch.tensor([key in facts for key in keys.tolist()])
    known = torch.tensor([facts.get(key, -1) for key in keys.tolist()])
    assert torch.equal(known[seen], values[seen])
    # A draw with replacement leaves each key out with this chance.
    unseen = (1 - 1 / num_keys) ** (256 * 16)
    assert (~seen).double().mean().item() == pytest.approx(unseen, abs=0.02)


def test_other_seeds_have_other_facts(task):
    one, two = (task("memorisation", seed=seed).facts() for seed in (0, 1))
    assert (one == two).mean() < 0.1


def test_compression_asks_for_every_token(task):
    batch = task("compression").val().batch(np.arange(N))
    assert torch.equal(batch["labels"], batch["tokens"])
    assert (batch["tokens"][:, -1] == 15).all()
    assert (batch["tokens"][:, :-1] < 15).all()
    assert task("compression").readout == "last"


def test_the_examples_of_the_page_are_solved():
    page = (Path(__file__).parents[2] / "docs/tasks.md").read_text(encoding="utf-8")
    found = [
        [[int(each) if each != "-" else IGNORED for each in line.split()] for line in lines]
        for lines in re.findall(r"^tokens +(.*)\nlabels +(.*)$", page, re.MULTILINE)
    ]
    recall, fuzzy, noisy, copying, facts, compression, induction = found
    assert list(solve_recall(recall[0], 8, 16)) == recall[1]
    assert list(solve_fuzzy(fuzzy[0], 7, 3, 15)) == fuzzy[1]
    assert list(solve_recall(noisy[0], 8, 16)) == noisy[1]
    assert list(solve_copying(copying[0], 14, 15)) == copying[1]
    assert facts[0][1::2] == [255] * 3
    assert (facts[0][0], facts[1][1]) == (facts[0][4], facts[1][5])
    assert compression[0] == compression[1]
    assert list(solve_induction(induction[0], 15)) == induction[1]
