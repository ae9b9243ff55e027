"""Experiment files: `experiments/NAME/config.yaml`, with variants under `arms`; search spaces."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from statelab.errors import ConfigError, UnknownNameError, near_miss

__all__ = [
    "Experiment",
    "experiment_names",
    "find_experiment",
    "find_space",
    "read_yaml",
    "space_names",
]

_CONFIG, _SPACE = "config.yaml", "search.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """An experiment file as it stands.

    Attributes:
        name: Its folder's name, or the file's where it is not called config.yaml.
        values: Nested keys.
        arms: Variants by name, each with nested keys of its own.
        expect: What is expected of its runs, as it stands there; `statelab.expect` reads it.
    """

    name: str
    values: dict[str, Any]
    arms: dict[str, dict[str, Any]]
    expect: Any = None

    def arm(self, name: str) -> dict[str, Any]:
        """The keys of one variant.

        Raises:
            UnknownNameError: If there is none of that name; lists those there are.
        """
        if name not in self.arms:
            known = ", ".join(sorted(self.arms)) or "none"
            raise UnknownNameError(
                f"experiment {self.name!r} has no arm {name!r}."
                f"{near_miss(name, self.arms)} Its arms: {known}."
            )
        return self.arms[name]


def find_experiment(reference: str) -> Experiment:
    """Read an experiment by name or by path.

    A name is looked up under `experiments/` of the current folder, then among the experiments
    that come with statelab.

    Raises:
        UnknownNameError: If there is no such experiment.
        ConfigError: If the file is no YAML mapping.
    """
    return _read(_find(reference, "experiment", _CONFIG))


def find_space(reference: str) -> tuple[str, Path]:
    """The name and the file of a search space, looked up as an experiment is.

    Raises:
        UnknownNameError: If there is none.
    """
    path = _find(reference, "search", _SPACE)
    return _name(path), path


def experiment_names() -> list[str]:
    """Names of all experiments that `find_experiment` finds."""
    return _names(_CONFIG)


def space_names() -> list[str]:
    """Names of all spaces that `find_space` finds."""
    return _names(_SPACE)


def read_yaml(path: Path) -> Any:
    """What a file holds; no key may be given twice.

    Raises:
        ConfigError: If it can't be read.
    """
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)
        # An alias may contain itself, which JSON finds out.
        json.dumps(values, default=str, skipkeys=True)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} can't be read: {' '.join(str(error).split())}.") from error
    return values


def _find(reference: str, key: str, file: str) -> Path:
    if reference.endswith((".yaml", ".yml")) or "/" in reference:
        path = Path(reference)
        path = path / file if path.is_dir() else path
        if not path.is_file():
            raise UnknownNameError(f"{key}={reference}: no such file.")
        return path
    for folder in _folders():
        path = folder / reference / file
        if path.is_file():
            return path
    names = _names(file)
    raise UnknownNameError(
        f"unknown {key} {reference!r}.{near_miss(reference, names)} "
        f"There are: {', '.join(names) or 'none'}; or give the path of a YAML file."
    )


def _names(file: str) -> list[str]:
    return sorted({path.parent.name for each in _folders() for path in each.glob(f"*/{file}")})


def _name(path: Path) -> str:
    """The folder's name, or the file's where it has not the usual one."""
    return path.resolve().parent.name if path.name in (_CONFIG, _SPACE) else path.stem


def _folders() -> Iterator[Path]:
    package = Path(__file__).resolve().parent
    # The wheel carries the experiments inside the package; a checkout has them at its root.
    for folder in (
        Path("experiments"),
        package / "experiments",
        package.parents[1] / "experiments",
    ):
        if folder.is_dir():
            yield folder


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice, of which YAML drops the first without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        given: set[str] = set()
        for key in (each for each, _ in node.value if isinstance(each, yaml.ScalarNode)):
            if key.value in given:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark
                )
            given.add(key.value)
        return super().construct_mapping(node, deep)


def _read(path: Path) -> Experiment:
    values = read_yaml(path) or {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of keys, got {type(values).__name__}.")
    arms = values.pop("arms", None) or {}
    if not (isinstance(arms, dict) and all(isinstance(each, dict) for each in arms.values())):
        raise ConfigError(f"{path}: arms must map names to keys.")
    expect = values.pop("expect", None)
    return Experiment(name=_name(path), values=values, arms=arms, expect=expect)
