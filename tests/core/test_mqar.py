from __future__ import annotations

import numpy as np
import pytest
import torch

from statelab.data.draws import distinct, uniform
from statelab.data.module import IGNORED
from statelab.data.mqar import MQAR, MQARConfig
from statelab.errors import ConfigError


def config(**options: object) -> MQARConfig:
    defaults = {"name": "mqar", "seq_len": 64, "num_train": 2000, "num_val": 500}
    return MQARConfig(**(defaults | options))


CELLS = [
    {},
    {"filler": "random"},
    {"num_pairs": (4, 8), "filler": "random"},
    {"seq_len": 16, "num_pairs": (4,), "vocab_size": 10, "filler": "random"},
    {"seq_len": 67, "num_pairs": (2, 16), "vocab_size": 35, "filler": "random"},
    {"power_a": 1.0},
]


@pytest.mark.parametrize("options", CELLS, ids=str)
def test_every_query_has_exactly_one_right_answer_and_it_is_the_label(options: dict) -> None:
    cfg = config(**options)
    batch = MQAR(cfg).train().batch(np.arange(200))
    for tokens, labels, kind in zip(batch["tokens"], batch["labels"], batch["slice"], strict=True):
        n = cfg.num_pairs[kind]
        keys, values = tokens[0 : 2 * n : 2], tokens[1 : 2 * n : 2]
        value_of = dict(zip(keys.tolist(), values.tolist(), strict=True))
        asked = (labels != IGNORED).nonzero().flatten()
        assert len(value_of) == len(set(values.tolist())) == len(asked) == n
        assert sorted(tokens[asked].tolist()) == sorted(value_of)
        assert [value_of[key] for key in tokens[asked].tolist()] == labels[asked].tolist()
        assert asked.min() >= 2 * n
        assert all(place % 2 == 0 for place in asked.tolist())
        # Nowhere else in the example does one of its keys appear.
        assert torch.isin(tokens, keys).sum() == 2 * n


@pytest.mark.parametrize("options", CELLS, ids=str)
def test_keys_are_of_the_lower_half_and_values_of_the_upper(options: dict) -> None:
    cfg = config(**options)
    batch = MQAR(cfg).train().batch(np.arange(500))
    half = cfg.vocab_size // 2
    asked = batch["labels"] != IGNORED
    keys, values = batch["tokens"][asked], batch["labels"][asked]
    assert 1 <= keys.min() <= keys.max() < half
    assert half <= values.min() <= values.max() < cfg.vocab_size
    assert 0 <= batch["tokens"].min() <= batch["tokens"].max() < cfg.vocab_size
    assert batch["tokens"].dtype == batch["labels"].dtype == batch["slice"].dtype == torch.int64


def test_small_vocabularies_use_every_key_and_every_value() -> None:
    batch = MQAR(config(seq_len=16, vocab_size=11)).train().batch(np.arange(500))
    asked = batch["labels"] != IGNORED
    assert set(batch["tokens"][asked].tolist()) == {1, 2, 3, 4}
    assert set(batch["labels"][asked].tolist()) == {5, 6, 7, 8, 9, 10}


def test_no_answer_stands_after_its_query_with_zeros_as_filler() -> None:
    batch = MQAR(config()).train().batch(np.arange(200))
    assert torch.all(batch["tokens"][:, 8:].masked_fill(batch["labels"][:, 8:] != IGNORED, 0) == 0)


def test_random_filler_is_any_token_but_a_key_of_the_example() -> None:
    cfg = config(vocab_size=32, filler="random")
    batch = MQAR(cfg).train().batch(np.arange(2000))
    filler = batch["labels"] == IGNORED
    filler[:, :8] = False
    counts = torch.bincount(batch["tokens"][filler], minlength=32).double()
    # A token is barred from an example where it is a key: 4 of the 15 keys are.
    share = torch.ones(32, dtype=torch.float64)
    share[1:16] = 11 / 15
    torch.testing.assert_close(counts / counts.sum(), share / share.sum(), atol=2e-3, rtol=0)


