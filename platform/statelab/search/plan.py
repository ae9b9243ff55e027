"""From the arguments of a command to the plan of its study."""

from __future__ import annotations

from collections.abc import Iterable

from statelab.errors import ConfigError, UnknownNameError
from statelab.loading import load_config, load_section
from statelab.search.config import SearchConfig
from statelab.search.grid import cells_of, split_axes
from statelab.search.space import Space, read_space
from statelab.search.study import Plan

__all__ = ["plan_grid", "plan_search"]

_TOP = ("n_trials", "workers")


def plan_search(arguments: Iterable[str]) -> Plan:
    """What `statelab search` is asked for.

    Raises:
        StatelabError: One line on the first argument that can't be used.
    """
    own, base = _split(arguments)
    config = load_config(None, base)
    reference = load_section(SearchConfig, own, prefix="search.").space
    try:
        space = read_space(reference or config.experiment)
    except UnknownNameError as error:
        if reference is not None:
            raise
        raise ConfigError(
            f"experiment {config.experiment!r} has no search.yaml of its own: say search=NAME. "
            f"{error}"
        ) from error
    defaults = {f"search.{key}": each for key, each in space.search.items()}
    search = load_section(SearchConfig, own, prefix="search.", defaults=defaults)
    return Plan(
        study=search.study or f"{config.experiment}-{space.name}",
        space=space,
        search=search,
        base=tuple(base),
        config=config,
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
    # What the axes leave to the base is shared by all cells; the first one stands for it.
    config = load_config(None, [*base, *(f"{key}={each}" for key, each in cells[0].items())])
    search = load_section(SearchConfig, own, prefix="search.", defaults={"search.pruner": "none"})
    return Plan(
        study=search.study or f"{config.experiment}-grid",
        space=Space(name="grid", parameters=(), values={}, search={}),
        search=search,
        base=tuple(base),
        config=config,
        cells=cells,
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
