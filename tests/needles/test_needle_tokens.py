"""Needles of plain tokens, and that it takes an association to find them."""

import numpy as np
import pytest

from statelab.data.module import IGNORED
from statelab.errors import ConfigError
from statelab.loading import load_config
from statelab.train import train
from statelab_plugins.data.needle_tokens import NeedleTokens, NeedleTokensConfig


def make(**options):
    small = {"num_train": 200, "num_val": 20, "vocab_size": 64}
    return NeedleTokensConfig(name="needle_tokens", **(small | options))


CELLS = [
    {},
    {"filler": "random", "value_tokens": 1},
    {"distractors": 5, "value_tokens": 3},
    {"distractors": 2, "vocab_size": 24, "filler": "random"},
]


@pytest.mark.parametrize("options", CELLS)
def test_each_key_has_one_value_and_the_question_is_for_the_needle(options):
    config = make(**options)
    data, n = NeedleTokens(config), config.value_tokens
    first_filler = 1 + 2 * config.num_words
    for i in range(0, 200, 7):
        batch = data.val().batch(np.array([i]))
        tokens, labels = (batch[name][0].numpy() for name in ("tokens", "labels"))
        size, depth = (int(each) for each in data.slices[batch["slice"][0]].split("_")[1::2])
        assert len(tokens) == size
        assert tokens[-n - 2] == 0
        key, value = tokens[-n - 1], tokens[-n:]
        assert labels[-n - 1 : -1].tolist() == value.tolist()
        assert (labels != IGNORED).sum() == n
        text = tokens[: -n - 2]
        keys = np.flatnonzero((text > 0) & (text <= config.num_words))
        assert len(keys) == len(set(text[keys])) == 1 + config.distractors
        (place,) = np.flatnonzero(text == key)
        assert text[place + 1 : place + 1 + n].tolist() == value.tolist()
        before, whole = (text[:place] >= first_filler).sum(), (text >= first_filler).sum()
        assert before == round(depth / 100 * whole)


def test_no_key_with_its_value_is_in_both_splits_but_every_token_is():
    data = NeedleTokens(make(vocab_size=24, value_tokens=1, num_train=400, num_val=80))
    seen = []
    for examples in (data.train(), data.val()):
        batch = examples.batch(np.arange(len(examples) // 2))["tokens"]
        seen.append({(int(key), int(value)) for key, value in batch[:, -2:]})
    assert not seen[0] & seen[1]
    for place in (0, 1):
        assert {each[place] for each in seen[0]} == {each[place] for each in seen[1]}


def test_needles_to_learn_from_are_anywhere():
    batch = NeedleTokens(make(lengths=(64,), num_train=400)).train().batch(np.arange(400))
    places = (batch["tokens"][:, :-4] < 22).int().argmax(dim=1)
    assert places.unique().numel() > 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"distractors": 21},
            r"data\.distractors=21: data\.vocab_size=64 has 21 keys\. Give fewer",
        ),
        (
            {"lengths": (8,), "distractors": 1},
            r"8 tokens have no room for 2 needles and a question",
        ),
    ],
)
def test_sizes_without_room_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        make(**options)


@pytest.mark.slow
def test_a_delta_rule_finds_the_needle_asked_for_and_fixed_modes_do_not(tmp_path):
    # S4D stays where it is after 80 steps.
    steps = {"deltanet": 200, "s4d": 80}
    found = {write: trained(write, tmp_path, steps[write]) for write in steps}
    assert found["deltanet"]["val/exact"] > 0.85
    assert found["s4d"]["val/exact"] < 0.5
    # Longer than all that it was trained on.
    assert found["deltanet"]["val/exact/len_32_depth_50"] > 0.85


def trained(write, folder, steps):
    values = {
        "write": write,
        "read": "plain",
        "model.d_model": 32,
        "model.num_layers": 1,
        "model.num_heads": 2,
        "model.mlp_hidden": 64,
        "model.init_std": 0.08,
        "model.mixer.conv": 4,
        "model.mixer.activation": "silu",
        "model.mixer.qk_norm": "l2",
        "data.name": "needle_tokens",
        "data.vocab_size": 32,
        "data.lengths": "[20]",
        "data.val_lengths": "[20,32]",
        "data.seq_len": 32,
        "data.depths": "[0,50,100]",
        "data.distractors": 3,
        "data.value_tokens": 1,
        "data.num_val": 64,
        "data.batch_size": 64,
        "optim.lr": 1e-2,
        "optim.warmup_steps": 20,
        "trainer.max_steps": steps,
        "trainer.val_every": steps,
        "trainer.accelerator": "cpu",
        "run_dir": folder,
        "tracking.enabled": "false",
        "tracking.figures": "false",
    }
    config = load_config(None, [f"{key}={value}" for key, value in values.items()])
    return train(config, progress=False).metrics
