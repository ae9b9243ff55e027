"""Train what a configuration describes, as one tracked run in one folder."""

from __future__ import annotations

import logging
import signal
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import yaml
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.seed import seed_everything

from statelab.callbacks.checkpoints import AtomicCheckpointIO, Checkpoints
from statelab.callbacks.diagnostics import Diagnostics
from statelab.callbacks.figures import Figures
from statelab.callbacks.history import History
from statelab.callbacks.position import Position
from statelab.callbacks.progress import ProgressBar
from statelab.callbacks.stop import GracefulStop
from statelab.config import Config
from statelab.data.lightning_data import build_data
from statelab.devices import check_devices
from statelab.environment import write_environment
from statelab.errors import ConfigError
from statelab.language_model import LanguageModel
from statelab.loading import to_dict
from statelab.optim import total_steps
from statelab.records import pair_of
from statelab.signals import Stopped, unwinding
from statelab.sizes import Sizes, measure
from statelab.tracking import LocalRun, Run, Status, tracker
from statelab.values import flatten

__all__ = ["Result", "pair_name", "train"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How a run ended.

    Attributes:
        run_id: Names the run.
        status: FINISHED, FAILED or KILLED.
        folder: What it wrote.
        checkpoint: The last one; None if the run ended before one was written.
        best_checkpoint: The one with the least val/loss.
        metrics: The last of each.
        exit_status: 0, 130 after Ctrl-C, 143 after SIGTERM.
    """

    run_id: str
    status: Status
    folder: Path
    checkpoint: Path | None
    best_checkpoint: Path | None
    metrics: dict[str, float]
    exit_status: int = 0

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "run_id": self.run_id,
            "status": self.status,
            "folder": str(self.folder),
            "checkpoint": self.checkpoint and str(self.checkpoint),
            "best_checkpoint": self.best_checkpoint and str(self.best_checkpoint),
            "metrics": self.metrics,
        }


def pair_name(config: Config) -> str:
    """The pair of rules, as `gla+ccq`; a rule from a file is called by its class."""
    return pair_of(config.model.write.name, config.model.read.name)


def train(config: Config, *, progress: bool = True) -> Result:
    """Train, validate and save; the run's end is recorded whatever happens.

    Args:
        config: The configuration.
        progress: Whether to show a bar on standard error.

    Raises:
        StatelabError: Before the run starts, on something the user can mend.
        Exception: What stopped the training; the run is recorded as FAILED then.
    """
    quiet_lightning()
    check_devices(config.trainer)
    data = build_data(config)
    sizes = measure(config)
    seed_everything(config.seed, workers=True, verbose=False)
    with unwinding():
        return _run(config, data, sizes, progress)


def quiet_lightning() -> None:
    """Drop Lightning's hints on loaders and devices: each says what this code has decided."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in (
        "The '.*_dataloader' does not have many workers",
        "You are using a CUDA device",
        "The number of training batches .* is smaller than the logging interval",
        # Of these it means a metrics.csv, and a new run's folder has none.
        "Experiment logs directory .* exists and is not empty",
        # Lightning 2.6 asks torch 2.13 in a way that torch has deprecated.
        ".*isinstance.treespec, LeafSpec.",
    ):
        warnings.filterwarnings("ignore", message=message)


def make_trainer(config: Config, **options: Any) -> L.Trainer:
    """Lightning's trainer with everything that a configuration says of it.

    Raises:
        ConfigError: If devices, strategy and precision don't go together.
    """
    trainer = config.trainer
    place: dict[str, Any] = {
        name: getattr(trainer, name)
        for name in ("accelerator", "devices", "num_nodes", "strategy", "precision")
    }
    try:
        return L.Trainer(
            plugins=[AtomicCheckpointIO()],
            use_distributed_sampler=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            limit_val_batches=trainer.val_batches or 1.0,
            **place,
            **options,
        )
    except (MisconfigurationException, ValueError) as error:
        given = ", ".join(f"trainer.{name}={value}" for name, value in place.items())
        raise ConfigError(f"Lightning refuses {given}: {error}") from error


def _run(config: Config, data: L.LightningDataModule, sizes: Sizes, progress: bool) -> Result:
    """Start the run, train, and record its end, whatever that is."""
    run = _start(config, sizes)
    try:
        _describe(config, run)
        result = _fit(config, data, run, sizes, progress)
    except BaseException as error:
        status: Status = "FAILED" if isinstance(error, Exception) else "KILLED"
        run.finish(status, f"{type(error).__name__}: {error}")
        raise
    run.finish(result.status)
    return result


def _start(config: Config, sizes: Sizes) -> Run:
    params = flatten(to_dict(config))
    if config.tracking.enabled:
        return tracker().start(
            config,
            name=f"{pair_name(config)} {config.experiment}",
            params=params,
            tags={
                "write": config.model.write.name,
                "read": config.model.read.name,
                "data": config.data.name,
                "seed": str(config.seed),
                "parameters": str(sizes.parameters),
                "state_bytes": str(sizes.state_bytes),
                "memory_bytes": str(sizes.memory_bytes),
                **config.tags,
            },
            description=(
                f"**{pair_name(config)}** on {config.data.name}: {sizes.parameters:,} parameters, "
                f"{sizes.state_bytes:,} bytes of state, seed {config.seed}."
            ),
        )
    return LocalRun.start(config)


def _describe(config: Config, run: Run) -> None:
    """Write what defines the run into its folder."""
    resolved = run.folder / "config.yaml"
    text = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
    resolved.write_text(text, encoding="utf-8")
    for file in (resolved, *write_environment(run.folder)):
        run.log_artifact(file)


def _fit(
    config: Config, data: L.LightningDataModule, run: Run, sizes: Sizes, progress: bool
) -> Result:
    steps, accumulate = total_steps(config), config.trainer.accumulate
    val_every = min(config.trainer.val_every or max(1, steps // 10), steps)
    processes = config.trainer.devices * config.trainer.num_nodes
    history = History(
        tokens_per_step=config.data.batch_size * config.data.seq_len * accumulate * processes,
        flops_per_token=sizes.flops_per_token,
    )
    checkpoints = Checkpoints(
        run.folder / "checkpoints", every=config.trainer.checkpoint_every, val_every=val_every
    )
    diagnostics = Diagnostics(run.folder)
    optional: list[L.Callback] = [ProgressBar(pair_name(config), history)] if progress else []
    if config.tracking.figures:
        optional.append(Figures(run, config, pair_name(config), diagnostics))
    trainer = make_trainer(
        config,
        max_steps=steps,
        accumulate_grad_batches=accumulate,
        val_check_interval=val_every * accumulate,
        check_val_every_n_epoch=None,
        logger=run.logger,
        callbacks=[
            Position(),
            history,
            diagnostics,
            checkpoints,
            GracefulStop(checkpoints),
            *optional,
        ],
        enable_progress_bar=progress,
        log_every_n_steps=1,
        default_root_dir=run.folder,
    )
    received: signal.Signals | None = None
    try:
        trainer.fit(LanguageModel(config), datamodule=data)
    except Stopped as stopped:
        received = stopped.received
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    metrics["perf/tokens_per_second"] = history.tokens_per_second
    return Result(
        run_id=run.id,
        status="KILLED" if received else "FINISHED",
        folder=run.folder,
        checkpoint=checkpoints.last if checkpoints.last.exists() else None,
        best_checkpoint=checkpoints.best if checkpoints.best.exists() else None,
        metrics=metrics,
        exit_status=128 + received if received else 0,
    )
