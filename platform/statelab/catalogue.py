"""Every key there is, section by section, with those of all registered plugins."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from statelab.config import Config, DataConfig
from statelab.errors import ConfigError
from statelab.options import keys_of
from statelab.registries import data_modules, eval_tasks, read_rules, write_rules
from statelab.registry import Registry
from statelab.search.config import SearchConfig
from statelab.values import parse_overrides

__all__ = ["all_keys", "keys_of_plugins", "keys_of_tasks"]

Sections = dict[str, list[dict[str, str]]]

#: Registries by the key that names a plugin, each with what stands before the plugin's own keys.
_PLUGINS: dict[str, tuple[Registry[Any], str]] = {
    "model.write.name": (write_rules, "model.write."),
    "model.read.name": (read_rules, "model.read."),
    "data.name": (data_modules, "data."),
    "task": (eval_tasks, ""),
}


def all_keys() -> Sections:
    """The keys by section, each with its name, type, default, range and doc line."""
    sections = {
        "common": [dataclasses.asdict(key) for key in keys_of(Config)],
        "search": [dataclasses.asdict(key) for key in keys_of(SearchConfig, "search.")],
    }
    for key in (each for each in _PLUGINS if each != "task"):
        sections |= _sections_of(key)
    return sections


def keys_of_tasks() -> Sections:
    """The options of all evaluation tasks that have some."""
    return _sections_of("task")


def keys_of_plugins(named: Iterable[str]) -> Sections:
    """The options of the plugins that are named as on the command line: `task=length`.

    Raises:
        ConfigError: If an argument names no plugin.
        UnknownNameError: If there is no plugin of that name.
    """
    sections: Sections = {}
    for key, name in parse_overrides(named).items():
        if key not in _PLUGINS:
            raise ConfigError(
                f"keys takes write=, read=, data.name= or task= with a name, got {key}={name}."
            )
        sections[f"{key}={name}"] = _own_keys(key, str(name))
    return sections


def _sections_of(key: str) -> Sections:
    sections = {f"{key}={name}": _own_keys(key, name) for name in _PLUGINS[key][0].names()}
    return {section: keys for section, keys in sections.items() if keys}


def _own_keys(key: str, name: str) -> list[dict[str, str]]:
    registry, prefix = _PLUGINS[key]
    common = {f"data.{each.name}" for each in dataclasses.fields(DataConfig)}
    own = keys_of(registry.get(name).config, prefix)
    return [dataclasses.asdict(each) for each in own if each.name not in common]
