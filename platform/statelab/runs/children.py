"""Processes of statelab that this one starts; they end with it, however it ends.

Each watches a pipe, its standard input, whose other end only the parent holds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

__all__ = ["end_with_parent", "last_words", "start_child"]


def start_child(
    arguments: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    *,
    stdout: int | IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start `python -m ARGUMENTS`, which has to call `end_with_parent`.

    Args:
        arguments: The module, and what it is given.
        log: A file to add to what it prints.
        environment: Variables beside this process's.
        stdout: Where its standard output goes; None is the log too.
    """
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=file if stdout is None else stdout,
            stderr=file,
            # A terminal's Ctrl-C reaches this process, which tells them.
            start_new_session=True,
        )


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Send this process a signal when the one that started it is gone."""

    def wait() -> None:
        # Not by way of sys.stdin, whose lock Python wants at exit.
        os.read(0, 1)
        os.kill(os.getpid(), number)

    threading.Thread(target=wait, name="statelab-parent", daemon=True).start()


def last_words(status: int, log: Path) -> str:
    """Why a child has ended with that status: the last line of its log, or the signal."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if status < 0:
        return f"{signal.Signals(-status).name} ({log})"
    return f"{lines[-1]} ({log})" if lines else f"ended without a word ({log})"
