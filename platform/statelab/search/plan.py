"""From the arguments of a command to the plan of its study."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from statelab.config import Config
from statelab.errors import ConfigError, StatelabError, UnknownKeyError, UnknownNameError
from statelab.loading import load_config, load_section, to_dict
from statelab.runs.resume import FREE
from statelab.search.config import SearchConfig
from statelab.search.grid import cells_of, split_axes
from statelab.search.space import Space, read_space
from statelab.search.study import Plan, as_overrides
from statelab.values import flatten, parse_overrides

__all__ = ["plan_grid", "plan_search"]

_TOP = ("n_trials", "workers")
#: Keys with which trials compare, whatever their values.
_FREE = {*FREE} - {
    f"trainer.{each}" for each in ("max_steps", "max_tokens", "val_every", "val_batches")
}


def plan_search(arguments: Iterable[str]) -> Plan:
    """What `statelab search` is asked for.

    Raises:
        StatelabError: One line on the first argument that can't be used.
    """
    own, base = _split(arguments)
    experiment = load_config(None, base).experiment
    reference = parse_overrides(own).get("search.space")
    try:
        space = read_space(reference or experiment)
    except UnknownNameError as error:
        if reference is not None:
            raise
        raise ConfigError(
            f"experiment {experiment!r} has no search.yaml of its own: say search=NAME. {error}"
        ) from error
    _refuse_varied(space, base)
    base = [*as_overrides(space.values), *base]
    config = load_config(None, base)
    _check_names(space, base)
    defaults = {f"search.{key}": each for key, each in space.search.items()}
    search = load_section(SearchConfig, own, prefix="search.", defaults=defaults)
    return Plan(
        study=search.study or f"{experiment}-{space.name}",
        space=space,
        search=search,
        base=tuple(base),
        config=config,
        shared=_shared([config]),
    )


def plan_grid(arguments: Iterable[str]) -> Plan:
    """What `statelab grid` is asked for.

    Raises:
        StatelabError: One line on the first argument that can't be used.
    """
    own, rest = _split(arguments)
    for key in ("space", "n_trials", "sampler", "pruner"):
        if any(each.startswith(f"search.{key}=") for each in own):
            raise ConfigError(f"a grid has no search.{key}: it runs every cell once.")
    base, axes = split_axes(rest)
    cells = cells_of(base, axes)
    config = cells[0][1]
    search = load_section(SearchConfig, own, prefix="search.", defaults={"search.pruner": "none"})
    return Plan(
        study=search.study or f"{config.experiment}-grid",
        space=Space(name="grid", parameters=(), values={}, search={}),
        search=search,
        base=tuple(base),
        config=config,
        shared=_shared([each for _, each in cells]),
        cells=tuple(cell for cell, _ in cells),
    )


def _split(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """The search's own keys, spelled out, and the arguments of the base."""
    own: list[str] = []
    base: list[str] = []
    for each in arguments:
        key = each.partition("=")[0]
        if key == "search":
            own.append(each.replace("search", "search.space", 1))
        elif key in _TOP:
            own.append(f"search.{each}")
        else:
            (own if key.startswith("search.") else base).append(each)
    return own, base


def _refuse_varied(space: Space, base: list[str]) -> None:
    given = parse_overrides(base)
    for key in (each.key for each in space.parameters if each.key in given):
        raise ConfigError(
            f"{key}={given[key]}, but space {space.name!r} varies it. Leave it out, or take a "
            "space without it."
        )


def _check_names(space: Space, base: list[str]) -> None:
    """Refuse a space with keys, rules or arms that nobody knows: all its trials would fail."""
    for example in space.examples():
        try:
            load_config(None, [*base, *as_overrides(example)])
        except (UnknownKeyError, UnknownNameError) as error:
            raise ConfigError(f"space {space.name!r}: {error}") from error
        except StatelabError:
            # A point that can't be built is a trial that fails.
            continue


def _shared(configs: Sequence[Config]) -> dict[str, Any]:
    """What all trials begin with, by key, as far as it makes them comparable."""
    first, *others = (flatten(to_dict(each)) for each in configs)
    return {
        key: value
        for key, value in first.items()
        if key not in _FREE
        and not key.startswith(("tags.", "tracking."))
        and all(key in other and other[key] == value for other in others)
    }
