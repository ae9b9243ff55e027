"""Phone books: every name once, and the number asked for is the one in the book."""

import re

import numpy as np
import pytest

from statelab.data.module import IGNORED
from statelab.errors import ConfigError, DataError
from statelab_plugins.data.phonebook import Phonebook, PhonebookConfig

LINE = r"(\w+ \w+): (\d{3}-\d{4})\n"


def make(**options):
    small = {"entries": (4, 8), "num_train": 30, "num_val": 10}
    return PhonebookConfig(name="phonebook", **(small | options))


@pytest.mark.parametrize("queries", [1, 3])
def test_the_answers_are_the_numbers_in_the_book(queries):
    config = make(queries=queries, val_entries=(4, 16))
    data = Phonebook(config)
    assert data.slices == ("entries_4", "entries_16")
    for i in range(20):
        batch = data.val().batch(np.array([i]))
        text = data.decode(config, batch["tokens"][0].tolist())
        book, asked = text.split("\nLook up:\n")
        entries, questions = re.findall(LINE, book + "\n"), re.findall(LINE, asked)
        assert len(dict(entries)) == len(entries) == (4, 16)[i // 10]
        assert len(dict(questions)) == queries
        assert set(questions) <= set(entries)
        labels = batch["labels"][0]
        answer = data.decode(config, labels[labels != IGNORED].tolist())
        assert answer == "".join(number for _, number in questions)


def test_no_name_or_number_is_in_both_splits():
    config = make()
    data, seen = Phonebook(config), []
    for examples in (data.train(), data.val()):
        batch = examples.batch(np.arange(len(examples)))["tokens"]
        text = "".join(data.decode(config, row.tolist()) for row in batch)
        seen.append(tuple(map(set, zip(*re.findall(LINE, text), strict=True))))
    for train, val in zip(*seen, strict=True):
        assert not train & val
    first_names = [{name.split()[0] for name in names} for names, _ in seen]
    assert len(first_names[0] & first_names[1]) > 20


def test_books_of_one_size_are_batched_together():
    data = Phonebook(make())
    assert data.train().groups == (30, 30)
    assert "slice" not in data.train().batch(np.arange(2))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"entries": (700,)}, ConfigError, r"data\.entries: 700 names are more than the 586"),
        ({"queries": 5}, ConfigError, r"data\.queries=5 is more than the 4 names"),
        ({"seq_len": 99}, DataError, r"data\.seq_len=99 is less than the \d+ tokens that 8 ent"),
    ],
)
def test_books_that_make_no_sense_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        Phonebook(make(**options))
