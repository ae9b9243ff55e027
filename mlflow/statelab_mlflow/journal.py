"""Metrics on their way to the store, which may be slow or away.

The training thread appends to a file in the run's folder and goes on; a second thread sends what
the file holds beyond the part already sent. So an outage costs no step, no metric and no memory,
and sending a part twice is safe, because MLflow keeps rows that are equal in all four fields once.
"""

from __future__ import annotations

import json
import logging
import posixpath
import re
import threading
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from statelab.errors import ConfigError
from statelab_mlflow.store import one_line

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["Journal", "Sender"]

_SEND_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 30.0
_RETRY_SECONDS = 1.0  # while a run waits for its end
_ROWS_PER_CALL = 1000  # MLflow's limit

log = logging.getLogger(__name__)


class Journal:
    """The metrics of one run, a JSON line each: key, value, timestamp in milliseconds, step.

    One thread may append while another sends.

    Args:
        file: Where to write; appended to if it exists.
        client: Of the store.
        run_id: The run's.
    """

    def __init__(self, file: Path, client: MlflowClient, run_id: str) -> None:
        self.file = file
        self._client = client
        self._run_id = run_id
        self._names: set[str] = set()
        self._sent_bytes = 0
        # Unbuffered: a line that `append` has written survives the process.
        self._writer = file.open("ab", buffering=0)

    def append(self, metrics: Mapping[str, float], step: int) -> None:
        """Write the metrics of a step; NaN and infinities are metrics too.

        Raises:
            ConfigError: If MLflow would refuse a name.
        """
        for name in metrics.keys() - self._names:
            _check_name(name)
            self._names.add(name)
        timestamp = time.time_ns() // 1_000_000
        rows = [
            {"key": name, "value": float(value), "timestamp": timestamp, "step": step}
            for name, value in metrics.items()
        ]
        self._writer.write("".join(f"{json.dumps(row)}\n" for row in rows).encode())

    def send(self) -> None:
        """Send all that this object hasn't sent yet; raises what the store raises."""
        from mlflow.entities import Metric

        with self.file.open("rb") as reader:
            reader.seek(self._sent_bytes)
            # The last line may be half-written still.
            while lines := [row for row in islice(reader, _ROWS_PER_CALL) if row.endswith(b"\n")]:
                metrics = [Metric(**json.loads(line)) for line in lines]
                self._client.log_batch(self._run_id, metrics=metrics)
                self._sent_bytes += sum(map(len, lines))

    def unsent(self) -> int:
        """The number of rows not sent yet."""
        with self.file.open("rb") as reader:
            reader.seek(self._sent_bytes)
            return sum(1 for _ in reader)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class Sender(threading.Thread):
    """The thread that sends a journal until it is closed; one that is never closed stops no exit.

    Args:
        journal: What to send.
    """

    def __init__(self, journal: Journal) -> None:
        super().__init__(name="statelab-metrics", daemon=True)
        self._journal = journal
        self._closing = threading.Event()
        self._deadline = 0.0
        self._refusal: str | None = None

    def run(self) -> None:
        """Send now and then, less often while the store is away, and for the last time."""
        pause = _SEND_SECONDS
        while not self._closing.wait(pause):
            pause = _SEND_SECONDS if self._sends() else min(2 * pause, _LONGEST_PAUSE_SECONDS)
        while not self._sends() and time.monotonic() < self._deadline:
            time.sleep(_RETRY_SECONDS)

    def close(self, seconds: float) -> None:
        """Send the rest; after `seconds` leave it in the journal, and say so.

        Args:
            seconds: How long to try.
        """
        self._deadline = time.monotonic() + seconds
        self._closing.set()
        self.join(seconds)
        if unsent := self._journal.unsent():
            log.warning(
                "%d metric values are not in the tracking store, but kept in %s. %s Send them "
                "later with statelab_mlflow.resend(%r).",
                unsent,
                self._journal.file,
                self._refusal or "It doesn't answer.",
                str(self._journal.file.parent),
            )
        self._journal.close()

    def _sends(self) -> bool:
        try:
            self._journal.send()
        except Exception as error:
            # Whatever it is, training goes on, and the journal keeps the rows.
            is_news = self._refusal is None and not self._closing.is_set()
            self._refusal = one_line(error)
            if is_news:
                log.warning(
                    "the tracking store doesn't take metrics: %s They wait in %s.",
                    self._refusal,
                    self._journal.file,
                )
            return False
        self._refusal = None
        return True


def _check_name(name: str) -> None:
    parts_are_plain = posixpath.normpath(name) == name and not name.startswith(("/", ".."))
    if not (re.fullmatch(r"[\w/. :-]{1,250}", name) and parts_are_plain and name != "."):
        raise ConfigError(
            f"a metric can't be named {name!r}. Use up to 250 letters, digits, spaces and _ - . : "
            "with single slashes between parts, as in 'val/accuracy/kv_8'."
        )
