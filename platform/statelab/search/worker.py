"""A process that takes trial after trial of a study, until none is left."""

from __future__ import annotations

import logging
import os
import socket
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from statelab.errors import RunError
from statelab.search.config import SearchConfig
from statelab.search.objective import Halted, Objective
from statelab.search.patient import AWAY
from statelab.search.storage import make_pruner, make_sampler
from statelab.search.tickets import fail_lost, has_open

__all__ = ["Worker", "worker_name"]

_POLL_SECONDS = 1.0
_PAUSE_SECONDS = 10.0
_PATIENCE_SECONDS = 300.0

log = logging.getLogger(__name__)


def worker_name() -> str:
    """This process, among those of all hosts."""
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(kw_only=True)
class Worker:
    """Takes trials as long as there are any, or a trial of another process may come back.

    What the study or its runs are kept in may be away, or full, for a while: that is waited for.

    Attributes:
        search: Sampler, pruner and retries.
        study: The study, connected.
        objective: Runs a trial.
        refill: Called with the study at each turn, to queue what is missing.
        end_runs: Ends the runs of trials whose processes died.
    """

    search: SearchConfig
    study: optuna.Study
    objective: Objective
    refill: Callable[[optuna.Study], None]
    end_runs: Callable[[], None]
    _sampler: BaseSampler | None = field(default=None, init=False)

    def work(self) -> None:
        """Return when nothing is left to do.

        Raises:
            Stopped: If a signal stopped a trial, which is queued again.
            StatelabError: If no trial can be run, whatever it sets.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.study.pruner = make_pruner(self.search.pruner, self.search.pruner_options)
        last_success = time.monotonic()
        while True:
            try:
                if self._take_one():
                    return
                last_success = time.monotonic()
            except (*AWAY, Halted) as error:
                cause = error.__cause__ if isinstance(error, Halted) else error
                assert cause is not None
                late = time.monotonic() - last_success > _PATIENCE_SECONDS
                if late or not isinstance(cause, (*AWAY, RunError)):
                    raise cause from None
                log.warning("trial after trial can't be run: %s", str(cause).partition("\n")[0])
                time.sleep(_PAUSE_SECONDS)

    def _take_one(self) -> bool:
        """Run a trial if one is waiting; whether nothing is left to wait for."""
        study = self.study
        with self.objective.turn.taken():
            fail_lost(study, self.search.retries, self.end_runs)
            self.refill(study)
            if has_open(study, TrialState.WAITING):
                study.sampler = self._sampler = self._sampler or self._new_sampler()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ExperimentalWarning)
                    self._optimize()
                return False
            if not has_open(study, TrialState.RUNNING):
                return True
        time.sleep(_POLL_SECONDS)
        return False

    def _optimize(self) -> None:
        try:
            self.study.optimize(self.objective, n_trials=1, catch=(Exception,))
        except UnboundLocalError as error:
            # Optuna stumbles so over what ends a trial while its end is being written.
            raise error.__context__ or error from None

    def _new_sampler(self) -> BaseSampler:
        """With a seed that no other worker of the study has: the turn lets one begin at a time."""
        trials = self.study.get_trials(deepcopy=False)
        begun = sum(each.state != TrialState.WAITING for each in trials)
        seed = np.random.SeedSequence([self.search.seed, begun]).generate_state(1)[0]
        return make_sampler(self.search.sampler, self.search.sampler_options, int(seed))
