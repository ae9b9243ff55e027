"""Whose turn it is: the lock under which a study's trials are counted, queued and claimed.

Optuna's own claims are not atomic on SQLite, and on any storage a worker that finds no trial in
the queue makes a new one. So a process takes the turn before it looks, and gives it back when it
has its trial. The system frees the lock of a process that dies.
"""

from __future__ import annotations

import fcntl
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

__all__ = ["FileTurn", "PostgresTurn", "Turn"]


class Turn(ABC):
    """A lock that one process of all has."""

    @abstractmethod
    def take(self) -> None:
        """Wait for the turn."""

    @abstractmethod
    def give(self) -> None:
        """Let the next one; does nothing if this process hasn't the turn."""

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have the turn for a block, or until `give` in it."""
        self.take()
        try:
            yield
        finally:
            self.give()


class FileTurn(Turn):
    """The lock of a file, for the processes of one host.

    Args:
        file: Is made if it isn't there.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._handle: IO[str] | None = None

    def take(self) -> None:
        """Wait for the turn."""
        self._handle = self._file.open("w")
        fcntl.flock(self._handle, fcntl.LOCK_EX)

    def give(self) -> None:
        """Let the next one."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None


class PostgresTurn(Turn):
    """An advisory lock of the database, for the processes of all hosts.

    Args:
        engine: Of the database.
        name: What the turn is for.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._key = zlib.crc32(name.encode())
        self._connection: Connection | None = None

    def take(self) -> None:
        """Wait for the turn."""
        connection = self._engine.connect()
        try:
            # Outside a transaction: an idle one would hold the database's clean-up back.
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.exec_driver_sql(f"SELECT pg_advisory_lock({self._key})")
        except BaseException:
            connection.invalidate()
            connection.close()
            raise
        self._connection = connection

    def give(self) -> None:
        """Let the next one; the connection ends, and the lock with it."""
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None
