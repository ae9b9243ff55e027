"""Evaluate a run's checkpoint on its validation split."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from statelab.config import Config
from statelab.data.lightning_data import build_data
from statelab.devices import check_devices
from statelab.errors import ConfigError, RunError, StatelabError
from statelab.language_model import LanguageModel
from statelab.loading import load_config, to_dict
from statelab.runs.checkpoint_file import UNREADABLE
from statelab.runs.stored import StoredRun
from statelab.train import Result, make_trainer, quiet_lightning

__all__ = ["evaluate", "load_checkpoint"]


def evaluate(run: StoredRun, *, checkpoint: str = "last", overrides: Iterable[str] = ()) -> Result:
    """The validation metrics of a checkpoint; with no overrides those that training logged.

    Args:
        run: The run.
        checkpoint: "last" or "best".
        overrides: `data.*` and `trainer.*` keys that differ from the run's.

    Raises:
        StatelabError: If the run or its checkpoint can't be read, or a key can't be changed.
    """
    overrides = list(overrides)
    for each in overrides:
        if not each.startswith(("data.", "trainer.")):
            raise ConfigError(f"eval can change data.* and trainer.* only, got {each}.")
    quiet_lightning()
    file = run.checkpoint(checkpoint)
    config = load_config(_alone(run.config()), overrides)
    check_devices(config.trainer)
    if config.trainer.devices * config.trainer.num_nodes > 1:
        raise ConfigError("eval works in one process. Leave trainer.devices and num_nodes out.")
    model = load_checkpoint(file)
    trainer = make_trainer(config, logger=False, enable_progress_bar=False)
    trainer.validate(model, datamodule=build_data(config), verbose=False)
    return Result(
        run_id=run.id,
        status="FINISHED",
        folder=run.folder,
        checkpoint=file,
        best_checkpoint=None,
        metrics={name: float(value) for name, value in trainer.callback_metrics.items()},
    )


def _alone(config: Config) -> dict[str, Any]:
    """A run's configuration, for one process that evaluates what all of them did."""
    trainer = config.trainer
    batches = trainer.val_batches and trainer.val_batches * trainer.devices * trainer.num_nodes
    alone = replace(trainer, devices=1, num_nodes=1, strategy="auto", val_batches=batches)
    return to_dict(replace(config, trainer=alone))


def load_checkpoint(file: Path) -> LanguageModel:
    """The model of a checkpoint; nothing in the file is executed.

    Raises:
        RunError: If the file is truncated, or no checkpoint of statelab.
    """
    try:
        model: Any = LanguageModel.load_from_checkpoint(file, map_location="cpu", weights_only=True)
    except (*UNREADABLE, StatelabError) as error:
        raise RunError(
            f"checkpoint {file} can't be read: it is truncated, or not statelab's "
            f"({type(error).__name__}). Use another one of the run."
        ) from error
    return model  # type: ignore[no-any-return]
