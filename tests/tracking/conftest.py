from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from statelab.config import Config, DataConfig, ModelConfig, RuleConfig, TrackingConfig
from statelab_mlflow import MLflowRun, MLflowTracker


class Server:
    """MLflow's, over a database of its own; its processes are one group.

    Args:
        folder: For its files and what it prints.
        store: The database's URI.
        options: Further ones of `mlflow server`.
        environment: Further variables.
    """

    def __init__(
        self, folder: Path, store: str, *options: str, environment: Mapping[str, str] | None = None
    ):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        self.command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
        self.command += ["--host", "127.0.0.1", "--port", str(self.port)]
        self.command += ["--backend-store-uri", store]
        self.command += ["--artifacts-destination", str(folder / "artifacts"), *options]
        self.environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **(environment or {})}

    def start(self) -> None:
        """Return when it answers."""
        environment = {**os.environ, **self.environment}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 120
        while not self.answers():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def answers(self) -> bool:
        """Whether it does, to anybody."""
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            return bool(opener.open(f"{self.uri}/health", timeout=5).status == 200)
        except OSError:
            return False

    def send(self, number: int) -> None:
        """Send a signal to all of its processes."""
        os.killpg(self.process.pid, number)

    def die(self) -> None:
        """Be gone at once."""
        self.send(signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="session")
def new_server() -> type[Server]:
    """Makes a server, not yet started."""
    return Server


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
