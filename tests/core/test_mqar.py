from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency, chisquare

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


@pytest.mark.parametrize("n", [4, 16])
def test_the_gaps_of_all_keys_are_distributed_as_a_plain_loop_draws_them(n: int) -> None:
    """Chi-square of 2 x m tables: the gaps of first, last and all keys, in tokens.

    The loop is the published description: key after key takes one of the places that are left,
    with weights a g^(a - 1).
    """
    num, T, power = 3000, 64, 0.01
    batch = MQAR(config(num_pairs=(n,), num_train=num)).train().batch(np.arange(num))
    tokens = batch["tokens"].numpy()
    rng = np.random.default_rng(0)
    law = power * np.arange(1, (T - 2 * n) // 2 + 1) ** (power - 1.0)
    theirs = np.array(
        [rng.choice(len(law), size=n, replace=False, p=law / law.sum()) for _ in range(num)]
    )
    asked = tokens[:, None, 2 * n :] == tokens[:, 0 : 2 * n : 2, None]  # [num, n, T - 2n]
    ours = asked.argmax(axis=2) // 2
    for which in (0, n - 1, slice(None)):
        table = np.stack(
            [np.bincount(each[:, which].ravel(), minlength=len(law)) for each in (ours, theirs)]
        )
        # A test for one in ten thousand, with seeds that never change.
        assert chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue > 1e-4


def test_keys_and_values_are_uniform_over_their_halves_and_independent() -> None:
    num, V = 4000, 66
    batch = MQAR(config(vocab_size=V, num_train=num)).train().batch(np.arange(num))
    asked = batch["labels"] != IGNORED
    keys, values = batch["tokens"][asked].numpy(), batch["labels"][asked].numpy()
    table = np.histogram2d(keys, values, bins=(np.arange(1, 34), np.arange(33, 67)))[0]
    assert table.sum() == 4 * num  # nothing outside of 1 .. 32 and 33 .. 65
    assert chisquare(table.sum(axis=1)).pvalue > 1e-4
    assert chisquare(table.sum(axis=0)).pvalue > 1e-4
    assert chi2_contingency(table).pvalue > 1e-4


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


SEGMENTS = {
    "segments": ("16/4 x 300", "32/8 x 100", "32/2 x 50"),
    "val_segments": ("8/2 x 20", "32/4 x 30", "64/16 x 10"),
}


def test_segments_have_their_lengths_pairs_and_numbers() -> None:
    train = MQAR(config(**SEGMENTS)).train()
    assert len(train) == 450
    assert train.groups == (300, 100, 50)
    for first, (T, n, num) in zip(
        (0, 300, 400), ((16, 4, 300), (32, 8, 100), (32, 2, 50)), strict=True
    ):
        batch = train.batch(np.arange(first, first + num))
        assert list(batch["tokens"].shape) == [num, T]
        assert ((batch["labels"] != IGNORED).sum(dim=1) == n).all()
    val = MQAR(config(**SEGMENTS)).val()
    assert val.groups == (20, 30, 10)
    assert torch.bincount(val.batch(np.arange(60))["slice"]).tolist() == [20, 30, 10]


def test_an_example_of_a_segment_is_the_same_beside_longer_ones() -> None:
    val = MQAR(config(**SEGMENTS, filler="random")).val()
    together = val.batch(np.array([3, 25, 55]))
    for row, (index, T) in enumerate(((3, 8), (25, 32), (55, 64))):
        alone = val.batch(np.array([index]))
        for name in ("tokens", "labels"):
            assert torch.equal(together[name][row, :T], alone[name][0])
        assert (together["labels"][row, T:] == IGNORED).all()
        assert (together["tokens"][row, T:] == 0).all()


@pytest.mark.parametrize(
    ("segments", "names"),
    [
        (("64/4 x 1", "64/8 x 1"), ("kv_4", "kv_8")),
        (("64/4 x 1", "32/4 x 1", "32/8 x 1"), ("kv_4_len_64", "kv_4_len_32", "kv_8")),
    ],
)
def test_slices_of_segments_are_told_apart(
    segments: tuple[str, ...], names: tuple[str, ...]
) -> None:
    assert MQAR(config(val_segments=segments)).slices == names


def test_a_single_segment_is_the_cell_of_its_size() -> None:
    one = MQAR(config(segments=("64/4 x 2000",))).train().batch(np.arange(50))
    other = MQAR(config()).train().batch(np.arange(50))
    assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        (("64:4",), r"data\.segments: '64:4' is no segment\. Write tokens/pairs x examples"),
        (("64/0 x 5",), r"data\.segments: '64/0 x 5' is no segment"),
        (("64/4 x 0",), r"data\.segments: '64/4 x 0' is no segment"),
        (("64/4 x " + "9" * 5000,), r"data\.segments: '64/4 x 9{1,53} is no segment"),
        (("12/4 x 5",), r"'12/4 x 5' has no room for its pairs: .* 16 tokens or more"),
        (("64/4 x 5", "64/4 x 6"), r"data\.segments: 64/4 is given 2 times\. Add"),
        (("64/4 x 100000001",), r"100,000,001 examples\. Their order takes 100,000,000 at most"),
        (("128/4 x 5",), r"data\.seq_len=64 is less than the 128 tokens of segment 128/4"),
    ],
)
def test_segments_that_can_not_be_are_named(segments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(segments=segments)


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
