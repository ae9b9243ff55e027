"""The list of layers: what a pattern means, and what is said of a wrong one."""

import re

import pytest

from statelab.errors import ConfigError
from statelab.loading import load_config
from statelab.model.layers import Layer, layer_list, parse_layers

M, A, C = Layer("memory"), Layer("attention"), Layer("conv")


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("memory", [M]),
        ("memory x 2", [M, M]),
        ("[memory, attention]", [M, A]),
        ("memory, conv, attention", [M, C, A]),
        ("[memory x 3, attention(window=512)] x 2", [M, M, M, Layer("attention", 512)] * 2),
        ("[conv(width=3), memory] x 1", [Layer("conv", 3), M]),
        ("[[memory x 2, conv] x 2, attention()] x 2", ([M, M, C] * 2 + [A]) * 2),
        ("attention( window = 8 )", [Layer("attention", 8)]),
        ("[memory,] x 2", [M, M]),
    ],
)
def test_a_pattern_lists_its_layers(text, layers):
    assert parse_layers(text) == layers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "it names no layer"),
        (" ", "it names no layer"),
        ("memroy", "unknown layer 'memroy'. Did you mean 'memory'? There are: memory, attention"),
        ("[memory", "']' is missing"),
        ("memory]", "unexpected ']'"),
        ("memory attention", "unexpected 'attention'"),
        ("memory x", "after x stands a number of at least 1, got ''"),
        ("memory x 0", "after x stands a number of at least 1, got '0'"),
        ("memory x two", "after x stands a number of at least 1, got 'two'"),
        ("attention(width=3)", "attention() takes window=N, got 'width=3'"),
        ("conv(window=3)", "conv() takes width=N, got 'window=3'"),
        ("conv(width=0)", "conv() takes width=N, got 'width=0'"),
        ("attention(512)", "attention() takes window=N, got '512'"),
        ("memory(size=1)", "memory() takes nothing, got 'size=1'"),
        ("attention(window=5", "unexpected '('"),
        ("memory;conv", "unexpected ';'"),
        ("memory,,conv", "unknown layer ','"),
        ("[" * 2000 + "memory" + "]" * 2000, "it has too many brackets"),
    ],
)
def test_a_wrong_pattern_says_what_was_expected(text, message):
    whole = re.escape(f"model.layers={text!r}: {message}") + ".*Write it as"
    with pytest.raises(ConfigError, match=whole):
        parse_layers(text)


def layers_of(*overrides):
    base = ["write=gla", "read=plain", "data.name=mqar"]
    return layer_list(load_config(None, [*base, *overrides]).model)


def test_without_a_pattern_there_are_four_memories_or_as_many_as_asked_for():
    assert layers_of() == [M] * 4
    assert layers_of("model.num_layers=3") == [M] * 3


def test_a_pattern_is_repeated_to_the_number_of_layers():
    assert layers_of("model.layers=[memory, attention]", "model.num_layers=4") == [M, A, M, A]
    assert layers_of("model.layers=[memory, attention] x 3") == [M, A] * 3
