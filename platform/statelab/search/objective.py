"""One trial: its values make a configuration, which is trained as a run of the study."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optuna import Trial, TrialPruned

from statelab.errors import RunError, UnknownNameError, near_miss
from statelab.loading import load_config, to_dict
from statelab.runs.tracking import StudyTrial
from statelab.search.naming import trial_name
from statelab.search.patient import AWAY
from statelab.search.pruning import Pruner
from statelab.search.study import as_overrides
from statelab.search.tickets import CELL, INTERRUPTED, REASON, SKIPPED, WORKER, requeue
from statelab.signals import Pruned, Stopped
from statelab.sizes import Sizes, measure
from statelab.train import Result, train
from statelab.values import flatten

if TYPE_CHECKING:
    from statelab.config import Config
    from statelab.search.space import Space
    from statelab.search.turn import Turn

__all__ = ["RUN", "VALUES", "Halted", "Objective"]

#: Attributes of a trial: its run's id, and the keys that it sets.
RUN = "run_id"
VALUES = "values"


class Halted(KeyboardInterrupt):
    """A trial ended by its cause, which is no fault of the trial; Optuna lets this through."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What Optuna calls with a trial, in a process that has the study's turn.

    Attributes:
        space: What is varied.
        base: Arguments of the base, such as `experiment=mqar`.
        metrics: Whose values the trial ends with, sizes or logged.
        prunes: Whether a bad trial is stopped.
        study: The study's name.
        parent: The study's run; None if it is not tracked.
        worker: Names this process.
        turn: Is given back once the trial has its values.
    """

    space: Space
    base: Sequence[str]
    metrics: tuple[str, ...]
    prunes: bool
    study: str
    parent: str | None
    worker: str
    turn: Turn

    def __call__(self, trial: Trial) -> tuple[float, ...]:
        """The metrics of a trial.

        Raises:
            TrialPruned: If it was stopped early, or is skipped.
            Exception: What failed; the trial's attributes say why.
            Halted: If a signal has come, or no trial would do better; it is queued again.
        """
        # Before anybody else can look whether this process lives.
        trial.storage.record_heartbeat(trial._trial_id)  # type: ignore[attr-defined]
        trial.set_user_attr(WORKER, self.worker)
        try:
            config, sizes = self._prepare(trial)
            self.turn.give()
            result = self._train(trial, config)
            return tuple(_value(each, result, sizes) for each in self.metrics)
        except (Stopped, RunError, UnknownNameError) as error:
            trial.set_user_attr(INTERRUPTED, _first_line(error))
            requeue(trial.study, trial.storage.get_trial(trial._trial_id))
            raise Halted from error
        except (TrialPruned, *AWAY):
            # Without a reason, a trial counts as lost, and is repeated.
            raise
        except Pruned as pruned:
            raise TrialPruned(str(pruned)) from pruned
        except Exception as error:
            trial.set_user_attr(REASON, f"{type(error).__name__}: {_first_line(error)}")
            raise
        finally:
            self.turn.give()

    def _prepare(self, trial: Trial) -> tuple[Config, Sizes]:
        """Draw the trial's values, and look whether they may be trained."""
        values = trial.user_attrs.get(CELL)
        if values is None:
            # A grid's base may lack what its cells give.
            base = flatten(to_dict(load_config(None, self.base)))
            values = self.space.suggest(trial, base)
        trial.set_user_attr(VALUES, values)
        config = load_config(None, [*self.base, *as_overrides(values)])
        sizes = measure(config)
        known = {**flatten(to_dict(config)), **_numbers(sizes)}
        for constraint in self.space.constraints:
            if not constraint.holds(known):
                trial.set_user_attr(SKIPPED, str(constraint))
                raise TrialPruned(str(constraint))
        return config, sizes

    def _train(self, trial: Trial, config: Config) -> Result:
        result = train(
            config,
            progress=False,
            trial=StudyTrial(
                study=self.study,
                number=trial.number,
                parent=self.parent,
                name=trial_name(config, trial.user_attrs[VALUES]),
                started=lambda run_id: trial.set_user_attr(RUN, run_id),
                prune=Pruner(trial, self.metrics[0]) if self.prunes else None,
            ),
        )
        if result.received is not None:
            raise Stopped(result.received)
        return result


def _numbers(sizes: Sizes) -> dict[str, int]:
    found = {each.name: getattr(sizes, each.name) for each in dataclasses.fields(sizes)}
    return {name: each for name, each in found.items() if isinstance(each, int)}


def _value(metric: str, result: Result, sizes: Sizes) -> float:
    values = {**result.metrics, **_numbers(sizes)}
    if metric not in values:
        raise UnknownNameError(
            f"search.metric={metric}: no run logs it.{near_miss(metric, values)} There are: "
            f"{', '.join(sorted(values))}."
        )
    value = float(values[metric])
    if not math.isfinite(value):
        raise ArithmeticError(f"{metric} is {value}")
    return value


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
