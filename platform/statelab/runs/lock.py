"""One process a run: a lock that the system takes back from a process that dies."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from statelab.errors import RunError

__all__ = ["locked"]

log = logging.getLogger(__name__)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep every other process from training the run of that folder.

    Raises:
        RunError: If another one does, naming it, or if the folder can't be written.
    """
    name = folder / "lock"
    try:
        file = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise RunError(
            f"run {folder.name} can't be continued: {name} can't be written: {error.strerror}."
        ) from error
    with open(file, "r+", encoding="utf-8") as lock:
        _take(lock.fileno(), folder, lock.read().strip())
        lock.truncate(0)
        lock.seek(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        lock.flush()
        yield


def _take(lock: int, folder: Path, holder: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RunError(
            f"run {folder.name} is running, as {holder or 'another process'}. Stop it first, or "
            "wait for its end."
        ) from error
    except OSError as error:
        # Some network file systems have no locks; training there is no mistake.
        log.warning("%s: no lock (%s): don't continue this run twice.", folder, error.strerror)
