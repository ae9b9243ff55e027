"""Remove runs: their folders, and what the tracking store shows of them."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

from statelab.errors import RunError
from statelab.runs.records import RunQuery, RunRecord, list_runs
from statelab.runs.tracking import tracker

__all__ = ["remove_run", "runs_to_remove"]


def runs_to_remove(query: RunQuery, *, run_dir: Path, uri: str | None) -> list[RunRecord]:
    """The runs that the query means; if it names an id, which may be short, the one.

    Raises:
        RunError: If the id means none or several, or one of the runs may still be running.
    """
    found = list_runs(query, run_dir=run_dir, uri=uri)
    if query.id and not found:
        raise RunError(f"run={query.id} is none of the runs of {run_dir.resolve()}.")
    if query.id and len(found) > 1:
        ids = ", ".join(sorted(run.id for run in found))
        raise RunError(f"run={query.id} begins {len(found)} runs: {ids}.")
    for run in found:
        if run.status == "RUNNING":
            place = "here" if run.host == socket.gethostname() else f"on {run.host}"
            raise RunError(
                f"run {run.id} is running {place}, as process {run.process}: nothing was removed. "
                "Stop it first, or leave it out."
            )
    return found


def remove_run(run: RunRecord, *, run_dir: Path, uri: str | None) -> None:
    """Delete a run in the store, then its folder, if that lies on this host.

    Raises:
        RunError: If the store can't be reached or the folder can't be deleted.
    """
    if run.tracked:
        tracker().remove(run.id, uri=uri, run_dir=run_dir)
    # The path may be the store's word: whatever it says, only a run's folder is deleted.
    if run.folder.name == run.id and (run.folder / "config.yaml").is_file():
        try:
            shutil.rmtree(run.folder)
        except OSError as error:
            raise RunError(
                f"folder {run.folder} can't be removed: {error.strerror} ({error.filename}). "
                "Remove it by hand."
            ) from error
