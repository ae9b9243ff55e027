"""Metrics on their way to the store, which may be slow or away.

The training thread appends to a file in the run's folder and goes on; another one sends what the
file holds beyond the part already sent (`outbox.py`). So an outage costs no step and no metric.
"""

from __future__ import annotations

import json
import posixpath
import re
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from statelab.errors import ConfigError
from statelab.runs.metric_history import cut_off_half_a_line

__all__ = ["Journal", "count_rows", "read_rows"]


class Journal:
    """The metrics of one run, a JSON line each: key, value, timestamp in milliseconds, step.

    One thread may append while another reads.

    Args:
        file: Where to write; appended to if it exists.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._names: set[str] = set()
        # Unbuffered: a line that `append` has written survives the process.
        self._writer = file.open("ab", buffering=0)
        cut_off_half_a_line(file)

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

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def read_rows(file: Path, start: int, most: int) -> tuple[list[dict[str, Any]], int]:
    """The next rows of a journal, with the bytes read until then.

    Args:
        file: The journal.
        start: How many bytes to leave out.
        most: How many rows to read.
    """
    with file.open("rb") as reader:
        reader.seek(start)
        # The last line may be half-written still.
        lines = [row for row in islice(reader, most) if row.endswith(b"\n")]
    return [json.loads(line) for line in lines], start + sum(map(len, lines))


def count_rows(file: Path, start: int) -> int:
    """The number of rows beyond the first `start` bytes."""
    with file.open("rb") as reader:
        reader.seek(start)
        return sum(row.endswith(b"\n") for row in reader)


def _check_name(name: str) -> None:
    parts_are_plain = posixpath.normpath(name) == name and not name.startswith(("/", ".."))
    if not (re.fullmatch(r"[\w/. :-]{1,250}", name) and parts_are_plain and name != "."):
        raise ConfigError(
            f"a metric can't be named {name!r}. Use up to 250 letters, digits, spaces and _ - . : "
            "with single slashes between parts, as in 'val/accuracy/kv_8'."
        )
