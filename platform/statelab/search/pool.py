"""The processes that work on a study: started, watched, started again if they die, and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from statelab.errors import RunError
from statelab.runs.children import last_words, start_child

__all__ = ["NUMBER", "Pool"]

#: The environment variable that tells a worker its number.
NUMBER = "STATELAB_WORKER"

_POLL_SECONDS = 0.5


@dataclass
class Pool:
    """Runs one command in several processes until each has ended well.

    A process that dies is started again, a few times; one that says what is wrong ends all.

    Args:
        arguments: Of `statelab`.
        size: How many processes.
        logs: The folder for what they print.
        lives: How often each may be started.
    """

    arguments: Sequence[str]
    size: int
    logs: Path
    lives: int = 5
    _processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    _started: dict[int, int] = field(default_factory=dict)

    def run(self, watch: Callable[[], None]) -> list[str]:
        """Return when all have ended.

        Args:
            watch: Called again and again meanwhile.

        Returns:
            The last words of those that didn't end well.

        Raises:
            RunError: What one of them refuses its task for.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        failures: list[str] = []
        try:
            for number in range(self.size):
                self._start(number)
            while self._processes:
                watch()
                time.sleep(_POLL_SECONDS)
                failures += self._collect()
        finally:
            self._end()
        return failures

    def _start(self, number: int) -> None:
        self._started[number] = self._started.get(number, 0) + 1
        # More threads than cores make every one of them wait.
        threads = max(1, len(os.sched_getaffinity(0)) // self.size)
        environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
        self._processes[number] = start_child(
            ["statelab", *self.arguments],
            self._log(number),
            {**environment, NUMBER: str(number)},
        )

    def _collect(self) -> list[str]:
        """Take note of those that have ended; what to say of the failed ones."""
        failures = []
        for number, process in list(self._processes.items()):
            status = process.poll()
            if status is None:
                continue
            _close(self._processes.pop(number))
            if status == 0:
                continue
            if status != 2 and self._started[number] < self.lives:
                self._start(number)
                continue
            words = f"worker {number}: {last_words(status, self._log(number))}"
            if status == 2:
                raise RunError(words.replace("statelab: ", "", 1))
            failures.append(words)
        return failures

    def _end(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            process.wait()
            _close(process)
        self._processes.clear()

    def _log(self, number: int) -> Path:
        return self.logs / f"worker_{number}.log"


def _close(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe of one that has ended."""
    assert process.stdin is not None
    process.stdin.close()
