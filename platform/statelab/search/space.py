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

A parameter is a list of choices, or a range: of integers if all its numbers are, of floats else.
`when` gives it only to trials whose earlier values, or the experiment's, are among those named.
`constraints` skip sizes without training them; `enqueue` names points to begin with; `values` are
set in every trial; `search` sets other defaults of the search's own keys.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from statelab.errors import ConfigError, near_miss
from statelab.experiment import find_space, read_yaml
from statelab.values import flatten, spell_out

if TYPE_CHECKING:
    from optuna import Trial

__all__ = ["Choices", "Constraint", "Parameter", "Range", "Space", "parse_space", "read_space"]

_PARTS = {"parameters": dict, "constraints": list, "enqueue": list, "values": dict, "search": dict}
_KINDS = {dict: "a mapping", list: "a list"}
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

    def __contains__(self, value: Value) -> bool:
        return value in self.values

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

    def __contains__(self, value: Value) -> bool:
        return isinstance(value, (int, float)) and self.low <= value <= self.high

    def suggest(self, trial: Trial, key: str) -> Value:
        """The trial's number."""
        low, high, step = self.low, self.high, 1 if self.step is None else self.step
        if isinstance(low, int) and isinstance(high, int) and isinstance(step, int):
            return trial.suggest_int(key, low, high, step=step, log=self.log)
        return trial.suggest_float(key, low, high, step=self.step, log=self.log)


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
        return f"{self.name} {self.sign} {self.bound:.15g}"

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
            values: What it is without that, by dotted key.
        """
        chosen: dict[str, Value] = {}
        for each in self.parameters:
            if each.applies({**values, **chosen}):
                chosen[each.key] = each.domain.suggest(trial, each.key)
        return chosen

    def examples(self) -> list[dict[str, Value]]:
        """For each parameter, what a trial sets that has it: one of each choice or bound."""
        return [
            {**self._condition(each), each.key: value}
            for each in self.parameters
            for value in (
                each.domain.values if isinstance(each.domain, Choices) else (each.domain.low,)
            )
        ]

    def _condition(self, parameter: Parameter) -> dict[str, Value]:
        """Values with which a parameter applies, and those that they need in turn."""
        values: dict[str, Value] = {}
        for key, wanted in parameter.when.items():
            for other in self.parameters:
                if other.key == key:
                    values |= self._condition(other)
            values[key] = wanted[0]
        return values


def read_space(reference: str) -> Space:
    """The space of that name, or of that file.

    Raises:
        UnknownNameError: If there is none.
        ConfigError: If it can't be read; names the file and what was expected.
    """
    name, path = find_space(reference)
    return parse_space(name, read_yaml(path), path)


def parse_space(name: str, given: Any, path: Path) -> Space:
    """What a space file says.

    Raises:
        ConfigError: On the first thing that isn't as it should be.
    """
    if not isinstance(given, dict) or not given.get("parameters"):
        raise ConfigError(f"{path} must hold a mapping with `parameters: {{KEY: VALUES}}`.")
    for part, value in given.items():
        if part not in _PARTS:
            raise ConfigError(
                f"{path}: unknown part {part!r}.{near_miss(str(part), _PARTS)} "
                f"There are: {', '.join(_PARTS)}."
            )
        if value is not None and not isinstance(value, _PARTS[part]):
            raise ConfigError(f"{path}: {part} must be {_KINDS[_PARTS[part]]}, got {value!r}.")
    parameters: dict[str, Parameter] = {}
    for key, each in given["parameters"].items():
        parameter = _parameter(path, str(key), each)
        if parameter.key in parameters:
            raise ConfigError(f"{path}: {key} is varied twice, as {parameter.key} too.")
        parameters[parameter.key] = parameter
    _check_order(path, parameters)
    return Space(
        name=name,
        parameters=tuple(parameters.values()),
        constraints=tuple(_constraint(path, each) for each in given.get("constraints") or []),
        enqueue=tuple(_point(path, each, parameters) for each in given.get("enqueue") or []),
        values=flatten(given.get("values") or {}),
        search=flatten(given.get("search") or {}),
    )


def _parameter(path: Path, key: str, given: Any) -> Parameter:
    when: dict[str, tuple[str, ...]] = {}
    domain = None
    if isinstance(given, dict):
        given = dict(given)
        condition = given.pop("when", {})
        if isinstance(condition, dict):
            for other, wanted in condition.items():
                each = wanted if isinstance(wanted, list) else [wanted]
                when[spell_out(str(other))] = tuple(map(str, each))
            domain = _choices(given["choices"]) if given.keys() == {"choices"} else _range(given)
    else:
        domain = _choices(given)
    if domain is None:
        raise ConfigError(
            f"{path}: {key} must be a list of choices, {{choices: [...]}} or {{low: L, high: H}} "
            f"with step: S or log: true, and perhaps when: {{KEY: VALUES}}; got {given!r}."
        )
    return Parameter(key=spell_out(key), domain=domain, when=when)


def _choices(given: Any) -> Choices | None:
    if not isinstance(given, list) or not given:
        return None
    values = [_plain(each) for each in given]
    return Choices(values=tuple(values)) if len(set(values)) == len(values) else None


def _plain(value: Any) -> Value:
    """A list as the command line writes it; Optuna knows none."""
    if isinstance(value, Value):
        return value
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).strip()


def _range(given: dict[str, Any]) -> Range | None:
    if not {"low", "high"} <= given.keys() <= {"low", "high", "step", "log"}:
        return None
    log = given.get("log", False)
    try:
        low, high = _number(given["low"]), _number(given["high"])
        step = None if given.get("step") is None else _number(given["step"])
    except (TypeError, ValueError):
        return None
    if (
        not low < high
        or (log and (step is not None or low <= 0))
        or (step is not None and step <= 0)
    ):
        return None
    return Range(low=low, high=high, step=step, log=bool(log))


def _number(given: Any) -> float:
    """A number; YAML takes 1e-3 for a text."""
    if isinstance(given, bool):
        raise TypeError
    return given if isinstance(given, int) else float(given)


def _check_order(path: Path, parameters: Mapping[str, Parameter]) -> None:
    keys = list(parameters)
    for i, each in enumerate(parameters.values()):
        for later in set(each.when) & set(keys[i:]):
            raise ConfigError(
                f"{path}: {each.key} depends on {later}, which is drawn later. Put {later} before."
            )


def _point(path: Path, given: Any, parameters: Mapping[str, Parameter]) -> dict[str, Value]:
    if not isinstance(given, dict):
        raise ConfigError(f"{path}: enqueue must be a list of mappings, got {given!r}.")
    point: dict[str, Value] = {}
    for name, value in given.items():
        key = spell_out(str(name))
        if key not in parameters:
            raise ConfigError(f"{path}: enqueue names {key}, which is no parameter.")
        domain = parameters[key].domain
        with suppress(TypeError, ValueError):
            value = _number(value) if isinstance(domain, Range) else _plain(value)
        if value not in domain:
            raise ConfigError(f"{path}: enqueue has {key}={value}, which the parameter leaves out.")
        point[key] = value
    return point


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
