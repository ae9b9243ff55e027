"""Optuna's database, waited for while it is away: no trial of hours ends with a connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from statelab.errors import RunError

__all__ = ["AWAY", "PatientStorage", "patiently"]

#: What Optuna and the turn raise while the database is away.
AWAY = (StorageInternalError, SQLAlchemyError)

T = TypeVar("T")

_PATIENCE_SECONDS = 300.0
_PAUSE_SECONDS = 1.0


class PatientStorage(RDBStorage):
    """An `RDBStorage` in which what a running trial asks for is tried again for five minutes."""

    def record_heartbeat(self, trial_id: int) -> None:
        """One beat may be missed; an exception would end Optuna's thread, and all further ones."""
        with suppress(StorageInternalError):
            super().record_heartbeat(trial_id)

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """Write how a trial ended."""
        return patiently(
            lambda: super(PatientStorage, self).set_trial_state_values(trial_id, state, values)
        )

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Write an attribute of a trial."""
        patiently(lambda: super(PatientStorage, self).set_trial_user_attr(trial_id, key, value))

    def set_trial_intermediate_value(
        self, trial_id: int, step: int, intermediate_value: float
    ) -> None:
        """Write what a trial reports."""
        patiently(
            lambda: super(PatientStorage, self).set_trial_intermediate_value(
                trial_id, step, intermediate_value
            )
        )

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Read a trial."""
        return patiently(lambda: super(PatientStorage, self).get_trial(trial_id))


def patiently(ask: Callable[[], T]) -> T:
    """What `ask` returns, asked again for five minutes while the database is away."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except (*AWAY, RunError) as error:
            is_away = isinstance(error, AWAY) or isinstance(error.__cause__, AWAY)
            if not is_away or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
