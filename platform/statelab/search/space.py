"""What a search varies: `search.yaml`, with parameters over any key of the configuration.

    parameters:
      optim.lr: {low: 1.0e-4, high: 1.0e-1, log: true}
      model.head_dim: {low: 16, high: 64, step: 16}
      write: [gla, s4d]
      write.num_modes: {choices: [16, 32, 64], when: {write: s4d}}
    constraints: [state_bytes <= 65536]
    enqueue: [{optim.lr: 1.0e-3}]
    values: {trainer.max_steps: 200}
    search: {pruner: none}

A parameter is a list of choices, or a range: of integers if `low` and `high` are, of floats else.
`when` gives it only to trials whose earlier values, or the experiment's, are among those named.
`constraints` skip sizes without training them; `enqueue` names points to begin with; `values` are
set in every trial; `search` sets other defaults of the search's own keys.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from statelab.errors import ConfigError, near_miss
from statelab.experiment import find_space
from statelab.values import flatten, spell_out

if TYPE_CHECKING:
    from optuna import Trial

__all__ = ["Choices", "Constraint", "Parameter", "Range", "Space", "parse_space", "read_space"]

_PARTS = ("parameters", "constraints", "enqueue", "values", "search")
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}

Value = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """One of several values."""

    values: tuple[Value, ...]

    def suggest(self, trial: Trial, key: str) -> Value:
        """The trial's choice."""
        chosen: Value = trial.suggest_categorical(key, self.values)
        return chosen


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """A number from `low` to `high`, both included."""

    low: float
    high: float
    step: float | None = None
    log: bool = False

    def suggest(self, trial: Trial, key: str) -> Value:
        """The trial's number."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            step = 1 if self.step is None else int(self.step)
            return trial.suggest_int(key, self.low, self.high, step=step, log=self.log)
        return trial.suggest_float(key, self.low, self.high, step=self.step, log=self.log)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """A key that is varied, and for which trials.

    Attributes:
        key: Of the configuration.
        domain: What it may be.
        when: Other keys, each with the values for which this one is varied.
    """

    key: str
    domain: Choices | Range
    when: Mapping[str, tuple[str, ...]]

    def applies(self, values: Mapping[str, Any]) -> bool:
        """Whether a trial with these values has this parameter."""
        return all(str(values.get(key)) in wanted for key, wanted in self.when.items())


@dataclass(frozen=True, kw_only=True, slots=True)
class Constraint:
    """`name <= bound` on a size that `statelab describe` prints, or on a configuration's key."""

    name: str
    sign: str
    bound: float

    def __str__(self) -> str:
        return f"{self.name} {self.sign} {self.bound:g}"

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether a trial with these sizes and keys is to be trained.

        Raises:
            ConfigError: If there is no number of that name.
        """
        number = values.get(self.name)
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise ConfigError(
                f"constraint {self}: {self.name} is no number of this configuration."
                f"{near_miss(self.name, values)}"
            )
        return _SIGNS[self.sign](number, self.bound)


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """All of a `search.yaml`.

    Attributes:
        name: For the study.
        parameters: In the order in which they are drawn.
        constraints: What a size must keep to.
        enqueue: Points to begin with, by key.
        values: Keys set in every trial.
        search: Defaults of the search's own keys, flat.
    """

    name: str
    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...] = ()
    enqueue: tuple[Mapping[str, Value], ...] = ()
    values: Mapping[str, Any]
    search: Mapping[str, Any]

    def suggest(self, trial: Trial, values: Mapping[str, Any]) -> dict[str, Value]:
        """What the trial sets, by key.

        Args:
            trial: Draws.
            values: The experiment's, by dotted key.
        """
        chosen: dict[str, Value] = {}
        for each in self.parameters:
            if each.applies({**values, **chosen}):
                chosen[each.key] = each.domain.suggest(trial, each.key)
        return chosen


def read_space(reference: str) -> Space:
    """The space of that name, or of that file.

    Raises:
        UnknownNameError: If there is none.
        ConfigError: If it can't be read; names the file and what was expected.
    """
    name, path = find_space(reference)
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} can't be read: {' '.join(str(error).split())}.") from error
    return parse_space(name, given, path)


def parse_space(name: str, given: Any, path: Path) -> Space:
    """What a space file says.

    Raises:
        ConfigError: On the first thing that isn't as it should be.
    """
    if not isinstance(given, dict) or not isinstance(given.get("parameters"), dict):
        raise ConfigError(f"{path} must hold a mapping with `parameters: {{KEY: VALUES}}`.")
    for part in given:
        if part not in _PARTS:
            raise ConfigError(
                f"{path}: unknown part {part!r}.{near_miss(str(part), _PARTS)} "
                f"There are: {', '.join(_PARTS)}."
            )
    points = given.get("enqueue") or []
    if not (isinstance(points, list) and all(isinstance(each, dict) for each in points)):
        raise ConfigError(f"{path}: enqueue must be a list of mappings, [{{KEY: VALUE}}].")
    parameters = tuple(_parameter(path, *each) for each in given["parameters"].items())
    keys = [each.key for each in parameters]
    enqueue = tuple({spell_out(k): v for k, v in each.items()} for each in points)
    for key in (key for point in enqueue for key in point if key not in keys):
        raise ConfigError(f"{path}: enqueue names {key}, which is no parameter.")
    return Space(
        name=name,
        parameters=parameters,
        constraints=tuple(_constraint(path, each) for each in given.get("constraints") or []),
        enqueue=enqueue,
        values=flatten(given.get("values") or {}),
        search=flatten(given.get("search") or {}),
    )


def _parameter(path: Path, key: Any, given: Any) -> Parameter:
    when: dict[str, tuple[str, ...]] = {}
    if isinstance(given, dict):
        given = dict(given)
        for other, wanted in (given.pop("when", None) or {}).items():
            each = wanted if isinstance(wanted, list) else [wanted]
            when[spell_out(str(other))] = tuple(map(str, each))
        if given.keys() == {"choices"}:
            given = given["choices"]
    domain = _choices(given) if isinstance(given, list) else _range(given)
    if domain is None:
        raise ConfigError(
            f"{path}: {key} must be a list of choices, {{choices: [...]}} or {{low: L, high: H}} "
            f"with step: S or log: true, got {given!r}."
        )
    return Parameter(key=spell_out(str(key)), domain=domain, when=when)


def _choices(given: list[Any]) -> Choices | None:
    plain = [each if isinstance(each, Value) else _as_text(each) for each in given]
    return Choices(values=tuple(plain)) if plain and len(set(plain)) == len(plain) else None


def _as_text(value: Any) -> str:
    """A list as the command line writes it; Optuna knows none."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).strip()


def _range(given: Any) -> Range | None:
    if not isinstance(given, dict) or not {"low", "high"} <= given.keys() <= {
        "low",
        "high",
        "step",
        "log",
    }:
        return None
    low, high, step = given["low"], given["high"], given.get("step")
    log = given.get("log", False)
    numbers = [low, high] if step is None else [low, high, step]
    if any(isinstance(each, bool) or not isinstance(each, (int, float)) for each in numbers):
        return None
    if not low < high or (log and (step is not None or low <= 0)) or (step or 1) <= 0:
        return None
    return Range(low=low, high=high, step=step, log=bool(log))


def _constraint(path: Path, text: Any) -> Constraint:
    parts = re.fullmatch(r"\s*([\w.]+)\s*(<=|>=|<|>)\s*(\S+)\s*", str(text))
    try:
        if parts is not None:
            name, sign, bound = parts.groups()
            return Constraint(name=spell_out(name), sign=sign, bound=float(bound))
    except ValueError:
        pass
    raise ConfigError(
        f"{path}: constraint {text!r} must be NAME <= NUMBER (or >=, <, >), "
        "such as state_bytes <= 65536."
    )
