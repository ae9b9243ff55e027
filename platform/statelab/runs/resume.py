"""Go on with a run that was broken off: which one, with which values, from which checkpoint."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from statelab.config import Config
from statelab.errors import ConfigError, RunError, StatelabError
from statelab.loading import load_config, to_dict
from statelab.optim import total_steps
from statelab.runs.checkpoint_file import UNREADABLE, steps_done
from statelab.runs.lock import locked
from statelab.runs.status import RunStatus
from statelab.runs.stored import StoredRun, find_run
from statelab.values import flatten, parse_overrides

__all__ = ["FREE", "Resumption", "load_resumable", "resume_command", "resuming"]

#: The keys that may have another value when a run goes on. They say how long it is, what is looked
#: at, where it computes and what is kept; all others make up what is learned.
FREE = (
    "resume",
    "run_dir",
    "model.backend",
    "data.num_workers",
    "data.cache",
    "trainer.max_steps",
    "trainer.max_tokens",
    "trainer.val_every",
    "trainer.val_batches",
    "trainer.checkpoint_every",
    "trainer.nan_patience",
    "trainer.accelerator",
    "trainer.strategy",
    "trainer.compile",
    "trainer.activation_checkpointing",
    "tracking.uri",
    "tracking.figures",
)

#: The examples of one batch over all processes are the product of these.
_BATCH = ("data.batch_size", "trainer.devices", "trainer.num_nodes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumption:
    """How a run goes on.

    Attributes:
        run: The run.
        config: What it goes on with.
        number: 1 for the first resume.
        changes: The keys with another value than in the part before, and the new value.
        checkpoint: Where it goes on from; None is its very beginning, for want of a checkpoint.
        step: The optimizer steps that are done there.
        is_finished: Whether there is nothing to do.
    """

    run: StoredRun
    config: Config
    number: int
    changes: dict[str, Any]
    checkpoint: Path | None
    step: int
    is_finished: bool

    @property
    def tags(self) -> dict[str, str]:
        """What the tracking store is told of the changes."""
        return {
            f"resume.{self.number}.{key}": each if isinstance(each, str) else json.dumps(each)
            for key, each in self.changes.items()
        }


def load_resumable(overrides: Iterable[str]) -> Config:
    """`load_config`, where `resume=ID` without an experiment stands for all that the run has.

    Raises:
        StatelabError: One line on the first key or value that can't be used.
    """
    overrides = list(overrides)
    given = parse_overrides(overrides)
    reference = given.get("resume")
    if reference in (None, "auto"):
        return load_config(None, overrides)
    run = find_run(reference, run_dir=given.get("run_dir", "runs"), uri=given.get("tracking.uri"))
    # Where it is now: the run's configuration says it as seen from where it was started.
    run_dir = given.get("run_dir", "runs")
    is_there = Path(run_dir).resolve() == run.folder.parents[1]
    overrides.append(f"run_dir={run_dir if is_there else run.folder.parents[1]}")
    if "experiment" in given:
        return load_config(None, overrides)
    config = run.config()
    # A small run is small already.
    kept = [each for each in overrides if not (config.smoke and each == "smoke=true")]
    return load_config(to_dict(config), kept)


@contextmanager
def resuming(config: Config, checkpoint: str = "last") -> Iterator[Resumption | None]:
    """Hold the run that `config.resume` means, so that nobody else goes on with it.

    Args:
        config: What it is to go on with.
        checkpoint: "last", "previous" or "best".

    Returns:
        How it goes on; None if a new run is meant.

    Raises:
        ConfigError: If other keys than `FREE` have another value than the run's.
        RunError: If there is no such run, it is running, or its checkpoint can't be read.
    """
    run = _find(config)
    if run is None:
        yield None
        return
    with locked(run.folder):
        yield _prepare(run, config, checkpoint)


def _find(config: Config) -> StoredRun | None:
    """The run that `config.resume` means; None if auto finds none like this one.

    Raises:
        RunError: If there is no run of that id.
    """
    if config.resume is None:
        return None
    if config.resume != "auto":
        return find_run(config.resume, run_dir=config.run_dir, uri=config.tracking.uri)
    wanted = _fixed(config)
    files = Path(config.run_dir, config.experiment).resolve().glob("*/config.yaml")
    for file in sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True):
        run = StoredRun(id=file.parent.name, folder=file.parent)
        try:
            values = flatten(run.values())
            may_be = all(values.get(key, each) == each for key, each in wanted.items())
            # Checking a configuration takes long, where there are thousands.
            if may_be and _fixed(run.config()) == wanted:
                return run
        except StatelabError:
            # A damaged folder, or one of another version, is no run like this one.
            continue
    return None


def _prepare(run: StoredRun, config: Config, checkpoint: str) -> Resumption:
    """Check that a run can go on, and clean up what was left half-written."""
    before = run.config()
    config = replace(config, resume=None)
    _refuse_changes(run, before, config)
    if RunStatus.read(run.folder).name == "FINISHED" and total_steps(config) == total_steps(before):
        file, step, is_finished = None, total_steps(config), True
    else:
        for each in (run.folder / "checkpoints").glob(".*.ckpt.*"):
            each.unlink()
        file, step = _checkpoint(run, checkpoint)
        is_finished = False
    if step > total_steps(config):
        raise ConfigError(
            f"run {run.id} has done {step} steps, and trainer.max_steps={total_steps(config)} is "
            f"less. Give {step} or more, or train without resume."
        )
    return Resumption(
        run=run,
        config=config,
        number=len(run.parts()),
        changes=_changes(before, config),
        checkpoint=file,
        step=step,
        is_finished=is_finished,
    )


def resume_command(run_id: str, config: Config) -> str:
    """What to type to go on with a run."""
    return shlex.join(("statelab", "train", f"resume={run_id}", *config.place()))


def _checkpoint(run: StoredRun, name: str) -> tuple[Path | None, int]:
    folder = run.folder / "checkpoints"
    if name == "last" and not any(folder.glob("*.ckpt")):
        return None, 0
    file = run.checkpoint(name)
    try:
        return file, steps_done(file)
    except UNREADABLE as error:
        raise RunError(
            f"checkpoint {file} can't be read: it is truncated, or not statelab's "
            f"({type(error).__name__}). {_others(folder, file)}"
        ) from error


def _others(folder: Path, damaged: Path) -> str:
    for name in ("last", "previous", "best"):
        file = folder / f"{name}.ckpt"
        if file != damaged:
            try:
                return f"checkpoint={name} goes on from step {steps_done(file)}."
            except UNREADABLE:
                continue
    return "The run has no other one: train it anew, without resume."


def _is_free(key: str) -> bool:
    return key in FREE or key.startswith("tags.")


def _fixed(config: Config) -> dict[str, Any]:
    """What can't change; how many processes share a batch can, as long as it is the same batch."""
    values = {key: each for key, each in flatten(to_dict(config)).items() if not _is_free(key)}
    return values | {" x ".join(_BATCH): math.prod(values.pop(key) for key in _BATCH)}


def _changes(before: Config, now: Config) -> dict[str, Any]:
    old, new = (flatten(to_dict(config)) for config in (before, now))
    keys = [key for key in (*new, *old) if key not in ("resume", "run_dir")]
    return {key: new.get(key) for key in keys if old.get(key) != new.get(key)}


def _refuse_changes(run: StoredRun, before: Config, now: Config) -> None:
    old, new = _fixed(before), _fixed(now)
    changed = [key for key in dict.fromkeys((*new, *old)) if old.get(key) != new.get(key)]
    if changed:
        differences = ", ".join(
            f"{key}={_said(new.get(key))} (the run has {_said(old.get(key))})" for key in changed
        )
        raise ConfigError(
            f"run {run.id} can't go on with {differences}. Leave that out, or train without "
            f"resume. Free to change are tags and {', '.join(FREE[2:])}."
        )


def _said(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
