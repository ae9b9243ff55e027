"""The cells of a grid: every combination of the values that are given for several keys."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable

from statelab.catalogue import all_keys
from statelab.config import Config
from statelab.errors import ConfigError, RuleError
from statelab.experiment import find_experiment
from statelab.loading import load_config
from statelab.values import spell_out

__all__ = ["cells_of", "split_axes"]

log = logging.getLogger(__name__)

_OPENING, _CLOSING = "[({", "])}"


def split_axes(arguments: Iterable[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The arguments of the base, and the keys that have several values.

    `model.head_dim=16,32` has two. A list is one value: `optim.betas=0.9,0.95` is one pair, and
    `data.num_pairs=[4],[4,8]` two lists. `arm=all` stands for all arms of the experiment.

    Raises:
        ConfigError: If a value is empty or given twice, or if no key has several.
    """
    lists = _list_keys()
    base: list[str] = []
    axes: dict[str, list[str]] = {}
    for each in arguments:
        key, _, text = each.partition("=")
        values = _split(text)
        is_one = spell_out(key) in lists and not text.startswith("[")
        if len(values) < 2 or is_one or key.startswith("tags."):
            base.append(each)
            continue
        if "" in values or len(set(values)) < len(values):
            raise ConfigError(f"{each}: a grid takes each value once, and none that is empty.")
        axes[key] = values
    if "arm=all" in base:
        base.remove("arm=all")
        axes["arm"] = _arms(base)
    if not axes:
        raise ConfigError(
            "a grid needs a key with several values, such as seed=0,1,2 or write=gla,deltanet."
        )
    return base, axes


def cells_of(base: list[str], axes: dict[str, list[str]]) -> list[tuple[dict[str, str], Config]]:
    """Every combination of the axes that can be built, with its configuration.

    Pairs of rules that have no meaning are left out.

    Raises:
        ConfigError: If a value can't be used.
        RuleError: If no cell is left.
    """
    cells: list[tuple[dict[str, str], Config]] = []
    refused = None
    for values in itertools.product(*axes.values()):
        cell = dict(zip(axes, values, strict=True))
        try:
            config = load_config(None, [*base, *(f"{key}={value}" for key, value in cell.items())])
            cells.append((cell, config))
        except RuleError as error:
            refused = error
            log.warning("left out %s: %s", " ".join(f"{k}={v}" for k, v in cell.items()), error)
    if refused is not None and not cells:
        raise refused
    return cells


def _split(text: str) -> list[str]:
    """The parts between commas that stand in no bracket."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in _OPENING) - (sign in _CLOSING)
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [each.strip() for each in parts]


def _list_keys() -> set[str]:
    keys = (key for section in all_keys().values() for key in section)
    return {spell_out(key["name"]) for key in keys if key["type"].startswith("[")}


def _arms(base: list[str]) -> list[str]:
    given = dict(each.partition("=")[::2] for each in base)
    if "experiment" not in given:
        raise ConfigError("arm=all needs an experiment: experiment=NAME.")
    arms = list(find_experiment(given["experiment"]).arms)
    if len(arms) < 2:
        raise ConfigError(f"experiment={given['experiment']} has no several arms to run.")
    return arms
