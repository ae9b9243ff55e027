"""The thread that sends what a run has to tell, while it trains and at its end."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from statelab_mlflow.outbox import Outbox
from statelab_mlflow.store import one_line

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["Sender"]

_SEND_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 30.0
_RETRY_SECONDS = 1.0  # while a run waits for its end

log = logging.getLogger(__name__)


class Sender(threading.Thread):
    """Sends a run's outbox until it is closed; one that is never closed stops no exit.

    Args:
        outbox: What to send.
        client: Of the store.
    """

    def __init__(self, outbox: Outbox, client: MlflowClient) -> None:
        super().__init__(name="statelab-sender", daemon=True)
        self.refusal: str | None = None
        self._outbox = outbox
        self._client = client
        self._closing = threading.Event()
        self._done = threading.Event()
        self._deadline = 0.0

    def run(self) -> None:
        """Send now and then, less often while the store is away, and for the last time."""
        pause = _SEND_SECONDS
        while not self._closing.wait(pause):
            pause = _SEND_SECONDS if self._sends() else min(2 * pause, _LONGEST_PAUSE_SECONDS)
        while not self._sends() and time.monotonic() < self._deadline:
            time.sleep(_RETRY_SECONDS)
        self._done.set()

    def close(self, seconds: float) -> None:
        """Send the rest, for so long at most.

        A store that accepts a call and never answers can't be asked to hurry: it is left.
        """
        self._deadline = time.monotonic() + seconds
        self._closing.set()
        # A `join` that a signal interrupts takes the thread for ended.
        self._done.wait(seconds)

    def _sends(self) -> bool:
        try:
            self._outbox.send(self._client)
        except Exception as error:
            # Whatever it is, training goes on, and the folder keeps what was not sent.
            is_news = self.refusal is None and not self._closing.is_set()
            self.refusal = one_line(error)
            if is_news:
                log.warning(
                    "the tracking store doesn't take what the run sends: %s It waits in %s.",
                    self.refusal,
                    self._outbox.folder,
                )
            return False
        self.refusal = None
        return True
