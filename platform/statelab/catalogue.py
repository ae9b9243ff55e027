"""Every key there is, section by section, with those of all registered rules and data modules."""

from __future__ import annotations

import dataclasses

from statelab.config import Config, DataConfig
from statelab.options import keys_of
from statelab.registries import data_modules, read_rules, write_rules
from statelab.search.config import SearchConfig

__all__ = ["all_keys"]


def all_keys() -> dict[str, list[dict[str, str]]]:
    """The keys by section, each with its name, type, default, range and doc line."""
    sections = {"common": keys_of(Config), "search": keys_of(SearchConfig, "search.")}
    common = {each.name for each in dataclasses.fields(DataConfig)}
    for registry, block in (
        (write_rules, "model.write"),
        (read_rules, "model.read"),
        (data_modules, "data"),
    ):
        for name in registry.names():
            own = keys_of(registry.get(name).config, f"{block}.")
            skip = {f"data.{each}" for each in common}
            sections[f"{block}.name={name}"] = [key for key in own if key.name not in skip]
    return {
        section: [dataclasses.asdict(key) for key in found]
        for section, found in sections.items()
        if found
    }
