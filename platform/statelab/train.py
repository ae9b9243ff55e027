"""Train what a configuration describes, as one tracked run in one folder."""

from __future__ import annotations

import errno
import logging
import signal
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning as L
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.seed import seed_everything
from torch import Tensor

from statelab.callbacks.catch_up import CatchUp
from statelab.callbacks.checkpoints import AtomicCheckpointIO, Checkpoints
from statelab.callbacks.diagnostics import Diagnostics
from statelab.callbacks.figures import Figures
from statelab.callbacks.history import History
from statelab.callbacks.nan_guard import NanGuard
from statelab.callbacks.position import Position
from statelab.callbacks.progress import ProgressBar
from statelab.callbacks.pruning import Pruning
from statelab.callbacks.randomness import Randomness
from statelab.callbacks.schedule import Schedule
from statelab.callbacks.stop import GracefulStop
from statelab.config import Config
from statelab.data.lightning_data import build_data
from statelab.devices import check_compiler, check_devices
from statelab.errors import ConfigError, RunError
from statelab.language_model import LanguageModel
from statelab.loading import load_config, to_dict
from statelab.optim import total_steps
from statelab.runs.checkpoint_file import steps_done
from statelab.runs.lock import locked
from statelab.runs.lost import mark_all_lost
from statelab.runs.metric_history import last_metrics
from statelab.runs.opening import describe, open_run, pair_name
from statelab.runs.processes import Launch, followed
from statelab.runs.resume import Resumption, resume_command, resuming
from statelab.runs.slurm import REQUEUE, requeue
from statelab.runs.status import PRUNED, REQUEUED, Status, beating
from statelab.runs.stored import StoredRun
from statelab.runs.tracking import Followed, Run, StudyTrial
from statelab.signals import Pruned, Stopped, unwinding
from statelab.sizes import Sizes, measure
from statelab.strategies import make_strategy

__all__ = ["Result", "follow", "pair_name", "train"]

log = logging.getLogger(__name__)

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
        received: The signal that stopped it.
    """

    run_id: str
    status: Status
    folder: Path
    checkpoint: Path | None
    best_checkpoint: Path | None
    metrics: dict[str, float]
    received: signal.Signals | None = None

    @property
    def exit_status(self) -> int:
        """The shell's: 0, 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + self.received if self.received else 0

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


def train(
    config: Config,
    *,
    progress: bool = True,
    checkpoint: str = "last",
    trial: StudyTrial | None = None,
) -> Result:
    """Train, validate and save; the run's end is recorded whatever happens.

    A run that is finished, and that `config.resume` names, gives its result again.

    Args:
        config: The configuration.
        progress: Whether to show a bar on standard error.
        checkpoint: Where a run goes on from that `config.resume` names: "last", "previous", "best".
        trial: The run's place in a study.

    Returns:
        How the run ended; one result for all its processes.

    Raises:
        StatelabError: Before the run starts, on something the user can mend.
        Exception: What stopped the training; the run is recorded as FAILED then.
        Pruned: If the study stops it; the run is recorded as KILLED then.
    """
    quiet_lightning()
    launch = Launch.find()
    if launch is not None and launch.rank > 0:
        check_devices(config.trainer)
        return follow(*launch.meet(Path(config.run_dir)))
    mark_all_lost(Path(config.run_dir))
    data_config = config.data.pinned()
    if data_config != config.data:
        config = load_config(to_dict(replace(config, data=data_config)))
    with resuming(config, checkpoint) as resumption:
        if resumption is not None and resumption.is_finished:
            return _recorded(resumption.run)
        config = resumption.config if resumption else replace(config, resume=None)
        check_devices(config.trainer)
        check_compiler(config.trainer)
        data = build_data(config)
        sizes = measure(config)
        seed_everything(config.seed, workers=True, verbose=False)
        with unwinding():
            return _run(config, data, sizes, resumption, trial, progress)


def follow(
    folder: Path, checkpoint: Path | None, ready: Callable[[], object] = lambda: None
) -> Result:
    """Train as a further process of a run, of which the first one records everything.

    Args:
        folder: The run's.
        checkpoint: Where all processes go on from; None is the beginning.
        ready: Called when nothing is left to prepare.
    """
    quiet_lightning()
    run = Followed(folder.name, folder)
    config = StoredRun(id=run.id, folder=folder).config()
    data, sizes = build_data(config), measure(config)
    seed_everything(config.seed, workers=True, verbose=False)
    ready()
    return _fit(config, data, run, sizes, checkpoint, progress=False)


