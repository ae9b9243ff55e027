"""Open a run, for the first time or again, and write down what it is made with."""

from __future__ import annotations

from statelab.config import Config
from statelab.loading import to_dict
from statelab.runs.environment import write_environment
from statelab.runs.naming import describe_run, pair_name, run_name
from statelab.runs.resume import Resumption
from statelab.runs.stored import write_config
from statelab.runs.tracking import LocalRun, Run, StudyTrial, tracker
from statelab.sizes import Sizes
from statelab.values import flatten

__all__ = ["describe", "open_run", "pair_name"]


def open_run(
    config: Config, sizes: Sizes, resumption: Resumption | None, trial: StudyTrial | None
) -> Run:
    """A new run, a study's perhaps, or the one that goes on, with status RUNNING.

    Raises:
        RunError: If the folder can't be made, or the store can't be reached.
    """
    if not config.tracking.enabled:
        if resumption is None:
            return LocalRun.start(config)
        return LocalRun.resume(resumption.run.folder, step=resumption.step)
    if resumption is not None:
        return tracker().resume(
            config,
            folder=resumption.run.folder,
            step=resumption.step,
            tags={**config.tags, **resumption.tags},
        )
    own = {"study": trial.study, "trial": str(trial.number)} if trial else {}
    return tracker().start(
        config,
        name=trial.name if trial else run_name(config),
        params=flatten(to_dict(config)),
        tags={
            "write": config.model.write.name,
            "read": config.model.read.name,
            "data": config.data.name,
            "seed": str(config.seed),
            "parameters": str(sizes.parameters),
            "state_bytes": str(sizes.state_bytes),
            "memory_bytes": str(sizes.memory_bytes),
            **config.tags,
            **own,
            "kind": "train",
        },
        parent=trial.parent if trial else None,
        description=describe_run(config, sizes),
    )


def describe(config: Config, run: Run, resumption: Resumption | None) -> None:
    """Write what defines the run into its folder; what it goes on with stands beside that."""
    place = f"resumes/{resumption.number}" if resumption else None
    folder = run.folder / place if place else run.folder
    folder.mkdir(parents=True, exist_ok=True)
    # The configuration comes last: with it, the part is there.
    for file in (*write_environment(folder), write_config(config, folder)):
        run.log_artifact(file, place)