@pytest.mark.parametrize("power", [0.01, 0.5, 1.0])
def test_gaps_of_a_single_query_follow_the_power_law(power: float) -> None:
    num = 20_000
    batch = MQAR(config(num_pairs=(1,), power_a=power, num_train=num)).train().batch(np.arange(num))
    places = (batch["labels"] != IGNORED).int().argmax(dim=1)
    gaps = torch.bincount((places - 2) // 2 + 1, minlength=32)[1:].double() / num
    g = torch.arange(1, 32, dtype=torch.float64)
    law = power * g ** (power - 1)
    # Four standard deviations of the largest share.
    torch.testing.assert_close(gaps, law / law.sum(), atol=4 * (0.25 / num) ** 0.5, rtol=0)


def test_keys_choose_their_gaps_in_turn_without_replacement() -> None:
    """Against NumPy's own sequential draw, as Zoology makes it."""
    num, places, power = 20_000, 4, 0.01
    batch = MQAR(config(seq_len=12, num_pairs=(2,), num_train=num)).train().batch(np.arange(num))
    position = {}
    for which in (0, 1):
        key = batch["tokens"][:, [2 * which]]
        position[which] = ((batch["tokens"][:, 4:] == key).int().argmax(dim=1) // 2).numpy()
    ours = np.bincount(position[0] * places + position[1], minlength=places**2) / num

    p = np.arange(1, places + 1) ** (power - 1)
    p /= p.sum()
    theirs = np.array(
        [p[i] * p[j] / (1 - p[i]) if i != j else 0 for i in range(places) for j in range(places)]
    )
    np.testing.assert_allclose(ours, theirs, atol=4 * (0.25 / num) ** 0.5)


def test_an_example_is_a_function_of_seed_split_and_index_alone() -> None:
    cfg = config(num_pairs=(4, 8), filler="random")
    together = MQAR(cfg).train().batch(np.array([5, 1, 1200]))
    torch.manual_seed(1)
    np.random.seed(1)
    for row, index in enumerate((5, 1, 1200)):
        alone = MQAR(cfg).train().batch(np.array([index]))
        for name in together:
            assert torch.equal(together[name][row], alone[name][0])


def test_the_global_generators_are_left_alone() -> None:
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1]
    MQAR(config(filler="random")).train().batch(np.arange(10))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)


def test_another_seed_draws_other_examples() -> None:
    first, second = (MQAR(config(seed=s)).train().batch(np.arange(100)) for s in (0, 1))
    assert not torch.any(torch.all(first["tokens"] == second["tokens"], dim=1))


def test_training_and_validation_share_no_example_and_hold_no_twins() -> None:
    data = MQAR(config())
    train = data.train().batch(np.arange(2000))["tokens"]
    val = data.val().batch(np.arange(500))["tokens"]
    assert len({tuple(row.tolist()) for row in torch.cat([train, val])}) == 2500


def test_slices_are_the_counts_of_pairs_in_equal_parts() -> None:
    data = MQAR(config(num_pairs=(4, 8, 2)))
    batch = data.train().batch(np.arange(300))
    assert data.slices == ("kv_4", "kv_8", "kv_2")
    assert torch.bincount(batch["slice"]).tolist() == [100, 100, 100]
    asked = (batch["labels"] != IGNORED).sum(dim=1)
    assert torch.equal(asked, torch.tensor([4, 8, 2])[batch["slice"]])


def test_bytes_mean_nothing_here() -> None:
    data = MQAR(config())
    assert data.num_bytes(data.val().batch(np.arange(2))["labels"]) is None
    assert data.vocab_size == 8192


def test_too_short_a_sequence_names_the_length_that_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"data\.seq_len=31 has no room .* data\.seq_len=32 or"):
        config(seq_len=31, num_pairs=(4, 8))


def test_too_small_a_vocabulary_names_the_size_that_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"data\.vocab_size=9 has 3 keys.*vocab_size=10 or more"):
        config(vocab_size=9)


@pytest.mark.parametrize("pairs", [(), (4, 4)])
def test_counts_of_pairs_must_be_some_and_different(pairs: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"data\.num_pairs=\[.*\] must name one count"):
        config(num_pairs=pairs)


def test_draws_without_replacement_are_uniform_in_value_and_order() -> None:
    rows = distinct(uniform(0, 0, np.arange(60_000)[:, None], np.arange(3)), 4)
    assert all(len(set(row)) == 3 for row in rows[:1000].tolist())
    counts = np.bincount(rows @ [16, 4, 1])
    assert np.count_nonzero(counts) == 24
    np.testing.assert_allclose(counts[counts > 0] / 60_000, 1 / 24, atol=4e-3)


def test_uniform_numbers_are_uniform_along_every_part_of_the_key() -> None:
    many = np.arange(20_000)
    for u in (uniform(many, 1, 2, 3), uniform(1, many, 2, 3), uniform(1, 2, 3, many)):
        assert u.min() >= 0
        assert u.max() < 1
        np.testing.assert_allclose(np.histogram(u, 10, (0, 1))[0] / 20_000, 0.1, atol=0.01)
        assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.03
