"""Send later what runs couldn't send while their tracking store was away."""

from __future__ import annotations

import logging
from pathlib import Path

from statelab.errors import RunError, UnknownNameError
from statelab.runs.lost import mark_lost
from statelab.runs.status import RunStatus
from statelab.runs.tracking import METRICS, Unsent, tracker

__all__ = ["sync_runs"]

log = logging.getLogger(__name__)


def sync_runs(ids: list[str], *, run_dir: Path, uri: str | None) -> dict[str, Unsent | None]:
    """Send what the store lacks of runs that have ended; those that run send by themselves.

    Args:
        ids: How the runs' ids begin; an empty one means all runs.
        run_dir: The folder of the runs.
        uri: The store; None is the one that each was recorded in.

    Returns:
        What was sent, by run id; None of a run that its store doesn't know.

    Raises:
        RunError: If an id means no run, or a store can't be reached.
    """
    found = {each: sorted(run_dir.glob(f"*/{each}*/{METRICS}")) for each in ids}
    for each, files in found.items():
        if each and not files:
            raise RunError(f"run={each} is none of the tracked runs of {run_dir.resolve()}.")
    sent: dict[str, Unsent | None] = {}
    for folder in dict.fromkeys(
        file.parent.resolve() for files in found.values() for file in files
    ):
        mark_lost([folder])
        if RunStatus.read(folder).name == "RUNNING":
            continue
        try:
            sent[folder.name] = tracker().sync(folder, uri=uri)
        except UnknownNameError as error:
            log.warning("%s", error)
            sent[folder.name] = None
    return sent
