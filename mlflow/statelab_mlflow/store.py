"""The store of runs: which one it is, how it is reached, and its experiments.

MLflow is imported inside functions, here and in the whole package: that takes seconds, and a
command that records nothing shouldn't wait for it. Only its client is used, never the `mlflow.*`
functions, which keep a current run for the whole process.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import sqlite3
import tempfile
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from statelab.errors import RunError

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = [
    "address",
    "connect",
    "experiment_id",
    "is_absent",
    "is_server",
    "local_uri",
    "one_line",
    "public",
    "reaching",
    "recorded_uri",
    "store_uri",
]

# Whose words are worth more than those of who handed them on.
_SYSTEM = (OSError, sqlite3.Error)

# MLflow's own defaults wait minutes for a server that is away, log each migration, print to
# stdout, where `--json` prints, and report what users do. What the user has set stays. MLflow
# reads some of this when it is imported, so it is set when this module is.
for _name, _value in {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}.items():
    os.environ.setdefault(_name, _value)

# These log a traceback or a line for each failed attempt; statelab says it once, in one line.
for _name in ("mlflow.store.db.utils", "urllib3.connectionpool"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


def store_uri(uri: str | None, run_dir: Path) -> str:
    """The store's URI: the given one, MLFLOW_TRACKING_URI, or a database in `run_dir`."""
    return uri or os.environ.get("MLFLOW_TRACKING_URI") or local_uri(run_dir)


def local_uri(run_dir: Path) -> str:
    """The URI of the database in a folder of runs."""
    return f"sqlite:///{run_dir.resolve() / 'mlflow.db'}"


def recorded_uri(recorded: str, run_dir: Path) -> str:
    """The URI that a run's folder names, where it still leads somewhere; else that of `run_dir`.

    A folder names no password, and a database file may have been moved together with it.
    """
    if not recorded or ":***@" in recorded or is_absent(recorded):
        return store_uri(None, run_dir)
    return recorded


def is_server(uri: str) -> bool:
    """Whether an MLflow server answers there, which keeps the artifacts too."""
    return uri.startswith(("http://", "https://"))


def is_absent(uri: str) -> bool:
    """Whether the store is a database file that nothing has written yet."""
    file = _file_of(uri)
    return file is not None and not file.exists()


def connect(uri: str) -> MlflowClient:
    """A client of the store; a database gets its tables if it has none.

    Raises:
        RunError: If a database can't be opened, written, or read by this MLflow. A server is
            not asked yet.
    """
    with reaching(uri), warnings.catch_warnings():
        # SQLAlchemy's, of a loader that MLflow's tables use.
        warnings.simplefilter("ignore", DeprecationWarning)
        from mlflow import MlflowClient

        if not uri.startswith(("sqlite", "postgresql", "mysql", "mssql")):
            return MlflowClient(uri)
        with _alone(uri):
            if is_absent(uri):
                _make_database(uri)
            _check_database(uri)
            return MlflowClient(uri)


def experiment_id(client: MlflowClient, name: str, artifact_location: str | None) -> str:
    """The experiment of that name, made if there is none.

    Args:
        client: Of the store.
        name: The experiment's.
        artifact_location: Where a new one keeps its runs' files; None leaves it to the server.

    Raises:
        RunError: If it was deleted.
    """
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(name, artifact_location=artifact_location)
        except MlflowException:
            # Another process may have been faster.
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        raise RunError(
            f"MLflow's experiment {name!r} was deleted. Restore it with `mlflow experiments "
            f"restore --experiment-id {found.experiment_id}`, or choose another name with "
            "tracking.experiment=NAME."
        )
    return found.experiment_id


@contextmanager
def reaching(uri: str) -> Iterator[None]:
    """Say in one line what the store refuses.

    Raises:
        RunError: In place of what MLflow, the database, its driver or the network raise.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:
        raise RunError(
            f"the tracking store {public(uri)} can't be used: {one_line(error)} Choose another "
            "with tracking.uri=URI, or go without by tracking.enabled=false."
        ) from error


def one_line(error: BaseException) -> str:
    """What went wrong in one line, without a password: the system's word, if it had one."""
    causes = [error]
    while (before := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(before)
    said = next((each for each in reversed(causes) if isinstance(each, _SYSTEM)), error)
    line = (str(said).strip() or type(said).__name__).splitlines()[0]
    text = textwrap.shorten(line, 240, placeholder=" ...")
    return public(text if text.endswith(".") else f"{text}.")


def address(uri: str) -> str:
    """A server's URI as a browser takes it: without the name and password in it."""
    return re.sub(r"://[^/@\s]*@", "://", uri)


def public(text: str) -> str:
    """The text without the password of a URI."""
    return re.sub(r"(://[^:/@\s]*):[^/@\s]*@", r"\1:***@", text)


@contextmanager
def _alone(uri: str) -> Iterator[None]:
    """Keep other processes out while the tables of a database file are made."""
    file = _file_of(uri)
    if file is None:
        yield
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{file}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make_database(uri: str) -> None:
    """Make a database file with its tables aside, and put it in its place in one move.

    It takes seconds, and MLflow can't go on with a database that was left half made.
    """
    from mlflow import MlflowClient

    file = _file_of(uri)
    assert file is not None
    # A new place each time: MLflow keeps what it opened, by name, as long as the process lives.
    with tempfile.TemporaryDirectory(prefix=f"{file.name}.", dir=file.parent) as aside:
        made = Path(aside) / file.name
        MlflowClient(f"sqlite:///{made}")
        os.replace(made, file)


def _check_database(uri: str) -> None:
    """Ask the database itself, since MLflow tries for 100 seconds to open one that is not there."""
    import mlflow
    import sqlalchemy
    from alembic.migration import MigrationContext

    is_file = _file_of(uri) is not None
    engine = sqlalchemy.create_engine(uri, connect_args={"timeout": 60} if is_file else {})
    try:
        with engine.connect() as connection:
            if is_file:
                # A file that can't be written says so here.
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            revision = MigrationContext.configure(connection).get_current_revision()
    finally:
        engine.dispose()
    known = Path(mlflow.__file__).parent / "store" / "db_migrations" / "versions"
    if revision is not None and not any(known.glob(f"{revision}_*.py")):
        raise RunError(
            f"the tracking store {public(uri)} was written by a newer MLflow than the installed "
            f"{mlflow.__version__} (schema {revision}). Upgrade with `pip install -U mlflow`, or "
            "choose another store with tracking.uri=URI."
        )


def _file_of(uri: str) -> Path | None:
    """The database file that the URI names, if it does."""
    if not uri.startswith("sqlite:///"):
        return None
    return Path(uri.removeprefix("sqlite:///").partition("?")[0])
