"""A study: the database's record of what is looked for, opened by every process that takes part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import optuna

from statelab.config import Config
from statelab.errors import ConfigError
from statelab.search.config import SearchConfig
from statelab.search.space import Space, Value
from statelab.search.storage import open_storage, storage_url, turn_of
from statelab.search.turn import Turn

__all__ = ["PARENT", "Plan", "as_overrides", "open_study"]

#: Attributes of a study: its run's id, and what it was made with.
PARENT = "run_id"
_DEFINITION = "definition"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a search or a grid does.

    Attributes:
        study: Its name.
        space: What is varied.
        search: How.
        base: Arguments that all trials have, such as `experiment=mqar`.
        config: What they make; of a grid, its first cell.
        shared: What makes trials comparable, and is the same in all of them.
        cells: All points of a grid; None for a search.
    """

    study: str
    space: Space
    search: SearchConfig
    base: tuple[str, ...]
    config: Config
    shared: Mapping[str, Any]
    cells: tuple[Mapping[str, str], ...] | None = None

    @property
    def total(self) -> int:
        """How many trials there are to be."""
        return self.search.n_trials if self.cells is None else len(self.cells)

    @property
    def folder(self) -> Path:
        """For what is written about the study."""
        return Path(self.config.run_dir).resolve() / "studies" / self.study.replace("/", "-")

    @property
    def url(self) -> str:
        """The database's."""
        return storage_url(self.search.storage, self.config.run_dir)

    @property
    def turn(self) -> Turn:
        """The study's lock."""
        return turn_of(self.url, self.study.replace("/", "-"))


def as_overrides(values: Mapping[str, Value]) -> list[str]:
    """Values by key, as the command line takes them."""
    words = {None: "null", True: "true", False: "false"}
    return [
        f"{key}={words[value] if value is None or isinstance(value, bool) else value}"
        for key, value in values.items()
    ]


def open_study(plan: Plan) -> optuna.Study:
    """The study of that name, made if there is none; whoever calls has the turn.

    Raises:
        ConfigError: If it was made with another base, space or metric; says which.
        RunError: If the database can't be used.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        study_name=plan.study,
        storage=open_storage(plan.url, heartbeat=plan.search.heartbeat),
        directions=list(plan.search.direction),
        load_if_exists=True,
    )
    definition = _definition(plan)
    known = study.user_attrs.get(_DEFINITION)
    if known is None:
        study.set_user_attr(_DEFINITION, definition)
    else:
        _refuse_another(plan.study, known, definition)
    return study


def _definition(plan: Plan) -> dict[str, str]:
    """All that makes trials comparable, by key."""
    parts = dict(plan.shared) | {
        "search.metric": plan.search.metric,
        "search.direction": plan.search.direction,
    }
    if plan.cells is None:
        parts["search.space"] = sorted(each.key for each in plan.space.parameters)
        parts["search.space: constraints"] = [str(each) for each in plan.space.constraints]
        parts |= {f"search.space: {each.key}": asdict(each) for each in plan.space.parameters}
    else:
        parts["search.space"] = ["grid", *sorted(plan.cells[0])]
    return {key: json.dumps(each) for key, each in parts.items()}


def _refuse_another(study: str, known: Mapping[str, str], given: Mapping[str, str]) -> None:
    # Cells of a grid that come later may differ in more keys, or in fewer.
    for key in given:
        if known.get(key, given[key]) != given[key]:
            raise ConfigError(
                f"study {study!r} was begun with {key} {known[key]}, and now has {given[key]}. Its "
                "trials would not compare: begin another with search.study=NAME."
            )
