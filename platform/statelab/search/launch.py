"""Work on a study: plan it, fill its queue, run its workers, and sum it up."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from statelab.runs.children import end_with_parent
from statelab.search.objective import RUN, VALUES, Objective
from statelab.search.patient import AWAY, patiently
from statelab.search.pool import Pool
from statelab.search.record import end_stray_runs, open_record
from statelab.search.storage import reaching
from statelab.search.study import PARENT, Plan, open_study
from statelab.search.tickets import (
    CELL,
    REASON,
    drop_surplus,
    finished,
    queue_cells,
    queue_trials,
)
from statelab.search.worker import Worker, worker_name
from statelab.signals import Stopped, unwinding

__all__ = ["Outcome", "run_study", "work"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of a study.

    Attributes:
        study: Its name.
        run_id: Of its run; None if it is not tracked.
        total: How many trials were asked for.
        counts: Finished trials by how they ended: complete, pruned, fail.
        best: The best trial, or the Pareto front: number, values, run and what it set.
        cells: All trials of a grid that are complete, likewise; empty for a search.
        failed: What failed, with its reason.
        messages: What workers said that gave up.
        files: What was written about the study.
    """

    study: str
    run_id: str | None
    total: int
    counts: dict[str, int]
    best: list[dict[str, Any]]
    cells: list[dict[str, Any]]
    failed: list[dict[str, Any]]
    messages: list[str]
    files: list[Path]

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return asdict(self) | {"files": [str(each) for each in self.files]}

    @property
    def exit_status(self) -> int:
        """1 if anything of a grid failed, or not all that was asked for is done."""
        return int(bool(self.messages) or sum(self.counts.values()) < self.total)


def run_study(
    plan: Plan, arguments: Sequence[str], watch: Callable[[list[FrozenTrial]], None]
) -> Outcome:
    """Do what is left of a plan.

    Args:
        plan: The plan.
        arguments: Of the command that makes the same plan, for the workers.
        watch: Called again and again with the finished trials.

    Raises:
        StatelabError: If the study or its store can't be used.
    """

    def look() -> None:
        # A database that is away is the workers' to wait for.
        with suppress(*AWAY):
            watch(_done(plan, study))

    with unwinding():
        with reaching(plan.url), plan.turn.taken():
            study = open_study(plan)
            record = open_record(plan, study)
            _queue(plan, study)
        try:
            messages = Pool(arguments, plan.search.workers, plan.folder).run(look)
            outcome = _outcome(plan, study, messages, record.write(study))
        except Stopped as stopped:
            record.close("KILLED", stopped.received.name)
            raise
        except BaseException as error:
            record.close("FAILED", f"{type(error).__name__}: {error}")
            raise
        record.close("FAILED" if outcome.exit_status else "FINISHED", "; ".join(messages) or None)
    return outcome


def work(plan: Plan) -> None:
    """Take the plan's trials in this process, which `run_study` has started."""
    with unwinding():
        end_with_parent()
        study = patiently(lambda: _connect(plan))
        objective = Objective(
            space=plan.space,
            base=plan.base,
            metrics=plan.search.metric,
            prunes=plan.search.pruner != "none",
            study=plan.study,
            parent=study.user_attrs.get(PARENT),
            worker=worker_name(),
            turn=plan.turn,
        )
        Worker(
            search=plan.search,
            study=study,
            objective=objective,
            refill=lambda study: _refill(plan, study),
            end_runs=lambda: end_stray_runs(plan, study),
        ).work()


def _connect(plan: Plan) -> optuna.Study:
    with reaching(plan.url), plan.turn.taken():
        return open_study(plan)


def _queue(plan: Plan, study: optuna.Study) -> None:
    """Queue what this call asks for, and nothing else."""
    if plan.cells is None:
        drop_surplus(study, plan.total)
        queue_trials(study, plan.total, plan.space.enqueue)
    else:
        queue_cells(study, plan.cells)


def _refill(plan: Plan, study: optuna.Study) -> None:
    """Make up for trials that don't count; a cell that fails stays so until the next call."""
    if plan.cells is None:
        queue_trials(study, plan.total)


def _done(plan: Plan, study: optuna.Study) -> list[FrozenTrial]:
    """The finished trials; of a grid the last of each cell."""
    trials = finished(study)
    if plan.cells is None:
        return trials
    last = {_name(each.user_attrs.get(CELL)): each for each in trials}
    return [last[name] for name in map(_name, plan.cells) if name in last]


def _name(cell: object) -> str:
    return json.dumps(cell, sort_keys=True)


def _outcome(plan: Plan, study: optuna.Study, messages: list[str], files: list[Path]) -> Outcome:
    done = _done(plan, study)
    failed = [each for each in done if each.state == TrialState.FAIL]
    counted = [each for each in done if plan.cells is None or each.state == TrialState.COMPLETE]
    states = [each.state.name.lower() for each in counted]
    best = study.best_trials if any(each.state == TrialState.COMPLETE for each in done) else []
    return Outcome(
        study=plan.study,
        run_id=study.user_attrs.get(PARENT),
        total=plan.total,
        counts={state: states.count(state) for state in sorted(set(states))},
        best=[_told(plan, each) for each in best],
        cells=[] if plan.cells is None else [_told(plan, each) for each in counted],
        failed=[
            {
                "trial": each.number,
                "sets": each.user_attrs.get(VALUES) or each.user_attrs.get(CELL) or {},
                "reason": each.user_attrs.get(REASON, "its process died"),
            }
            for each in failed
        ],
        messages=messages,
        files=files,
    )


def _told(plan: Plan, trial: FrozenTrial) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "values": dict(zip(plan.search.metric, trial.values, strict=True)),
        "run_id": trial.user_attrs.get(RUN),
        "sets": trial.user_attrs.get(VALUES, {}),
    }
