"""Studies that this process works on, with or without training."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from statelab.search import launch
from statelab.search.plan import plan_grid, plan_search
from statelab.search.storage import open_storage
from statelab.train import Result

SPACE = {
    "parameters": {
        "optim.lr": {"low": 1e-4, "high": 1e-1, "log": True},
        "model.mlp_hidden": [8, 16, 24],
    },
    "search": {"pruner": "none", "sampler": "random"},
}


class Here:
    """Stands for a pool: its only worker is this process."""

    def __init__(self, arguments, size, logs):
        plans = {"search": plan_search, "grid": plan_grid}
        self.plan = plans[arguments[0]](arguments[1:])

    def run(self, watch):
        watch()
        launch.work(self.plan)
        watch()
        return []


@pytest.fixture
def write_space(away: Path) -> Callable[..., str]:
    """Write a space; gives its path."""

    def write(name: str = "space", **parts: object) -> str:
        file = away / f"{name}.yaml"
        file.write_text(yaml.safe_dump(SPACE | parts))
        return str(file)

    return write


@pytest.fixture
def arguments(toy, write_space, away: Path) -> Callable[..., list[str]]:
    """The arguments of a search on the toy model; its space is changed by parts."""

    def arguments(*overrides: str, **parts: object) -> list[str]:
        values = {key: yaml.safe_load(each) for key, each in (a.split("=", 1) for a in toy())}
        (away / "toy.yaml").write_text(yaml.safe_dump(values))
        given = ["experiment=toy.yaml", "tracking.enabled=false", *overrides]
        return [*given, f"search={write_space(**parts)}"]

    return arguments


@pytest.fixture
def trained(monkeypatch) -> list:
    """Nothing is trained; holds the configuration of each training that there would be."""
    configs = []

    def train(config, *, progress, trial):
        configs.append(config)
        trial.started(f"{len(configs):032x}")
        loss = abs(math.log10(config.optim.lr / 1e-2))
        return Result(
            run_id="",
            status="FINISHED",
            folder=Path(),
            checkpoint=None,
            best_checkpoint=None,
            metrics={"val/loss": loss},
        )

    monkeypatch.setattr("statelab.search.objective.train", train)
    return configs


@pytest.fixture(scope="session")
def empty_study_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with Optuna's tables; making them takes seconds, a copy nothing."""
    file = tmp_path_factory.mktemp("study") / "optuna.db"
    open_storage(f"sqlite:///{file}", heartbeat=1)
    return file


@pytest.fixture
def here(monkeypatch, away: Path, empty_study_database: Path) -> Callable[..., launch.Outcome]:
    """Run a search or a grid in this process."""
    (away / "runs").mkdir()
    shutil.copy(empty_study_database, away / "runs")
    monkeypatch.setattr("statelab.search.launch.Pool", Here)
    # Figures have a test of their own.
    monkeypatch.setattr("statelab.search.record.draw", lambda study, plan, folder: [])
    monkeypatch.setattr("statelab.search.launch.end_with_parent", lambda: None)
    monkeypatch.setattr("statelab.search.worker._POLL_SECONDS", 0.01)
    monkeypatch.setattr("statelab.search.worker._PAUSE_SECONDS", 0.01)

    def run(arguments: list[str], command: str = "search") -> launch.Outcome:
        plan = {"search": plan_search, "grid": plan_grid}[command](arguments)
        return launch.run_study(plan, [command, *arguments], lambda done: None)

    return run
