from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from statelab import train as training
from statelab.config import Config
from statelab.runs.stored import StoredRun, find_run

TEXT = (
    "write=deltanet",
    "read=plain",
    "data.name=text",
    "data.val_fraction=0.5",
    "model.head_dim=8",
    "model.mixer.conv=4",
)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of text, 2,000 bytes or so, some of them no ASCII."""
    file = tmp_path_factory.mktemp("corpus") / "little-tale.txt"
    file.write_text("".join(f"Día {i}: the fox saw {i * i} hens.\n" for i in range(60)))
    return file


@pytest.fixture(scope="session")
def text_config(
    toy_config: Callable[..., Config], corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Config]:
    """The configuration of a model of bytes, untracked."""
    place = tmp_path_factory.mktemp("runs")
    files = (f"data.files={corpus}", f"run_dir={place}", "tracking.enabled=false")
    return lambda *overrides: toy_config(*TEXT, *files, *overrides)


@pytest.fixture(scope="session")
def text_run(text_config: Callable[..., Config]) -> StoredRun:
    """A run of such a model; its folder may be written into."""
    config = text_config()
    result = training.train(config, progress=False)
    return find_run(result.run_id, run_dir=config.run_dir)
