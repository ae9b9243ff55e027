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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO

import typer

from statelab.errors import RunError
from statelab_mlflow.store import connect, is_server

__all__ = ["serve"]

_START_SECONDS = 120.0
_STOP_SECONDS = 10.0


def serve(uri: str, run_dir: Path, host: str, port: int) -> None:
    """Run the server until Ctrl-C or SIGTERM; of a server that runs elsewhere, say where.

    Args:
        uri: The store's.
        run_dir: Where files go that are uploaded through the server.
        host: The address to listen on.
        port: The port to listen on.

    Raises:
        RunError: If the port is taken, the store can't be used, or the server fails.
    """
    if is_server(uri):
        typer.echo(f"statelab UI at {uri}")
        return
    _check_port(host, port)
    typer.echo("MLflow's server starts, which takes some seconds.", err=True)
    connect(uri)
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port)]
    command += ["--backend-store-uri", uri, "--artifacts-destination", str(run_dir)]
    command += ["--workers", "1"]
    with (
        suppress(KeyboardInterrupt),
        _sigterm_interrupts(),
        tempfile.TemporaryFile("w+") as output,
        _process_group(command, output) as server,
    ):
        _wait_until_healthy(server, host, port, output)
        typer.echo(f"statelab UI at http://{host}:{port}  (Ctrl-C stops it)")
        server.wait()
        raise RunError(f"the MLflow server ended by itself: {_last_line(output)}")


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
def _sigterm_interrupts() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, so that the server is stopped in both cases."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _process_group(command: list[str], output: IO[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a group of its own, all of which is gone at the end."""
    # Without this MLflow starts seven more processes, for jobs that nobody here submits.
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    leader = subprocess.Popen(
        command, stdout=output, stderr=output, env=environment, start_new_session=True
    )
    try:
        yield leader
    finally:
        with suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                leader.wait(_STOP_SECONDS)
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