def quiet_lightning() -> None:
    """Drop Lightning's hints on loaders and devices: each says what this code has decided."""
    for part in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(part).setLevel(logging.WARNING)
    for message in (
        "The '.*_dataloader' does not have many workers",
        "You are using a CUDA device",
        "The number of training batches .* is smaller than the logging interval",
        # A loss that is no number is the run's to judge, not a metric's.
        "Encountered `nan` values in tensor",
        # The first of several processes may have no example of a slice.
        "The ``compute`` method of metric .*Accuracy was called before the ``update``",
        # A state holds parts of streams; nothing writes into them.
        "FSDP2-wrapped module .* returned a view tensor",
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
    strategy = make_strategy(trainer)
    plugins: list[Any] = [AtomicCheckpointIO()]
    if strategy != "auto" and Launch.find() is None:
        # Also inside of a job of SLURM's, whose ranks are not ours.
        plugins.append(LightningEnvironment())
    try:
        return L.Trainer(
            plugins=plugins,
            use_distributed_sampler=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            limit_val_batches=trainer.val_batches or 1.0,
            # FSDP2 keeps the weights that it gathers, and training needs them next.
            inference_mode=trainer.strategy != "fsdp2",
            **{**place, "strategy": strategy},
            **options,
        )
    except (MisconfigurationException, ValueError) as error:
        given = ", ".join(f"trainer.{name}={value}" for name, value in place.items())
        raise ConfigError(f"Lightning refuses {given}: {error}") from error


def _run(
    config: Config,
    data: L.LightningDataModule,
    sizes: Sizes,
    resumption: Resumption | None,
    trial: StudyTrial | None,
    progress: bool,
) -> Result:
    """Open the run, train, and record its end, whatever that is."""
    run = open_run(config, sizes, resumption, trial)
    with beating(run.folder), ExitStack() as held:
        try:
            if resumption is None:
                held.enter_context(locked(run.folder))
            if trial is not None:
                trial.started(run.id)
            describe(config, run, resumption)
            checkpoint = resumption.checkpoint if resumption else None
            with followed(config, run.folder, checkpoint):
                result = _fit(
                    config,
                    data,
                    run,
                    sizes,
                    checkpoint,
                    prune=trial.prune if trial else None,
                    progress=progress,
                )
        except Pruned as pruned:
            run.finish("KILLED", f"{PRUNED}: {pruned}")
            raise
        except Stopped as stopped:
            _stop(run, stopped.received)
            _say_how_to_go_on(run, config)
            raise
        except BaseException as error:
            status: Status = "FAILED" if isinstance(error, Exception) else "KILLED"
            run.finish(status, f"{type(error).__name__}: {error}")
            _say_how_to_go_on(run, config)
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                raise RunError(
                    f"run {run.id} can't write into {run.folder}: {error.strerror}. Make room and "
                    "continue it; its last checkpoint stays."
                ) from error
            raise
        if result.received:
            _stop(run, result.received)
        else:
            run.finish(result.status)
    return result


def _stop(run: Run, received: signal.Signals) -> None:
    """Record that a signal ended the run; a job that SLURM wants back goes into its queue again."""
    if received == REQUEUE:
        run.finish("KILLED", f"{REQUEUED}: {received.name}")
        requeue()
    else:
        run.finish("KILLED", received.name)


def _say_how_to_go_on(run: Run, config: Config) -> None:
    if (run.folder / "checkpoints" / "last.ckpt").exists():
        log.warning("run %s has a checkpoint: %s", run.id, resume_command(run.id, config))


def _recorded(run: StoredRun) -> Result:
    """The result of a run that is finished."""
    return _result(run.id, run.folder, "FINISHED", last_metrics(run.folder))


def _result(
    run_id: str,
    folder: Path,
    status: Status,
    metrics: dict[str, float],
    received: signal.Signals | None = None,
) -> Result:
    last, best = (folder / "checkpoints" / f"{name}.ckpt" for name in ("last", "best"))
    return Result(
        run_id=run_id,
        status=status,
        folder=folder,
        checkpoint=last if last.exists() else None,
        best_checkpoint=best if best.exists() else None,
        metrics=metrics,
        received=received,
    )


def _fit(
    config: Config,
    data: L.LightningDataModule,
    run: Run,
    sizes: Sizes,
    checkpoint: Path | None,
    *,
    prune: Callable[[Mapping[str, Tensor], int], bool] | None = None,
    progress: bool,
) -> Result:
    """Train in this process, beside others perhaps; all of them do the same."""
    steps, accumulate = total_steps(config), config.trainer.accumulate
    val_every = min(config.trainer.val_every or max(1, steps // 10), steps)
    history = History(flops_per_token=sizes.flops_per_token)
    checkpoints = Checkpoints(
        run.folder / "checkpoints", every=config.trainer.checkpoint_every, val_every=val_every
    )
    diagnostics = Diagnostics(run.folder)
    optional: list[L.Callback] = [ProgressBar(pair_name(config), history)] if progress else []
    if config.tracking.figures:
        optional.append(Figures(run, config, pair_name(config), diagnostics))
    done = steps_done(checkpoint) if checkpoint else 0
    trainer = make_trainer(
        config,
        # Where all steps are done, Lightning would not even begin, and so not end either.
        max_steps=max(steps, done + 1),
        accumulate_grad_batches=accumulate,
        val_check_interval=val_every * accumulate,
        check_val_every_n_epoch=None,
        logger=run.logger,
        callbacks=[
            Randomness(),
            Schedule(),
            Position(),
            history,
            NanGuard(run.folder, config.trainer.nan_patience),
            diagnostics,
            checkpoints,
            GracefulStop(checkpoints),
            Pruning(prune),
            *optional,
            CatchUp(checkpoints, steps),
        ],
        enable_progress_bar=progress,
        log_every_n_steps=1,
        default_root_dir=run.folder,
    )
    received: signal.Signals | None = None
    try:
        trainer.fit(
            LanguageModel(config),
            datamodule=data,
            ckpt_path=checkpoint,
            weights_only=True,
        )
    except Stopped as stopped:
        received = stopped.received
    metrics = last_metrics(run.folder) if checkpoint else {}
    metrics |= {name: float(value) for name, value in trainer.callback_metrics.items()}
    if history.tokens_per_second:
        metrics["perf/tokens_per_second"] = history.tokens_per_second
    return _result(run.id, run.folder, "KILLED" if received else "FINISHED", metrics, received)
