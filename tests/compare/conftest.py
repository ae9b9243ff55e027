from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statelab.compare.config import CompareConfig
from statelab.compare.entries import Entry
from statelab_mlflow.store import connect

SIZES = {"gla": 16_384, "deltanet": 16_384, "s4d": 131_072}


@pytest.fixture
def entry() -> Callable[..., Entry]:
    """A run, as it was logged."""
    made = 0

    def entry(
        write: str,
        read: str,
        value: float | None,
        seed: int = 0,
        *,
        status: str = "FINISHED",
        reason: str = "",
        metrics: dict[str, float] | None = None,
        memory: int | None = None,
        parameters: int = 1000,
        **params: Any,
    ) -> Entry:
        nonlocal made
        made += 1
        size = memory or SIZES[write]
        keys = {key.replace("__", "."): str(each) for key, each in params.items()}
        return Entry(
            id=f"{made:032x}",
            experiment="toy",
            status=status,
            reason=reason,
            started=float(made),
            params={
                "model.write.name": write,
                "model.read.name": read,
                "seed": str(seed),
                "optim.lr": "0.01",
                **keys,
            },
            metrics=metrics or {},
            sizes={"parameters": parameters, "state_bytes": size + 8, "memory_bytes": size},
            value=value,
        )

    return entry


@pytest.fixture
def asked() -> Callable[..., CompareConfig]:
    """What is asked for; accuracy by pair, if nothing else is said."""
    return lambda **given: CompareConfig(**{"metric": "val/accuracy", **given})


@pytest.fixture
def log(run_dir: Path) -> Callable[..., str]:
    """Log a run as another machine would have: nothing of it lies here but in the store."""
    from mlflow.entities import Metric, Param, RunTag

    client = connect(f"sqlite:///{run_dir / 'mlflow.db'}")
    experiment = client.create_experiment("toy", artifact_location=(run_dir / "toy").as_uri())

    def log(
        write: str,
        read: str,
        curve: dict[str, list[float]],
        seed: int = 0,
        status: str = "FINISHED",
        **params: Any,
    ) -> str:
        run = client.create_run(experiment).info.run_id
        keys = {key.replace("__", "."): each for key, each in params.items()}
        logged = {
            "experiment": "toy",
            "model.write.name": write,
            "model.read.name": read,
            "seed": seed,
            "optim.lr": 0.01,
            **keys,
        }
        tags = {
            "write": write,
            "read": read,
            "study": "toy-grid",
            "parameters": 1000 + len(write),
            "state_bytes": SIZES[write] + 8,
            "memory_bytes": SIZES[write],
            "statelab.folder": f"/elsewhere/runs/toy/{run}",
        }
        client.log_batch(
            run,
            metrics=[
                Metric(name, value, 0, 100 * step)
                for name, values in curve.items()
                for step, value in enumerate(values, 1)
            ],
            params=[Param(key, str(each)) for key, each in logged.items()],
            tags=[RunTag(key, str(each)) for key, each in tags.items()],
        )
        if status == "RUNNING":
            client.update_run(run, status="RUNNING")
        else:
            client.set_terminated(run, status)
        return run

    return log
