"""Ctrl-C and SIGTERM: a command is left at once; where something must be put right, it unwinds.

Neither prints a traceback. The exit status is the shell's, 128 + the signal: 130 and 143. In a
SLURM job the signal that asks for its requeueing is the third (`slurm.py`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from statelab.runs.slurm import REQUEUE, in_job

__all__ = ["Pruned", "Stopped", "deferring", "handling", "leave_on_signals", "unwinding"]

Handler = Callable[[int, FrameType | None], None]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SOON_SECONDS = 0.01


class Stopped(SystemExit):
    """A signal asked to stop; no `except Exception` holds it up, and it ends without a word.

    Args:
        number: Of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.received = signal.Signals(number)

    def __str__(self) -> str:
        return self.received.name


class Pruned(BaseException):
    """A search stops a trial that does worse than others; no `except Exception` holds it up.

    Args:
        step: The optimizer steps that were done.
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped at step {step}")


@contextmanager
def handling(handler: Handler) -> Iterator[None]:
    """Take the signals over, where that is possible: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = (*_SIGNALS, REQUEUE) if in_job() else _SIGNALS
    before = {each: signal.signal(each, handler) for each in taken}
    try:
        yield
    finally:
        for each, earlier in before.items():
            signal.signal(each, earlier)


def leave_on_signals() -> None:
    """Leave the process at once, from now on to its very end.

    An exception could be swallowed, or printed, by an import or by what Python does at exit.
    """
    for each in _SIGNALS:
        signal.signal(each, lambda number, frame: os._exit(128 + number))


@contextmanager
def unwinding() -> Iterator[None]:
    """Raise `Stopped`, so that what was begun is ended; a second signal cuts that short.

    Where Python lets no exception through, such as while it collects garbage, it comes right after.
    """
    before = sys.unraisablehook

    def take_up(lost: sys.UnraisableHookArgs) -> None:
        if isinstance(lost.exc_value, Stopped):
            # From another thread, since this one is still where nothing gets through.
            again = (os.getpid(), lost.exc_value.received)
            threading.Timer(_SOON_SECONDS, os.kill, again).start()
        else:
            before(lost)

    sys.unraisablehook = take_up
    try:
        with handling(_stop):
            yield
    finally:
        sys.unraisablehook = before


@contextmanager
def deferring() -> Iterator[None]:
    """Raise `Stopped` after the block, which would leave something half done; a second one now.

    Raises:
        Stopped: At the end, unless the block raises something else.
    """
    received: list[int] = []

    def wait(number: int, frame: FrameType | None) -> None:
        if received:
            raise Stopped(number)
        received.append(number)

    with handling(wait):
        yield
    if received:
        raise Stopped(received[0])


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)
