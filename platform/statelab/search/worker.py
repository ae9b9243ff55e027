"""A process that takes trial after trial of a study, until none is left."""

from __future__ import annotations

import logging
import os
import socket
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from statelab.search.config import SearchConfig
from statelab.search.objective import Objective
from statelab.search.storage import make_pruner, make_sampler
from statelab.search.tickets import fail_lost, has_open

__all__ = ["Worker", "worker_name"]

_POLL_SECONDS = 1.0
_PATIENCE_SECONDS = 300.0

log = logging.getLogger(__name__)


def worker_name() -> str:
    """This process, among those of all hosts."""
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(frozen=True, kw_only=True)
class Worker:
    """Takes trials as long as there are any, or a trial of another process may come back.

    A storage that is away for a while is waited for.

    Attributes:
        search: Sampler, pruner and retries.
        number: Of this process among those of its call; its draws depend on it.
        study: The study, connected.
        objective: Runs a trial.
        refill: Called with the study at each turn, to queue what is missing.
        end_run: Ends the run of a trial whose process died.
    """

    search: SearchConfig
    number: int
    study: optuna.Study
    objective: Objective
    refill: Callable[[optuna.Study], None]
    end_run: Callable[[FrozenTrial], None]

    def work(self) -> None:
        """Return when nothing is left to do.

        Raises:
            Interrupted: If a signal stopped a trial.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        last_answer = time.monotonic()
        while True:
            try:
                if self._take_one():
                    return
                last_answer = time.monotonic()
            except (SQLAlchemyError, StorageInternalError) as error:
                if time.monotonic() - last_answer > _PATIENCE_SECONDS:
                    raise
                log.warning("the study's storage doesn't answer: %s", _first_line(error))
            time.sleep(_POLL_SECONDS)

    def _take_one(self) -> bool:
        """Run a trial if one is waiting; whether nothing is left to wait for."""
        turn = self.objective.turn
        with turn.taken():
            study = self.study
            fail_lost(study, self.search.retries, self.end_run)
            self.refill(study)
            if not has_open(study, TrialState.WAITING):
                return not has_open(study, TrialState.RUNNING)
            study.sampler = make_sampler(
                self.search.sampler, self.search.sampler_options, self._seed(study)
            )
            study.pruner = make_pruner(self.search.pruner, self.search.pruner_options)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                study.optimize(self.objective, n_trials=1, catch=(Exception,))
        return False

    def _seed(self, study: optuna.Study) -> int:
        """Another one for each trial: a sampler that starts again repeats its first draws."""
        trials = len(study.get_trials(deepcopy=False))
        entropy = np.random.SeedSequence([self.search.seed, trials, self.number])
        return int(entropy.generate_state(1)[0])


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
