"""How often: the frequencies that the published descriptions give, each at odds of 1 in 10,000."""

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, chisquare

from statelab.data.module import IGNORED

CHANCE = 1e-4


def count(values, num):
    return np.bincount(np.asarray(values).ravel(), minlength=num)


def test_recall_draws_keys_values_and_the_last_question_uniformly(task):
    tokens = task("in_context_recall").train().batch(np.arange(3000))["tokens"].numpy()
    keys, values = tokens[:, :-2:2], tokens[:, 1:-2:2]
    assert chisquare(count(keys, 8)).pvalue > CHANCE
    # A value is drawn once an example: that of the first key is one a row.
    assert chisquare(count(values[:, 0] - 8, 8)).pvalue > CHANCE
    assert chisquare(count(tokens[:, -2], 8)).pvalue > CHANCE


def test_two_keys_may_have_one_value(task):
    tokens = task("in_context_recall").train().batch(np.arange(500))["tokens"].numpy()
    different = [len({*row[1::2]}) for row in tokens]
    # Eight draws of eight with replacement.
    assert np.mean(different) == pytest.approx(8 * (1 - (7 / 8) ** 8), abs=0.2)


def test_the_last_question_is_uniform_over_the_keys_shown(task):
    """Not over the places: a key that was shown thrice is asked for as often as one shown once."""
    num = 4000
    tokens = task("in_context_recall", seq_len=10, vocab_size=4).train().batch(np.arange(num))
    rows = tokens["tokens"].numpy()
    uneven = rows[(rows[:, :8:2] == 0).sum(axis=1) == 3]  # three of 0, one of 1
    assert len(uneven) > 500
    assert binomtest(int((uneven[:, 8] == 0).sum()), len(uneven), 0.5).pvalue > CHANCE


def test_each_count_of_keys_is_shown_in_full_and_makes_a_slice(task):
    data = task("in_context_recall", vocab_size=64, num_keys=(4, 32, 8))
    batch = data.val().batch(np.arange(300))
    assert data.slices == ("keys_4", "keys_32", "keys_8")
    assert torch.bincount(batch["slice"]).tolist() == [100, 100, 100]
    for tokens, labels, kind in zip(batch["tokens"], batch["labels"], batch["slice"], strict=True):
        n = data.config.num_keys[kind]
        assert len({*tokens[:-2:2].tolist()}) == n
        assert (labels != IGNORED).sum() == 64 - n
    # Which keys, and where they first stand, is left to chance.
    assert chisquare(count(batch["tokens"][:, 0], 32)).pvalue > CHANCE


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_noise_comes_in_pairs_at_its_share(task, share):
    batch = task("noisy_recall", noise=share).train().batch(np.arange(1000))
    noise = batch["tokens"].numpy() >= 16
    assert (noise[:, ::2] == noise[:, 1::2]).all()
    assert not noise[:, -2:].any()
    assert (~noise[:, :-2]).any(axis=1).all()
    # 62 places an example are free to be noise, one before the last isn't.
    places = noise[:, :-2:2]
    assert binomtest(int(places.sum()), 62 * 1000, share).pvalue > CHANCE
    assert chisquare(count(batch["tokens"].numpy()[noise] - 16, 16)).pvalue > CHANCE
    assert task("noisy_recall", noise=0.0).train().batch(np.arange(50))["tokens"].max() < 16


def test_motifs_have_uniform_sizes_and_tokens(task):
    """The first pair of an example without padding's cut: the first motif of each row."""
    tokens = task("fuzzy_recall").train().batch(np.arange(4000))["tokens"].numpy()
    start = (tokens == 15).sum(axis=1)
    first = [row[at : at + 6] for row, at in zip(tokens, start, strict=True)]
    sizes = [int((row < 7).argmin()) for row in first]
    assert chisquare(count(sizes, 4)[1:]).pvalue > CHANCE
    assert chisquare(count([row[0] for row in first], 7)).pvalue > CHANCE
    val = task("fuzzy_recall").val().batch(np.arange(200))["tokens"].numpy()
    for row in val:
        inside = row[(row == 15).sum() :] < 7
        runs = np.diff(np.flatnonzero(np.diff(np.pad(inside, 1).astype(int))))[::2]
        assert (runs == 3).all()


def test_each_blank_stands_before_one_of_the_tokens(task):
    n = 16
    tokens = task("selective_copying").train().batch(np.arange(1000))["tokens"].numpy()
    head = tokens[:, : 256 - n - 1]
    kept = np.flatnonzero(head.ravel() < 14).reshape(1000, n) % head.shape[1]
    assert (kept[:, -1] == head.shape[1] - 1).all()  # none stands before the sign
    gaps = np.diff(kept, axis=1, prepend=-1) - 1
    assert chisquare(gaps.sum(axis=0)).pvalue > CHANCE
    assert chisquare(count(head[head < 14], 14)).pvalue > CHANCE
    # Independent draws: the variance is the binomial's.
    blanks = head.shape[1] - n
    assert gaps.var() == pytest.approx(blanks / n * (1 - 1 / n), rel=0.05)


def test_the_first_sign_stands_anywhere_but_right_before_the_end(task):
    tokens = task("induction", seq_len=12).train().batch(np.arange(4000))["tokens"].numpy()
    places = (tokens == 15).argmax(axis=1)
    assert chisquare(count(places, 10)).pvalue > CHANCE
    assert places.max() == 9
