"""What a task can't be is said in one line."""

import numpy as np
import pytest

from statelab.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("in_context_recall", {"seq_len": 127}, r"data\.seq_len=127 must be even.*; try 128\."),
        ("memorisation", {"seq_len": 31}, r"data\.seq_len=31 must be even.*question.*; try 32\."),
        ("in_context_recall", {"num_keys": (4, 4)}, r"data\.num_keys=\[4, 4\] names a count twice"),
        (
            "in_context_recall",
            {"num_keys": (4, 9)},
            r"data\.num_keys=\[4, 9\]: data\.vocab_size=16 has 8 keys, .* Ask for 8 or fewer\.",
        ),
        (
            "in_context_recall",
            {"num_keys": (4,), "seq_len": 8},
            r"data\.seq_len=8 room to show 3\. Ask for 3 or fewer\.",
        ),
        (
            "noisy_recall",
            {"vocab_size": 17},
            r"data\.noise_vocab_size=16 leaves no key and value of data\.vocab_size=17\. Set "
            r"data\.vocab_size=18 or more",
        ),
        (
            "selective_copying",
            {"seq_len": 32},
            r"data\.seq_len=32 has no room for data\.num_copy=16: .* Set data\.seq_len=33 or more",
        ),
        (
            "fuzzy_recall",
            {"seq_len": 12},
            r"data\.seq_len=12 has no room for a pair and its question, .* data\.seq_len=13 or",
        ),
        (
            "fuzzy_recall",
            {"vocab_size": 6},
            r"data\.vocab_size=6 has 2 tokens for keys and 3 for values; data\.key_size=3 and",
        ),
        ("noisy_recall", {"noise": 1.0}, r"noise must be >= 0 and < 1, got 1\.0"),
    ],
)
def test_a_setting_that_can_not_be_is_named(task, name, options, message):
    with pytest.raises(ConfigError, match=message):
        task(name, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("noisy_recall", {"vocab_size": 18}),
        ("selective_copying", {"seq_len": 33}),
        ("fuzzy_recall", {"vocab_size": 7, "seq_len": 13}),
        ("in_context_recall", {"num_keys": (3,), "seq_len": 8}),
    ],
)
def test_the_smallest_that_a_message_offers_can_be(task, name, options):
    assert task(name, **options).val().batch(np.arange(2))["tokens"].shape[0] == 2
