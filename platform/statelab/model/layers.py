"""The list of layers: `[memory x 3, attention(window=512)] x 6`.

memory                      a mixer with the model's write and read rule
attention(window=512)       softmax attention, over the last 512 tokens
conv(width=3)               a short convolution alone
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from statelab.errors import ConfigError, near_miss

if TYPE_CHECKING:
    from statelab.config import ModelConfig

__all__ = ["Layer", "chosen", "layer_list", "parse_layers"]

_OPTIONS = {"memory": (), "attention": ("window",), "conv": ("width",)}


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: its kind, and the kind's one option if it was given.

    Attributes:
        kind: memory, attention or conv.
        size: Tokens: attention's window, or the convolution's width; None is the default.
    """

    kind: str
    size: int | None = None


def layer_list(model: ModelConfig) -> list[Layer]:
    """The layers of a model, from first to last.

    A pattern that is shorter than `model.num_layers` is repeated; without a pattern all are
    memories, 4 if nobody says how many.

    Raises:
        ConfigError: If the pattern can't be read, or its length doesn't divide the number of
            layers.
    """
    pattern = parse_layers(model.layers or "memory")
    total = model.num_layers or (4 if model.layers is None else len(pattern))
    if total % len(pattern):
        raise ConfigError(
            f"model.num_layers={total} is no multiple of the {len(pattern)} layers of "
            f"model.layers={model.layers!r}; leave model.num_layers out."
        )
    return pattern * (total // len(pattern))


def chosen(layers: Sequence[int], most: int) -> list[int]:
    """At most so many of the layers, from first to last at even distances."""
    if len(layers) <= most:
        return list(layers)
    return [layers[round(i * (len(layers) - 1) / (most - 1))] for i in range(most)]


def parse_layers(text: str) -> list[Layer]:
    """Read a pattern of layers.

    Raises:
        ConfigError: If it can't be read; says what was expected.
    """
    parser = _Parser(text)
    try:
        layers = parser.items(closing=None)
    except RecursionError as error:
        raise parser.error("it has too many brackets") from error
    if not layers:
        raise parser.error("it names no layer")
    return layers


class _Parser:
    """Recursive descent over: items = item ("," item)*; item = (kind | "[" items "]") ["x" n]."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = re.findall(r"\w+(?:\([^)]*\))?|[\[\],]|\S", text)

    def error(self, what: str) -> ConfigError:
        return ConfigError(
            f"model.layers={self.text!r}: {what}. Write it as "
            '"[memory x 3, attention(window=512)] x 6".'
        )

    def items(self, closing: str | None) -> list[Layer]:
        layers: list[Layer] = []
        while self.tokens and self.tokens[0] != closing:
            layers += self._item()
            if self.tokens and self.tokens[0] == ",":
                self.tokens.pop(0)
            elif self.tokens and self.tokens[0] != closing:
                raise self.error(f"unexpected {self.tokens[0]!r}")
        if closing is not None:
            if not self.tokens:
                raise self.error(f"{closing!r} is missing")
            self.tokens.pop(0)
        return layers

    def _item(self) -> list[Layer]:
        token = self.tokens.pop(0)
        layers = self.items("]") if token == "[" else [self._layer(token)]
        if self.tokens and self.tokens[0] == "x":
            self.tokens.pop(0)
            times = self.tokens.pop(0) if self.tokens else ""
            if not times.isdigit() or int(times) < 1:
                raise self.error(f"after x stands a number of at least 1, got {times!r}")
            return layers * int(times)
        return layers

    def _layer(self, token: str) -> Layer:
        kind, _, rest = token.partition("(")
        if kind not in _OPTIONS:
            raise self.error(
                f"unknown layer {kind!r}.{near_miss(kind, _OPTIONS)} "
                f"There are: {', '.join(_OPTIONS)}"
            )
        argument = rest.removesuffix(")").replace(" ", "")
        if not argument:
            return Layer(kind)
        name, _, size = argument.partition("=")
        if name not in _OPTIONS[kind] or not size.isdigit() or int(size) < 1:
            takes = " or ".join(f"{each}=N" for each in _OPTIONS[kind]) or "nothing"
            raise self.error(f"{kind}() takes {takes}, got {argument!r}")
        return Layer(kind, int(size))
