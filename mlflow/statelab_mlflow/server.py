"""`statelab ui`: MLflow's server over the store, for as long as someone looks."""

from __future__ import annotations

import errno
import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

import typer

from statelab.errors import RunError
from statelab.signals import deferring, unwinding
from statelab_mlflow.links import View, publish, runs_page
from statelab_mlflow.search import find_experiment, newest_study
from statelab_mlflow.store import connect, reaching

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["pages_of", "serve", "show_pages", "view_page"]

_START_SECONDS = 120.0
_STOP_SECONDS = 10.0


def serve(
    uri: str,
    run_dir: Path,
    host: str,
    port: int,
    experiment: str | None,
    study: str | None,
    browser: bool,
) -> None:
    """Run the server over a database until Ctrl-C or SIGTERM.

    Args:
        uri: The store's.
        run_dir: Where files go that are uploaded through the server.
        host: The address to listen on.
        port: The port to listen on.
        experiment: Whose page to show; None is that of the study, or of the newest run.
        study: Whose curves to show; None is the experiment's newest.
        browser: Whether to open it.

    Raises:
        RunError: If the port is taken, the store can't be used, or the server fails.
        Stopped: At the signal.
    """
    _check_port(host, port)
    root = f"http://{host}:{port}"
    with reaching(uri):
        pages = pages_of(connect(uri), root, experiment, study)
    typer.echo("MLflow's server starts, which takes some seconds.", err=True)
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port)]
    command += ["--backend-store-uri", uri, "--artifacts-destination", str(run_dir)]
    command += ["--workers", "1"]
    with (
        unwinding(),
        tempfile.TemporaryFile("w+") as output,
        _process_group(command, output) as server,
    ):
        _wait_until_healthy(server, host, port, output)
        typer.echo(f"statelab UI at {root}  (Ctrl-C stops it)")
        show_pages(root, pages, browser)
        server.wait()
        raise RunError(f"the MLflow server ended by itself: {_last_line(output)}")


def pages_of(
    client: MlflowClient, root: str, experiment: str | None, study: str | None = None
) -> dict[str, str]:
    """The pages to look at first, an address by what it shows; none before the first run.

    Args:
        client: Of the store.
        root: The server's address.
        experiment: Whose; None is that of the study, or of the newest run.
        study: Which one's trials come best first, with their curves; None is the experiment's
            newest, of which only the curves are apart.

    Raises:
        RunError: If there is no experiment or study of that name.
    """
    found = find_experiment(client, experiment, study)
    if found is None:
        return {}
    views = {found.name: View(), "best first": View(sort="val/loss", study=study)}
    study = study or newest_study(client, found.experiment_id)
    if study is not None:
        views[f"curves of {study}"] = View(sort="val/loss", study=study, charts=True)
    return {
        name: view_page(client, root, found.experiment_id, view) for name, view in views.items()
    }


def view_page(client: MlflowClient, root: str, experiment_id: str, view: View) -> str:
    """A view of an experiment's runs, which is kept with it for its columns.

    Args:
        client: Of the store.
        root: The server's address.
        experiment_id: MLflow's id of the experiment.
        view: What of it.
    """
    return runs_page(root, experiment_id, view, _key(client, experiment_id, view))


def show_pages(root: str, pages: Mapping[str, str], browser: bool) -> None:
    """Print the addresses of pages; open a browser at the first one, or at the server's own."""
    for name, address in pages.items():
        typer.echo(f"{name}: {address}")
    if browser:
        screen = sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
        # Without a screen, webbrowser would start one that takes the terminal over.
        if not (screen and webbrowser.open(next(iter(pages.values()), root))):
            typer.echo("No browser can be opened here: open the address yourself.", err=True)


def _key(client: MlflowClient, experiment_id: str, view: View) -> str | None:
    """A view's key; None for who may only read, and has no columns then."""
    from mlflow.exceptions import MlflowException

    try:
        return publish(client, experiment_id, view)
    except MlflowException as error:
        if error.error_code != "PERMISSION_DENIED":
            raise
        return None


def _check_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        # A port that a server has just left counts as free, as it does for MLflow's.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            reason = "it is taken" if taken else error
            raise RunError(
                f"port {port} of {host} can't be used: {reason}. Choose another, as in "
                f"`statelab ui port=5001`."
            ) from error


@contextmanager
def _process_group(command: list[str], output: IO[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a group of its own, all of which is gone at the end."""
    # Without this MLflow starts seven more processes, for jobs that nobody here submits.
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    leader = None
    try:
        with deferring():
            leader = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        yield leader
    finally:
        if leader is not None:
            _end_group(leader)


def _end_group(leader: subprocess.Popen[bytes]) -> None:
    """Ask the group to end; after ten seconds, or at a second Ctrl-C, end it."""
    try:
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(leader.pid, signal.SIGTERM)
            leader.wait(_STOP_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)
        leader.wait()


def _wait_until_healthy(
    server: subprocess.Popen[bytes], host: str, port: int, output: IO[str]
) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not _healthy(host, port):
        if server.poll() is not None or time.monotonic() > deadline:
            raise RunError(f"the MLflow server doesn't start: {_last_line(output)}")
        time.sleep(0.2)


def _healthy(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _last_line(output: IO[str]) -> str:
    output.seek(0)
    return (output.read().strip() or "it says nothing.").splitlines()[-1]
