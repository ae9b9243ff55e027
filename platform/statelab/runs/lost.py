"""Runs that died without a word, by SIGKILL or a power cut: whoever meets one marks it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from statelab.errors import StatelabError
from statelab.runs.status import LOST, RunStatus, is_gone, write_end
from statelab.runs.tracking import METRICS, tracker

if TYPE_CHECKING:
    from statelab.runs.records import RunRecord

__all__ = ["mark_all_lost", "mark_lost", "mark_stillborn"]

log = logging.getLogger(__name__)


def mark_all_lost(run_dir: Path) -> None:
    """Mark the lost runs of a folder of runs, as `mark_lost` does."""
    mark_lost(file.parent for file in run_dir.glob("*/*/status"))


def mark_lost(folders: Iterable[Path]) -> bool:
    """Mark each run KILLED that has died on this host, in its folder and in the store.

    Args:
        folders: The runs'.

    Returns:
        Whether there were any.
    """
    lost = [(each, status) for each in folders if (status := RunStatus.read(each)).is_lost(each)]
    for folder, status in lost:
        log.warning("run %s was lost: process %s is gone.", folder.name, status.process)
        try:
            write_end(folder, "KILLED", f"{LOST}: process {status.process} was gone")
            if (folder / METRICS).exists():
                tracker().sync(folder, uri=None)
        except (OSError, StatelabError) as error:
            log.warning("run %s can't be marked: %s", folder.name, error)
    return bool(lost)


def mark_stillborn(runs: Iterable[RunRecord], *, uri: str | None, run_dir: Path) -> bool:
    """Mark each run KILLED in the store whose process died here before it had a journal to send.

    Args:
        runs: Of the store.
        uri: The store's.
        run_dir: Where the store is, if `uri` is None.

    Returns:
        Whether there were any.
    """
    dead = [
        run
        for run in runs
        if run.status == "RUNNING"
        and is_gone(run.host, run.process)
        # The same name may be another host's, with other folders.
        and run.folder.parent.is_dir()
        and not (run.folder / METRICS).exists()
    ]
    for run in dead:
        log.warning("run %s was lost: process %s is gone.", run.id, run.process)
        tracker().end_lost(run.id, uri=uri, run_dir=run_dir)
    return bool(dead)
