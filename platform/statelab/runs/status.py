"""Whether a run runs or how it ended, as its folder says, tracked or not.

The file `status` has one line, `RUNNING host process birth`, or how the run ended with the reason.
A thread touches the file `heartbeat` as long as the process lives. What is gone without a word is
seen from its own host only: there the process is missing, and the heartbeat is old.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

__all__ = [
    "LOST",
    "PRUNED",
    "REQUEUED",
    "TAGS",
    "RunStatus",
    "Status",
    "beating",
    "is_gone",
    "write_end",
    "write_start",
]

Status = Literal["FINISHED", "FAILED", "KILLED"]

#: A reason may begin with one of these, which the tracking store has as a tag too.
LOST, REQUEUED, PRUNED = "lost", "requeued", "pruned"
TAGS = (LOST, REQUEUED, PRUNED)

_STATUS = "status"
_HEARTBEAT = "heartbeat"
_BEAT_SECONDS = 15.0
_LOST_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStatus:
    """What the file says.

    Attributes:
        name: RUNNING, FINISHED, FAILED or KILLED.
        reason: Of the end; it may begin with a tag and a colon.
        host: Where it runs; None after its end.
        process: Its process there.
        birth: When the process began, since a number is given again.
        written: When the file was written, nanoseconds since 1970.
    """

    name: str
    reason: str = ""
    host: str | None = None
    process: int | None = None
    birth: str | None = None
    written: int = 0

    @classmethod
    def read(cls, folder: Path) -> RunStatus:
        """The status of a run's folder; a run that couldn't even write its start was killed."""
        file = folder / _STATUS
        try:
            line = file.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
            written = file.stat().st_mtime_ns
        except OSError:
            return cls(name="KILLED")
        name, _, rest = line.partition(" ")
        if name in get_args(Status):
            return cls(name=name, reason=rest, written=written)
        host, process, birth = (*rest.split(), "", "", "")[:3]
        if not process.isdigit():
            # A power cut may leave half a line.
            return cls(name="KILLED", reason=LOST, written=written)
        return cls(name=name, host=host, process=int(process), birth=birth or None, written=written)

    @property
    def tag(self) -> str | None:
        """The tag that the reason begins with."""
        first = self.reason.partition(":")[0]
        return first if first in TAGS else None

    def is_lost(self, folder: Path) -> bool:
        """Whether the run of that folder calls itself RUNNING, but has died on this host."""
        if self.name != "RUNNING" or self.host != socket.gethostname() or not self.process:
            return False
        birth = _birth(self.process)
        alive = birth is not None and self.birth in (None, birth)
        return not alive and time.time() - self._last_beat(folder) > _LOST_SECONDS

    def _last_beat(self, folder: Path) -> float:
        with suppress(OSError):
            return (folder / _HEARTBEAT).stat().st_mtime
        return self.written / 1e9


def is_gone(host: str | None, process: int | None) -> bool:
    """Whether that process was one of this host, and runs no more."""
    return host == socket.gethostname() and process is not None and _birth(process) is None


@contextmanager
def beating(folder: Path) -> Iterator[None]:
    """Show that this process, which runs the run of that folder, lives."""
    ended = threading.Event()

    def beat() -> None:
        # Whatever happens to the folder, the run goes on.
        with suppress(OSError):
            (folder / _HEARTBEAT).touch()
        while not ended.wait(_BEAT_SECONDS):
            with suppress(OSError):
                (folder / _HEARTBEAT).touch()

    threading.Thread(target=beat, name="statelab-heartbeat", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def write_start(folder: Path) -> None:
    """Write that this process runs the run, for the first time or again."""
    _write(folder, f"RUNNING {socket.gethostname()} {os.getpid()} {_birth(os.getpid()) or ''}")


def write_end(folder: Path, status: Status, reason: str | None = None) -> None:
    """Write how the run ended.

    Raises:
        OSError: If the folder can't be written; what was written before stays.
    """
    _write(folder, f"{status} {reason or ''}")


def _write(folder: Path, words: str) -> None:
    # Over the old line, whose room is there on a full disk too.
    file = os.open(folder / _STATUS, os.O_WRONLY | os.O_CREAT, 0o666)
    with open(file, "wb") as writer:
        writer.write(f"{' '.join(words.split())}\n".encode())
        writer.truncate()


def _birth(process: int) -> str | None:
    """When a process began, in clock ticks; None if it is gone, or the system doesn't tell."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else fields[18]
