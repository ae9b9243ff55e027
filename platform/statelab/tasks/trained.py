"""A checkpoint as an evaluation task sees it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import lightning as L
import torch

from statelab.config import Config
from statelab.data.module import DataModule
from statelab.devices import check_devices
from statelab.errors import ConfigError, RunError, StatelabError
from statelab.language_model import LanguageModel
from statelab.loading import load_config, to_dict
from statelab.model.decoder import Decoder
from statelab.registries import data_modules
from statelab.runs.checkpoint_file import UNREADABLE, steps_done
from statelab.runs.stored import StoredRun
from statelab.train import make_trainer, quiet_lightning

__all__ = ["Trained", "load_checkpoint", "load_trained"]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A run's checkpoint, and where and how it is to be run.

    Attributes:
        run: The run.
        config: Its configuration, with what was said anew of data and trainer.
        file: The checkpoint.
        module: What it holds.
        trainer: Lightning's; it logs nothing.
    """

    run: StoredRun
    config: Config
    file: Path
    module: LanguageModel
    trainer: L.Trainer

    @cached_property
    def model(self) -> Decoder:
        """The decoder for evaluation, on its device and in its precision."""
        decoder = self.trainer.precision_plugin.convert_module(self.module.decoder)
        assert isinstance(decoder, Decoder)
        return decoder.to(self.device).eval().requires_grad_(False)

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self.trainer.strategy.root_device

    @property
    def data(self) -> type[DataModule]:
        """The data module's class, which knows what tokens mean."""
        return data_modules.get(self.config.data.name).cls

    @property
    def step(self) -> int:
        """The optimizer steps that the checkpoint has behind it."""
        return steps_done(self.file)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the model here: in its precision, without gradients."""
        with torch.inference_mode(), self.trainer.precision_plugin.forward_context():
            yield


def load_trained(
    run: StoredRun, *, checkpoint: str = "last", overrides: Iterable[str] = ()
) -> Trained:
    """A checkpoint, ready to be looked at in this one process.

    Args:
        run: The run.
        checkpoint: "last", "previous" or "best".
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
    return Trained(
        run=run,
        config=config,
        file=file,
        module=load_checkpoint(file),
        trainer=make_trainer(config, logger=False, enable_progress_bar=False),
    )


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


def _alone(config: Config) -> dict[str, Any]:
    """A run's configuration, for one process that evaluates what all of them did."""
    trainer = config.trainer
    batches = trainer.val_batches and trainer.val_batches * trainer.devices * trainer.num_nodes
    alone = replace(trainer, devices=1, num_nodes=1, strategy="auto", val_batches=batches)
    return to_dict(replace(config, trainer=alone))
