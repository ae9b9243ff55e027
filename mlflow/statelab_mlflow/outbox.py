"""What the store lacks of a run, and how it gets there.

The run's folder is the truth: its metrics, its files, its status. `sent.json` in it says how much
of that the store has. Sending a part twice is safe, because MLflow keeps rows that are equal in all
four fields once, and files, tags and the status replace their like.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from statelab.runs.status import RunStatus
from statelab.runs.tracking import METRICS, Unsent
from statelab_mlflow.journal import count_rows, read_rows

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["Outbox", "Sent"]

_SENT = "sent.json"
_MOST_ROWS = 1000  # MLflow's limit for a call
_FEWEST_ROWS = 20

log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class Sent:
    """How much of a run its store has.

    Attributes:
        store: The store's URI.
        metrics: Bytes of the journal.
        files: Those that the store lacks: each with the folder of artifacts that it belongs to.
        end: When the status was written that the store has, nanoseconds since 1970.
    """

    store: str = ""
    metrics: int = 0
    files: list[tuple[str, str | None]] = field(default_factory=list)
    end: int = 0

    @classmethod
    def read(cls, folder: Path) -> Sent:
        """As a run's folder says; without a word, nothing is sent."""
        try:
            known = json.loads((folder / _SENT).read_text(encoding="utf-8"))
            return cls(**known | {"files": [(file, place) for file, place in known["files"]]})
        except (OSError, ValueError, TypeError, KeyError):
            return cls()

    def write(self, folder: Path) -> None:
        """Replace what the folder says; on a full disk the old word stays, which is safe."""
        with suppress(OSError):
            aside = folder / f".{_SENT}"
            aside.write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")
            os.replace(aside, folder / _SENT)


class Outbox:
    """Sends what a run's folder holds and its store lacks.

    Args:
        folder: The run's, with a journal.
        store: The store's URI, for those who send the rest later.
    """

    def __init__(self, folder: Path, store: str | None = None) -> None:
        self.folder = folder
        self.sent = Sent.read(folder)
        self._rows = _MOST_ROWS
        self._lock = threading.Lock()
        if store is not None:
            self.sent.store = store
            self.sent.write(folder)

    def add(self, file: Path, place: str | None) -> None:
        """Send a file too.

        Args:
            file: The file, which stays where it is.
            place: The folder of artifacts that it belongs to.
        """
        with self._lock:
            self.sent.files.append((str(file), place))
            self.sent.write(self.folder)

    def unsent(self) -> Unsent:
        """What the store lacks; the end of a run that runs is not lacking."""
        return Unsent(
            metrics=count_rows(self.folder / METRICS, self.sent.metrics),
            files=len(self.sent.files),
            end=self._end() is not None,
        )

    def send(self, client: MlflowClient) -> None:
        """Send all of it; raises what the store raises."""
        self._send_metrics(client)
        self._send_end(client)
        self._send_files(client)

    def _send_metrics(self, client: MlflowClient) -> None:
        from mlflow.entities import Metric

        while True:
            rows, read = read_rows(self.folder / METRICS, self.sent.metrics, self._rows)
            if not rows:
                return
            try:
                client.log_batch(self.folder.name, metrics=[Metric(**row) for row in rows])
            except Exception:
                # A slow server answers in time if it is asked for less.
                self._rows = max(self._rows // 4, _FEWEST_ROWS)
                raise
            self._rows = min(2 * self._rows, _MOST_ROWS)
            with self._lock:
                self.sent.metrics = read
                self.sent.write(self.folder)

    def _send_end(self, client: MlflowClient) -> None:
        status = self._end()
        if status is None:
            return
        run_id = self.folder.name
        if status.tag:
            client.set_tag(run_id, status.tag, "true")
        if status.reason:
            client.set_tag(run_id, "statelab.reason", status.reason)
        client.set_terminated(run_id, status.name, end_time=status.written // 1_000_000)
        with self._lock:
            self.sent.end = status.written
            self.sent.write(self.folder)

    def _send_files(self, client: MlflowClient) -> None:
        """Send file after file; one that is refused comes last the next time."""
        for _ in range(len(self.sent.files)):
            file, place = self.sent.files[0]
            try:
                if Path(file).is_file():
                    client.log_artifact(self.folder.name, file, place)
                else:
                    log.warning("%s is not in the tracking store: it is gone.", file)
            except Exception:
                with self._lock:
                    self.sent.files.append(self.sent.files.pop(0))
                raise
            with self._lock:
                self.sent.files.pop(0)
                self.sent.write(self.folder)

    def _end(self) -> RunStatus | None:
        """How the run ended, where the store doesn't know it."""
        status = RunStatus.read(self.folder)
        ended = status.name != "RUNNING" and status.written
        return status if ended and status.written != self.sent.end else None
