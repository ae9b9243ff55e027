"""What is expected of an experiment's runs: published figures, each with a band.

    expect:
      - metric: val/accuracy
        where: {arm: d128, write: deltanet}
        published: 0.963
        band: [0.93, 1.0]
        source: arXiv:2508.19029

It is no part of any run's configuration. `statelab eval experiment=NAME` judges by it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from statelab.errors import ConfigError, StatelabError, near_miss
from statelab.experiment import find_experiment
from statelab.loading import load_config
from statelab.values import as_arguments, flatten

__all__ = ["Expectation", "expectations"]

_PARTS = ("metric", "where", "minus", "published", "band", "source", "direction")
_REQUIRED = ("metric", "band", "source")
_METRIC = re.compile(r"[\w .:-]+(/[\w .:-]+)+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """One figure.

    Attributes:
        metric: The metric's name.
        where: Which runs: keys of the configuration with their values as text.
        minus: Other values of such keys; then the figure is the metric of the runs of `where` less
            that of the runs with these, which gives an order. Empty: the metric itself.
        published: The figure in the source; None if it has none, or only says which is greater.
        low: The least that is taken for the same.
        high: The greatest.
        source: Where the figure or the band is from.
        direction: Which value is best; None knows accuracy, exact, loss, ppl and bpb.
    """

    metric: str
    where: Mapping[str, str]
    minus: Mapping[str, str]
    published: float | None
    low: float
    high: float
    source: str
    direction: Literal["minimize", "maximize"] | None

    def holds(self, value: float) -> bool:
        """Whether a value lies in the band."""
        return self.low <= value <= self.high


def expectations(experiment: str) -> tuple[Expectation, ...]:
    """What an experiment's file expects; nothing, if it says nothing.

    A published figure may lie outside of its band: where a source is known to be hard to repeat,
    the band is what others found.

    Args:
        experiment: Its name, or the path of its file.

    Raises:
        UnknownNameError: If there is no such experiment.
        ConfigError: If an entry can't be read, or its keys make no configuration.
    """
    entries = find_experiment(experiment).expect or []
    if not isinstance(entries, list):
        raise ConfigError(f"experiment {experiment!r}: expect must be a list, got {entries!r}.")
    return tuple(_read(experiment, place, each) for place, each in enumerate(entries, 1))


def _read(experiment: str, place: int, entry: Any) -> Expectation:
    def wrong(message: str) -> ConfigError:
        return ConfigError(f"experiment {experiment!r}, expectation {place}: {message}")

    if not isinstance(entry, dict):
        raise wrong(f"it must be a mapping, got {entry!r}.")
    for part in entry:
        if part not in _PARTS:
            known = ", ".join(_PARTS)
            raise wrong(f"unknown part {part!r}.{near_miss(str(part), _PARTS)} There are: {known}.")
    for part in _REQUIRED:
        if part not in entry:
            raise wrong(f"{part} is lacking. Each has {', '.join(_REQUIRED)}.")
    metric, band, published = entry["metric"], entry["band"], entry.get("published")
    if not (isinstance(metric, str) and _METRIC.fullmatch(metric)):
        raise wrong(f"metric must be a name such as val/accuracy, got {metric!r}.")
    if not (isinstance(band, list) and len(band) == 2 and all(map(_is_number, band))):
        raise wrong(f"band must be [LEAST, GREATEST], got {band!r}.")
    if band[0] > band[1]:
        raise wrong(f"band={band} is empty: its least is greater than its greatest.")
    if not (published is None or _is_number(published)):
        raise wrong(f"published must be a number, got {published!r}.")
    if not (isinstance(entry["source"], str) and entry["source"].strip()):
        raise wrong(f"source must say where the figure is from, got {entry['source']!r}.")
    if entry.get("direction") not in (None, "minimize", "maximize"):
        raise wrong(f"direction must be minimize or maximize, got {entry['direction']!r}.")
    keys: dict[str, dict[str, str]] = {}
    for part in ("where", "minus"):
        given = entry.get(part) or {}
        if not isinstance(given, dict):
            raise wrong(f"{part} must map keys to values, got {given!r}.")
        keys[part] = {key: _text(value) for key, value in flatten(given).items()}
    for overrides in (keys["where"], keys["where"] | keys["minus"]):
        try:
            load_config(experiment, as_arguments(overrides))
        except StatelabError as error:
            raise wrong(str(error)) from error
    return Expectation(
        metric=metric,
        where=keys["where"],
        minus=keys["minus"],
        published=published,
        low=band[0],
        high=band[1],
        source=entry["source"],
        direction=entry.get("direction"),
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _text(value: Any) -> str:
    """A value as it is typed on the command line."""
    return value if isinstance(value, str) else json.dumps(value)
