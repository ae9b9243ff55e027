"""Values on their way to a configuration: by dotted key, from files and from the command line."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from statelab.config import DataConfig
from statelab.errors import ConfigError
from statelab.registries import data_modules, read_rules, write_rules
from statelab.registry import Registry

__all__ = [
    "BLOCKS",
    "Text",
    "Values",
    "as_arguments",
    "flatten",
    "parse_overrides",
    "plugin_names",
    "spell_out",
]

log = logging.getLogger("statelab")

#: The sections that a plugin's own options belong to.
BLOCKS: dict[str, Registry[Any]] = {
    "model.write": write_rules,
    "model.read": read_rules,
    "data": data_modules,
}


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones, with the short forms of the rules' blocks spelled out."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{key}.")
        else:
            flat[spell_out(key)] = value
    return {spell_out(key): value for key, value in flat.items()}


def parse_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """`key=value` arguments by key, the values still text.

    Raises:
        ConfigError: If one is no key=value.
    """
    given: dict[str, Any] = {}
    for each in overrides:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise ConfigError(f"{each!r} is no key=value. Write, for example, optim.lr=1e-3.")
        given[spell_out(key.strip())] = Text(value)
    return given


class Text(str):
    """A value from the command line: what it means depends on its key's type."""

    __slots__ = ()


class Values:
    """Values by dotted key, with where each came from; a later one wins."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}

    @property
    def names(self) -> set[tuple[str, str]]:
        """The rules and the data module that are named so far."""
        return plugin_names(self.values)

    def set(self, key: str, value: Any, origin: str) -> None:
        """Set one value."""
        self.values[key] = value
        self.origins[key] = origin

    def update(self, flat: Mapping[str, Any], origin: str) -> None:
        """Set many; another rule or data module drops what was set for the one before."""
        for block, registry in BLOCKS.items():
            old, new = self.values.get(f"{block}.name"), flat.get(f"{block}.name")
            if old is not None and new is not None and str(new) != str(old):
                self._drop_options(block, registry, str(old), str(new))
        for key, value in flat.items():
            self.set(key, value, origin)

    def _drop_options(self, block: str, registry: Registry[Any], old: str, new: str) -> None:
        common = (
            {each.name for each in dataclasses.fields(DataConfig)} if block == "data" else set()
        )
        stale = [
            key
            for key in self.values
            if key.startswith(f"{block}.")
            and key.removeprefix(f"{block}.") not in common | {"name"}
        ]
        for key in stale:
            del self.values[key], self.origins[key]
        if stale:
            log.info("%s=%s: dropped what was set for %s: %s", block, new, old, ", ".join(stale))


def plugin_names(flat: Mapping[str, Any]) -> set[tuple[str, str]]:
    """The (block, name) pairs of the rules and the data module that are named."""
    return {(each, str(flat[f"{each}.name"])) for each in BLOCKS if flat.get(f"{each}.name")}


def spell_out(key: str) -> str:
    """A dotted key without the short forms: `write.x` is `model.write.x`."""
    head, dot, rest = key.partition(".")
    if head in ("write", "read"):
        return f"model.{head}.{rest if dot else 'name'}"
    return f"{key}.name" if key in ("model.write", "model.read") else key


def as_arguments(flat: Mapping[str, Any]) -> list[str]:
    """Values by dotted key as they are typed, with the short forms: `write=gla write.x=1`."""
    return [f"{_shorten(key)}={value}" for key, value in flat.items()]


def _shorten(key: str) -> str:
    if key.startswith(("model.write.", "model.read.")):
        return key.removeprefix("model.").removesuffix(".name")
    return key
