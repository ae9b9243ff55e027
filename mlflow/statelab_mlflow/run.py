"""One tracked run, from its start to its end."""

from __future__ import annotations

import logging
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from statelab.errors import RunError
from statelab.tracking import METRICS, STATUS, Run, Status
from statelab_mlflow.journal import Journal, Sender
from statelab_mlflow.store import connect, one_line, reaching, store_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from statelab_mlflow.logger import JournalLogger

__all__ = ["MLflowRun", "resend"]

_LAST_SEND_SECONDS = 20.0

log = logging.getLogger(__name__)


class MLflowRun(Run):
    """A run of the store; nothing that the store does later can fail it.

    Args:
        client: Of the store.
        run_id: The run's, RUNNING.
        folder: The run's, which exists.
    """

    def __init__(self, client: MlflowClient, run_id: str, folder: Path) -> None:
        self.id = run_id
        self.folder = folder
        self._client = client
        self._journal = Journal(folder / METRICS, client, run_id)
        self._sender = Sender(self._journal)
        self._sender.start()

    @cached_property
    def logger(self) -> JournalLogger:
        """The logger that sends metrics by way of the journal."""
        from statelab_mlflow.logger import JournalLogger

        return JournalLogger(self._journal, self.folder)

    def log_artifact(self, file: Path, folder: str | None = None) -> None:
        """Copy the file to where the store keeps artifacts."""
        try:
            self._client.log_artifact(self.id, str(file), folder)
        except Exception as error:
            log.warning("%s is not in the tracking store: %s", file, one_line(error))

    def finish(self, status: Status, reason: str | None = None) -> None:
        """Send what is unsent, for 20 seconds at most, and set the run's end.

        The end is written into the run's folder first, so that `resend` knows it.
        """
        try:
            self._sender.close(_LAST_SEND_SECONDS)
        finally:
            # Also where a second Ctrl-C doesn't wait for the sending.
            self._end(status, reason)

    def _end(self, status: Status, reason: str | None) -> None:
        try:
            (self.folder / STATUS).write_text(f"{status} {reason or ''}".strip() + "\n")
            _end(self._client, self.id, status, reason)
        except Exception as error:
            log.warning("run %s is %s, unknown to the store: %s", self.id, status, one_line(error))


def resend(folder: Path | str, *, uri: str | None = None) -> None:
    """Send a run's whole journal and its end, after the store was away; twice is safe.

    Args:
        folder: The run's.
        uri: The store's; None as for `tracking.uri`.

    Raises:
        RunError: If the store can't be reached or doesn't know the run, or `folder` is none.
    """
    folder = Path(folder).resolve()
    if not (folder / METRICS).is_file():
        raise RunError(f"{folder} is not the folder of a tracked run: it holds no {METRICS}.")
    uri = store_uri(uri, folder.parents[1])
    client = connect(uri)
    with reaching(uri), closing(Journal(folder / METRICS, client, folder.name)) as journal:
        journal.send()
        if (folder / STATUS).exists():
            status, _, reason = (folder / STATUS).read_text().strip().partition(" ")
            _end(client, folder.name, status, reason)


def _end(client: MlflowClient, run_id: str, status: str, reason: str | None) -> None:
    if reason:
        client.set_tag(run_id, "statelab.reason", reason)
    client.set_terminated(run_id, status)
