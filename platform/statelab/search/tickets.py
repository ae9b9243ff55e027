"""The queue of a study: exactly as many trials as were asked for, whatever dies in between.

A trial that ends is finished, if it counts: it was trained to its end, pruned, or failed by what it
is. It is skipped, if a constraint forbids its size; interrupted, if something else than the trial
stopped it, such as a signal; lost, if its process died. Those three don't count and are made up
for; a lost one is repeated so many times at most, and counts then.

Everything here is called by whoever has the study's turn.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optuna.exceptions import ExperimentalWarning
from optuna.storages import RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState

from statelab.errors import ConfigError

if TYPE_CHECKING:
    from optuna import Study

__all__ = [
    "CELL",
    "INTERRUPTED",
    "REASON",
    "SKIPPED",
    "WORKER",
    "drop_surplus",
    "fail_lost",
    "finished",
    "has_open",
    "queue_cells",
    "queue_trials",
    "requeue",
]

#: Attributes of a trial. Who runs it, which is noted first of all.
WORKER = "worker"
#: Why it failed.
REASON = "reason"
#: Which constraint its sizes break.
SKIPPED = "skipped"
#: What stopped it.
INTERRUPTED = "interrupted"
#: What it sets, in a grid.
CELL = "cell"

_OPEN = (TrialState.WAITING, TrialState.RUNNING)
_SKIPS_A_TRIAL = 100


def finished(study: Study) -> list[FrozenTrial]:
    """The trials that count."""
    trials = study.get_trials(deepcopy=False)
    repeated = _repeated(trials)
    return [
        each
        for each in trials
        if each.state == TrialState.COMPLETE
        or (each.state == TrialState.PRUNED and SKIPPED not in each.user_attrs)
        or (
            each.state == TrialState.FAIL
            and INTERRUPTED not in each.user_attrs
            and each.number not in repeated
        )
    ]


def has_open(study: Study, state: TrialState) -> bool:
    """Whether a trial is WAITING, or RUNNING in a process of any host."""
    return bool(study.get_trials(deepcopy=False, states=(state,)))


def queue_trials(study: Study, total: int, points: Sequence[Mapping[str, Any]] = ()) -> None:
    """Fill the queue up, so that so many trials will be finished.

    Args:
        study: The study.
        total: How many there are to be in all.
        points: What the first ones of a new study are.

    Raises:
        ConfigError: If constraints skip nearly everything that is drawn.
    """
    trials = study.get_trials(deepcopy=False)
    skipped = [each for each in trials if SKIPPED in each.user_attrs]
    if len(skipped) > _SKIPS_A_TRIAL * total:
        raise ConfigError(
            f"{len(skipped)} draws broke the constraint {skipped[-1].user_attrs[SKIPPED]}: it "
            "leaves next to nothing of the space. Loosen it, or narrow the parameters."
        )
    missing = total - len(finished(study)) - sum(each.state in _OPEN for each in trials)
    first = [] if trials else [dict(each) for each in points]
    for i in range(missing):
        study.enqueue_trial(first[i] if i < len(first) else {})


def drop_surplus(study: Study, total: int) -> None:
    """Take out of the queue what an earlier call wanted beyond so many trials."""
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    _withdraw(study, waiting[max(0, total - len(finished(study)) - len(running)) :])


def queue_cells(study: Study, cells: Sequence[Mapping[str, str]]) -> None:
    """Queue each cell of a grid that is neither done, nor at work, nor queued; drop all others."""
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    _withdraw(study, [each for each in waiting if each.user_attrs.get(CELL) not in cells])
    states = (*_OPEN, TrialState.COMPLETE)
    known = [each.user_attrs.get(CELL) for each in study.get_trials(deepcopy=False, states=states)]
    for cell in cells:
        if cell not in known:
            study.enqueue_trial({}, user_attrs={CELL: dict(cell)})


def requeue(study: Study, trial: FrozenTrial) -> None:
    """Queue an interrupted trial again."""
    study.enqueue_trial(dict(trial.params), user_attrs=_task(trial))


def fail_lost(study: Study, retries: int, end: Callable[[], None]) -> None:
    """Fail the trials whose processes died, and queue them again.

    Args:
        study: The study.
        retries: How often a trial is repeated.
        end: Is called if there are any, before they are repeated.
    """
    with warnings.catch_warnings():
        # Optuna's of the heartbeat.
        warnings.simplefilter("ignore", ExperimentalWarning)
        repeat = RetryHeartbeatStaleTrialCallback(max_retry=retries)
        fail_stale_trials(study)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if WORKER not in trial.user_attrs:
            # It would be noted, as nobody else has the turn: its process died as it began.
            study.tell(trial.number, state=TrialState.FAIL)
    failed = study.get_trials(deepcopy=False, states=(TrialState.FAIL,))
    repeated = _repeated(study.get_trials(deepcopy=False))
    lost = [
        each
        for each in failed
        if not each.user_attrs.keys() & {REASON, INTERRUPTED}
        and each.number not in repeated
        and len(each.system_attrs.get("retry_history", ())) < retries
    ]
    if lost:
        end()
    for trial in map(copy.deepcopy, lost):
        trial.user_attrs = _task(trial)
        repeat(study, trial)


def _withdraw(study: Study, trials: Sequence[FrozenTrial]) -> None:
    for trial in trials:
        study._storage.set_trial_user_attr(trial._trial_id, INTERRUPTED, "not wanted any more")
        study._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)


def _task(trial: FrozenTrial) -> dict[str, Any]:
    """What a trial is given before it begins."""
    return {key: each for key, each in trial.user_attrs.items() if key == CELL}


def _repeated(trials: Sequence[FrozenTrial]) -> set[int]:
    """Numbers of the lost trials that were queued again."""
    return {number for each in trials for number in each.system_attrs.get("retry_history", ())}
