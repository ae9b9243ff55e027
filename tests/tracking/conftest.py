from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statelab.config import Config, DataConfig, ModelConfig, RuleConfig, TrackingConfig
from statelab_mlflow import MLflowRun, MLflowTracker
from statelab_mlflow.store import connect


@pytest.fixture(autouse=True)
def no_store_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with its tables; making them takes seconds, a copy nothing."""
    file = tmp_path_factory.mktemp("store") / "mlflow.db"
    connect(f"sqlite:///{file}")
    return file


@pytest.fixture
def run_dir(tmp_path: Path, empty_database: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    shutil.copy(empty_database, folder)
    return folder


@pytest.fixture
def make_config(run_dir: Path) -> Callable[..., Config]:
    def make(run_dir: Path = run_dir, experiment: str = "toy", **tracking: Any) -> Config:
        rule = RuleConfig(name="any", options=None)
        return Config(
            experiment=experiment,
            run_dir=str(run_dir),
            model=ModelConfig(write=rule, read=rule),
            data=DataConfig(name="any"),
            tracking=TrackingConfig(**tracking),
        )

    return make


@pytest.fixture
def start(make_config: Callable[..., Config]) -> Callable[..., MLflowRun]:
    def start(config: Config | None = None, **changed: Any) -> MLflowRun:
        given: dict[str, Any] = {"name": "a run", "params": {}, "tags": {}, "description": ""}
        return MLflowTracker().start(config or make_config(), **(given | changed))

    return start
