from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statelab.config import Config, DataConfig, ModelConfig, RuleConfig, TrackingConfig
from statelab_mlflow import MLflowRun, MLflowTracker


@pytest.fixture(autouse=True)
def no_store_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


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
