"""Needles in haystacks of text: one needle, where it should be, in exactly so many tokens."""

import re

import numpy as np
import pytest

from statelab.data.module import IGNORED
from statelab.errors import ConfigError, DataError
from statelab_plugins.data.haystack import Haystack, prose, sentences
from statelab_plugins.data.needle import Needle, NeedleConfig

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
SHAPES = {
    "s_niah_1": {"filler": "noise", "value": "number"},
    "s_niah_2": {"filler": "text", "value": "number"},
    "s_niah_3": {"filler": "text", "value": "uuid"},
}
VALUES = {"number": r"[1-9]\d{6}", "uuid": UUID}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Prose of twenty documents, one of which has sentences that could be needles."""
    folder = tmp_path_factory.mktemp("prose")
    for i in range(20):
        words = [f"Document {i} says in sentence {j} that é is a letter." for j in range(60)]
        words += ["Nobody saw the brisk-lantern there.", "The year 1234567 is far away."]
        (folder / f"{i}.txt").write_text("\n".join(words), encoding="utf-8")
    return str(folder / "*.txt")


@pytest.fixture(params=SHAPES)
def made(request, files):
    """A module of each shape, with its configuration."""
    config = make(files, **SHAPES[request.param])
    return config, Needle(config)


def make(files, **options):
    small = {"lengths": (320, 640), "val_lengths": (320, 1000), "num_train": 50, "num_val": 6}
    return NeedleConfig(name="needle", files=files, **(small | options))


def texts(config, data, examples):
    """The text and the answer of each example."""
    batches = [examples.batch(np.array([i])) for i in range(len(examples))]
    for batch in batches:
        tokens, labels = batch["tokens"][0], batch["labels"][0]
        asked = labels[labels != IGNORED]
        # A label stands where the next token is it, and the last token predicts nothing.
        assert tokens[1:][labels[:-1] != IGNORED].equal(asked)
        assert labels[-1] == IGNORED
        yield data.decode(config, tokens.tolist()), data.decode(config, asked.tolist()), len(tokens)


def key_of(text):
    return re.search(r"The code of the (\w+-\w+) is \S+$", text)[1]


def test_there_is_one_needle_and_its_value_is_the_answer(made):
    config, data = made
    for examples in (data.train(), data.val()):
        for text, answer, _ in texts(config, data, examples):
            assert re.fullmatch(VALUES[config.value], answer)
            assert text.endswith(answer)
            assert text.count(key_of(text)) == 2
            assert text.count(answer) == 2
            assert f"The code of the {key_of(text)} is {answer}. " in text
            # Nothing else could be one: no other key, no other value.
            assert len(re.findall(VALUES[config.value], text)) == 2
            assert len(re.findall(r"The code of the", text)) == 2


def test_the_needle_is_at_its_depth_within_a_sentence(made):
    config, data = made
    names = iter(np.repeat(data.slices, config.num_val))
    for text, _, length in texts(config, data, data.val()):
        size, depth = map(int, re.fullmatch(r"len_(\d+)_depth_(\d+)", next(names)).groups())
        assert size == length
        before, after = re.split(r"The code of the \S+ is \S+\. ", text)
        before = before.partition("\n")[2].encode(errors="replace")
        after = after.partition("\nWhich")[0].encode(errors="replace")
        sentence = 60
        assert abs(len(before) - depth / 100 * len(before + after)) <= sentence
        if depth in (0, 100):
            assert len(before if depth == 0 else after) == 0


def test_examples_have_exactly_the_tokens_of_their_length(made):
    config, data = made
    sizes = [length for *_, length in texts(config, data, data.train())]
    assert sizes == [320] * 50 + [640] * 50
    assert data.train().groups == (50, 50)
    assert data.val().groups == (30, 30)


def test_no_key_value_or_document_is_in_both_splits(made):
    config, data = made
    seen = []
    for examples in (data.train(), data.val()):
        found = list(texts(config, data, examples))
        seen.append(
            (
                {key_of(text) for text, *_ in found},
                {answer for _, answer, _ in found},
                {each for text, *_ in found for each in re.findall(r"Document \d+", text)},
            )
        )
    for train, val in zip(*seen, strict=True):
        assert not train & val
    words = [{word for key in keys for word in key.split("-")} for keys, *_ in seen]
    # The words themselves are in both.
    assert len(words[0] & words[1]) > 10


def test_an_example_depends_on_seed_split_and_number_alone(made, files):
    config, data = made
    whole = data.train().batch(np.arange(10))["tokens"]
    assert whole[[7, 2]].equal(data.train().batch(np.array([7, 2]))["tokens"])
    again = Needle(config).train().batch(np.arange(10))["tokens"]
    assert whole.equal(again)
    other = make(files, filler=config.filler, value=config.value, seed=1)
    assert not whole.equal(Needle(other).train().batch(np.arange(10))["tokens"])


def test_the_whole_text_is_learned_if_wanted_but_never_validated_on(files):
    data = Needle(make(files, loss="all"))
    batch = data.train().batch(np.arange(2))
    assert batch["labels"][:, :-1].equal(batch["tokens"][:, 1:])
    assert (data.val().batch(np.arange(2))["labels"] != IGNORED).sum() == 14


def test_any_tokenizer_keeps_the_budget(files, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=["<end>"], show_progress=False
    )
    made.train_from_iterator(["The code of the brisk-lantern is 4071583. "] * 9, trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    path = str(tmp_path / "tokenizer.json")
    config = make(files, tokenizer=path, lengths=(300,), val_lengths=(), filler="text")
    data = Needle(config)
    assert data.vocab_size == config.vocab_size == made.get_vocab_size()
    for text, answer, length in texts(config, data, data.val()):
        assert length == 300
        assert text.count(answer) == 2


def test_a_stretch_ends_with_a_sentence_and_knows_the_places_between():
    stack = Haystack([np.array([1, 1, 1]), np.array([2, 2]), np.array([3, 3, 3, 3])])
    tokens, places = stack.stretch(5, 0.0)
    assert (tokens.tolist(), places.tolist()) == ([1, 1, 1, 2, 2], [0, 3, 5])
    tokens, places = stack.stretch(5, 0.99)
    assert (tokens.tolist(), places.tolist()) == ([2, 3, 3, 3, 3], [0, 1, 5])


def test_prose_is_sentences_and_the_library_has_some():
    assert sentences([b"This is a  first sentence.\nIs that a second one? No."]) == [
        "This is a first sentence.",
        "Is that a second one?",
    ]
    train, val = prose("stdlib", "text", 0.5, 20_000)
    assert len(train) > 20
    assert len(val) > 20
    assert not any(">>>" in each or "  " in each for each in train + val)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": ()}, r"data\.lengths=\[\] must be one or several different numbers"),
        ({"depths": (50, 0)}, r"data\.depths=\[50, 0\] must be one or several"),
        ({"val_lengths": (4096,)}, r"data\.seq_len=1024 is less than the 4096 tokens"),
        ({"depths": (101,)}, r"depths must be >= 0 and <= 100, got 101"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(files, options, message):
    with pytest.raises(ConfigError, match=message):
        make(files, **options)


def test_too_short_a_length_or_a_text_is_refused(files, tmp_path):
    with pytest.raises(DataError, match=r"data\.lengths: 100 tokens have no room for a needle"):
        Needle(make(files, lengths=(100,)))
    with pytest.raises(DataError, match=r"has \d+ tokens of prose to validate on, less than"):
        Needle(make(files, filler="text", max_bytes=4000))
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(DataError, match=r"holds no text\. Give files of prose"):
        Needle(make(str(tmp_path / "empty.txt"), filler="text"))
