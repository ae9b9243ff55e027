"""One tracked run, from its start to its end."""

from __future__ import annotations

import logging
import os
import shlex
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from statelab.runs.metric_history import Recorded
from statelab.runs.status import Status, write_end, write_start
from statelab.runs.tracking import METRICS, Run
from statelab.signals import Stopped, deferring
from statelab_mlflow.journal import Journal
from statelab_mlflow.outbox import Outbox
from statelab_mlflow.sender import Sender

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from statelab_mlflow.logger import JournalLogger

__all__ = ["MLflowRun"]

_LAST_SEND_SECONDS = 20.0
_HASTY_SEND_SECONDS = 2.0

log = logging.getLogger(__name__)


class MLflowRun(Run):
    """A run of the store; nothing that the store does later can fail or hold it.

    Args:
        client: Of the store.
        run_id: The run's, RUNNING.
        folder: The run's, which exists.
        store: The store's URI, without a password.
        step: The optimizer steps that are done.
    """

    def __init__(
        self, client: MlflowClient, run_id: str, folder: Path, store: str, step: int = 0
    ) -> None:
        self.id = run_id
        self.folder = folder
        self.step = step
        write_start(folder)
        self._journal = Journal(folder / METRICS)
        self._outbox = Outbox(folder, store)
        self._sender = Sender(self._outbox, client)
        self._sender.start()

    @cached_property
    def logger(self) -> JournalLogger:
        """The logger that sends metrics by way of the journal."""
        from statelab_mlflow.logger import JournalLogger

        return JournalLogger(self._journal, self.folder, Recorded(self.folder, self.step))

    def log_artifact(self, file: Path, folder: str | None = None) -> None:
        """Have the file copied to where the store keeps artifacts."""
        self._outbox.add(file, folder)

    def finish(self, status: Status, reason: str | None = None) -> None:
        """Write the run's end, and send it with all that is unsent, for 20 seconds at most."""
        try:
            with deferring():
                self._write_end(status, reason)
            self._sender.close(_LAST_SEND_SECONDS)
        except Stopped:
            self._sender.close(_HASTY_SEND_SECONDS)
            raise
        finally:
            self._journal.close()
            self._say_what_is_unsent()

    def _write_end(self, status: Status, reason: str | None) -> None:
        try:
            write_end(self.folder, status, reason)
        except OSError as error:
            log.warning("run %s is %s, which can't be written: %s.", self.id, status, error)

    def _say_what_is_unsent(self) -> None:
        unsent = self._outbox.unsent()
        if unsent:
            run_dir = self.folder.parents[1]
            here = [] if run_dir == Path(os.getcwd(), "runs") else [f"run_dir={run_dir}"]
            log.warning(
                "the tracking store lacks %s; all is kept in %s. %s Send it later with: %s",
                unsent,
                self.folder,
                self._sender.refusal or "The store doesn't answer.",
                shlex.join(("statelab", "runs", "sync", f"run={self.id}", *here)),
            )
