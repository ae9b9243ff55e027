"""The tracker: opens runs, finds their folders, and shows them."""

from __future__ import annotations

import getpass
import json
import logging
import os
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from statelab.config import Config, TrackingConfig
from statelab.errors import RunError, UnknownNameError
from statelab.registries import trackers
from statelab.runs.records import LoggedRun, RunQuery
from statelab.runs.status import LOST, TAGS, Status, write_end
from statelab.runs.tracking import METRICS, USUAL_ADDRESS, Place, Tracker, Unsent, make_folder
from statelab.signals import deferring
from statelab_mlflow.journal import Journal
from statelab_mlflow.links import View, comparison, run_page
from statelab_mlflow.outbox import Outbox
from statelab_mlflow.run import MLflowRun
from statelab_mlflow.search import find_runs, folder_of, read_history
from statelab_mlflow.server import pages_of, serve, show_pages, view_page
from statelab_mlflow.store import (
    address,
    connect,
    experiment_id,
    is_absent,
    is_server,
    local_uri,
    one_line,
    public,
    reaching,
    recorded_uri,
    store_uri,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = ["MLflowTracker"]

log = logging.getLogger(__name__)


@trackers.register("mlflow", config=TrackingConfig)
class MLflowTracker(Tracker):
    """Records runs in MLflow: in a database file of `run_dir`, or on a team's server."""

    def start(
        self,
        place: Place,
        *,
        name: str,
        params: Mapping[str, str | int | float | bool | None],
        tags: Mapping[str, str],
        description: str,
        parent: str | None = None,
    ) -> MLflowRun:
        """Open a new run with status RUNNING and make its folder."""
        from mlflow.entities import Param, RunTag

        experiment = Path(place.run_dir).resolve() / place.experiment
        make_folder(experiment, place.run_dir)
        wanted = store_uri(place.tracking.uri, Path(place.run_dir))
        uri = _reachable(wanted, Path(place.run_dir)) if place.tracking.offline else wanted
        if uri != wanted:
            tags = {**tags, "offline": public(wanted)}
        client = connect(uri)
        with reaching(uri):
            # MLflow puts a run's files into `<artifact_location>/<run_id>/artifacts`: so they lie
            # in the run's folder, unless a server keeps them.
            where = experiment_id(
                client,
                place.tracking.experiment or place.experiment,
                artifact_location=None if is_server(uri) else experiment.as_uri(),
            )
            run = None
            try:
                # A run that was made, but that nobody has in hand, would be RUNNING for ever.
                with deferring():
                    given = {"mlflow.user": _user(), **_place(experiment), **tags}
                    if parent is not None:
                        given["mlflow.parentRunId"] = parent
                    run = client.create_run(where, run_name=name, tags=given)
                    folder = experiment / run.info.run_id
                folder.mkdir()
                own_tags = {"mlflow.note.content": description, **_place(folder)}
                client.log_batch(
                    run.info.run_id,
                    params=[Param(key, _text(value)) for key, value in params.items()],
                    tags=[RunTag(key, value) for key, value in own_tags.items()],
                )
                return MLflowRun(client, run.info.run_id, folder, public(uri))
            except BaseException as error:
                if run is not None:
                    status: Status = "FAILED" if isinstance(error, Exception) else "KILLED"
                    if folder.is_dir():
                        write_end(folder, status, str(error))
                    client.set_terminated(run.info.run_id, status)
                raise

    def resume(
        self, config: Config, *, folder: Path, step: int, tags: Mapping[str, str]
    ) -> MLflowRun:
        """Open a run again, with status RUNNING; the last end is forgotten."""
        from mlflow.entities import RunTag

        recorded = recorded_uri(Outbox(folder).sent.store, folder.parents[1])
        # A run that began without its server goes on without it.
        uri = recorded if config.tracking.offline else config.tracking.uri or recorded
        run_id = folder.name
        if is_absent(uri):
            raise _unknown(run_id, uri)
        with reaching(uri):
            client = connect(uri)
            known = _known_run(client, run_id, uri)
            if known.info.lifecycle_stage == "deleted":
                raise RunError(
                    f"run {run_id} was removed from the tracking store {public(uri)}. Restore it "
                    f"with `mlflow runs restore --run-id {run_id}`, or train anew without resume."
                )
            for name in known.data.tags.keys() & {*TAGS, "statelab.reason"}:
                client.delete_tag(run_id, name)
            new = [RunTag(name, value) for name, value in {**tags, **_place(folder)}.items()]
            client.log_batch(run_id, tags=new)
            # A run that is RUNNING, but that nobody has in hand, would be so for ever.
            with deferring():
                client.update_run(run_id, status="RUNNING")
                return MLflowRun(client, run_id, folder, public(uri), step)

    def folder_of(self, run_id: str, *, uri: str | None, run_dir: Path) -> Path | None:
        """The folder of a recorded run, or None if the store doesn't know it."""
        from mlflow.exceptions import MlflowException

        uri = store_uri(uri, run_dir)
        if is_absent(uri):
            return None
        with reaching(uri):
            try:
                return folder_of(connect(uri).get_run(run_id))
            except MlflowException as error:
                if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    raise
                return None

    def find_logged(self, query: RunQuery, *, uri: str | None, run_dir: Path) -> list[LoggedRun]:
        """The recorded runs that fit the query, in its order; of a store that isn't there, none."""
        uri = store_uri(uri, run_dir)
        if is_absent(uri):
            return []
        with reaching(uri):
            return find_runs(connect(uri), query, run_dir)

    def histories(
        self, run_ids: Iterable[str], metric: str, *, uri: str | None, run_dir: Path
    ) -> dict[str, dict[int, float]]:
        """A metric of several runs, value by step in the order of steps; a request a run."""
        uri = store_uri(uri, run_dir)
        with reaching(uri):
            client = connect(uri)
            return {run_id: read_history(client, run_id, metric) for run_id in run_ids}

    def sync(self, folder: Path, *, uri: str | None) -> Unsent:
        """Send what the store lacks of a run that has ended; twice is safe."""
        if not (folder / METRICS).is_file():
            raise RunError(f"{folder} is not the folder of a tracked run: it holds no {METRICS}.")
        outbox = Outbox(folder)
        unsent = outbox.unsent()
        if not unsent:
            return unsent
        uri = uri or recorded_uri(outbox.sent.store, folder.parents[1])
        if is_absent(uri):
            raise _unknown(folder.name, uri)
        with reaching(uri):
            client = connect(uri)
            _known_run(client, folder.name, uri)
            outbox.send(client)
        return unsent

    def add(
        self, folder: Path, *, metrics: Mapping[str, float], step: int, files: Mapping[Path, str]
    ) -> None:
        """Record more of a run that has ended, whose status stays as it is."""
        journal = Journal(folder / METRICS)
        journal.append(metrics, step)
        journal.close()
        outbox = Outbox(folder)
        for file, place in files.items():
            outbox.add(file, place)
        self.sync(folder, uri=None)

    def end_lost(self, run_id: str, *, uri: str | None, run_dir: Path) -> None:
        """Mark a run KILLED whose process is gone, on whichever host that was."""
        uri = store_uri(uri, run_dir)
        with reaching(uri):
            client = connect(uri)
            client.set_tag(run_id, LOST, "true")
            client.set_terminated(run_id, "KILLED")

    def remove(self, run_id: str, *, uri: str | None, run_dir: Path) -> None:
        """Mark a run as deleted; `mlflow gc` wipes what is marked."""
        uri = store_uri(uri, run_dir)
        with reaching(uri):
            connect(uri).delete_run(run_id)

    def serve(
        self,
        *,
        uri: str | None,
        run_dir: Path,
        host: str,
        port: int,
        experiment: str | None,
        study: str | None,
        browser: bool,
    ) -> None:
        """Show the recorded runs in a browser until interrupted; prints the address."""
        uri = store_uri(uri, run_dir)
        if is_server(uri):
            root = address(uri)
            typer.echo(f"statelab UI at {root}")
            with reaching(uri):
                show_pages(root, pages_of(connect(uri), root, experiment, study), browser)
        else:
            serve(uri, run_dir.resolve(), host, port, experiment, study, browser)

    def comparison_pages(
        self,
        run_id: str,
        compared: Sequence[str],
        *,
        metric: str,
        descending: bool,
        study: str | None,
        uri: str | None,
        run_dir: Path,
    ) -> dict[str, str]:
        """The comparison's run, the runs best first, their curves, and some side by side."""
        uri = store_uri(uri, run_dir)
        root = address(uri) if is_server(uri) else "http://{}:{}".format(*USUAL_ADDRESS)
        with reaching(uri):
            client = connect(uri)
            own, *others = (client.get_run(each).info.experiment_id for each in (run_id, *compared))
            theirs = others[0] if others else own
            best = View(sort=metric, descending=descending, study=study)
            pages = {
                "this comparison": run_page(root, own, run_id),
                "best first": view_page(client, root, theirs, best),
                "curves": view_page(client, root, theirs, replace(best, charts=True)),
            }
        if len(compared) > 1:
            pages["side by side"] = comparison(root, [*dict.fromkeys(others)], compared)
        return pages


def _reachable(uri: str, run_dir: Path) -> str:
    """The store's URI if it answers, else that of the database in `run_dir`."""
    try:
        with reaching(uri):
            connect(uri).search_experiments(max_results=1)
    except RunError as error:
        why = one_line(error.__cause__ or error)
        log.warning(
            "the tracking store %s can't be used: %s The run is recorded in %s and stays there.",
            public(uri),
            why,
            local_uri(run_dir),
        )
        return local_uri(run_dir)
    return uri


def _known_run(client: MlflowClient, run_id: str, uri: str) -> Run:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise _unknown(run_id, uri) from error


def _unknown(run_id: str, uri: str) -> UnknownNameError:
    return UnknownNameError(
        f"the tracking store {public(uri)} has no run {run_id}. Name the one that has with "
        "tracking.uri=URI."
    )


def _place(folder: Path) -> dict[str, str]:
    """Tags: where a run is and by what it is trained."""
    return {
        "mlflow.source.name": Path(sys.argv[0]).name,
        "statelab.folder": str(folder),
        "statelab.host": socket.gethostname(),
        "statelab.pid": str(os.getpid()),
    }


def _text(value: str | int | float | bool | None) -> str:
    """A value as YAML writes it: null, true, 0.1."""
    return value if isinstance(value, str) else json.dumps(value)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a number without a name.
        return str(os.getuid())
