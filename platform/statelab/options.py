"""Options: dataclass fields that carry their own doc line and range.

A section of the configuration, and a rule's or data module's own block, is a frozen dataclass.
`option` gives a field the line and range that `statelab keys` prints; `Section` checks the ranges
when it is built, from a file, the command line or Python alike.

    @dataclass(frozen=True, kw_only=True, slots=True)
    class LeakyConfig(Section):
        half_life: float = option(64.0, "tokens until a write has faded to one half", above=0)
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from dataclasses import MISSING, dataclass, field
from typing import Any

from statelab.errors import ConfigError

__all__ = ["Key", "RangeError", "Section", "keys_of", "option", "type_name"]


def option(
    default: Any = MISSING,
    doc: str = "",
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    factory: Any = MISSING,
    smoke: Any = MISSING,
) -> Any:
    """A dataclass field with a doc line and a range; without a default it is required.

    Args:
        default: The field's value where none is given.
        doc: One line with the unit.
        above: The value must be greater.
        at_least: The value must be this or greater.
        below: The value must be less.
        at_most: The value must be this or less.
        factory: Makes the default, where it is mutable.
        smoke: What `smoke=true` makes of a plugin's option; without it, it stays as it is.
    """
    bounds = {">": above, ">=": at_least, "<": below, "<=": at_most}
    metadata = {"doc": doc, "bounds": {k: v for k, v in bounds.items() if v is not None}}
    if smoke is not MISSING:
        metadata["smoke"] = smoke
    return field(default=default, default_factory=factory, metadata=metadata)


class RangeError(ConfigError):
    """An option outside its range; the message begins with the field's bare name."""


class Section:
    """A dataclass that checks the ranges of its options; `None` is never out of range.

    Raises:
        RangeError: If a value lies outside its range.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):  # type: ignore[arg-type]
            value, bounds = getattr(self, each.name), each.metadata.get("bounds", {})
            for number in value if isinstance(value, (tuple, list)) else (value,):
                if number is None or not bounds:
                    continue
                if not all(_HOLDS[sign](number, bound) for sign, bound in bounds.items()):
                    raise RangeError(f"{each.name} must be {_range(bounds)}, got {number!r}.")
                if number == math.inf:
                    raise RangeError(f"{each.name} must be finite, got {number!r}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One line of `statelab keys`."""

    name: str
    type: str
    default: str
    range: str
    doc: str


def keys_of(section: type, prefix: str = "") -> list[Key]:
    """The keys of a dataclass and of the sections inside it, in their order.

    Args:
        section: The dataclass.
        prefix: What stands before each name, with its dot: `optim.`.
    """
    keys: list[Key] = []
    hints = typing.get_type_hints(section)
    for each in dataclasses.fields(section):
        hint = hints[each.name]
        if isinstance(hint, type) and issubclass(hint, Section):
            keys += keys_of(hint, f"{prefix}{each.name}.")
            continue
        if each.default_factory is not MISSING:
            default: object = each.default_factory()
        else:
            default = each.default
        keys.append(
            Key(
                name=prefix + each.name,
                type=type_name(hint),
                default="required" if default is MISSING else _plain(default),
                range=_range(each.metadata.get("bounds", {})),
                doc=each.metadata.get("doc", ""),
            )
        )
    return keys


def type_name(hint: Any) -> str:
    """A type as a user would say it: `int`, `cosine | wsd`, `int | null`."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return " | ".join(str(each) for each in typing.get_args(hint))
    if origin in (typing.Union, types.UnionType):
        return " | ".join(type_name(each) for each in typing.get_args(hint))
    if origin in (tuple, list):
        parts = [each for each in typing.get_args(hint) if each is not Ellipsis]
        return f"[{', '.join(type_name(each) for each in parts)}]"
    if origin is dict:
        return "{key: value}"
    return "null" if hint is type(None) else getattr(hint, "__name__", str(hint))


_HOLDS = {
    ">": lambda value, bound: value > bound,
    ">=": lambda value, bound: value >= bound,
    "<": lambda value, bound: value < bound,
    "<=": lambda value, bound: value <= bound,
}


def _range(bounds: dict[str, float]) -> str:
    return " and ".join(f"{sign} {bound}" for sign, bound in bounds.items())


def _plain(default: object) -> str:
    if default is None:
        return "null"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, (tuple, list)):
        return "[" + ", ".join(str(each) for each in default) + "]"
    return str(default)
