"""What the core asks of a tracker: an identity, a folder and a logger for each run.

`statelab_mlflow` is the tracker; `LocalRun` stands in where tracking is switched off.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from statelab.errors import RunError
from statelab.registries import trackers
from statelab.runs.status import Status, write_end, write_start

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger
    from torch import Tensor

    from statelab.config import Config, TrackingConfig
    from statelab.runs.records import LoggedRun, RunQuery

__all__ = [
    "METRICS",
    "USUAL_ADDRESS",
    "Followed",
    "LocalRun",
    "Place",
    "Run",
    "Status",
    "StudyTrial",
    "Tracker",
    "Unsent",
    "make_folder",
    "tracker",
]

#: A tracked run's metrics in its folder, a JSON object a line: key, value, timestamp, step.
METRICS = "metrics.jsonl"

#: Where `statelab ui` serves, host and port, unless it is told another place.
USUAL_ADDRESS = ("127.0.0.1", 5000)


class Place(Protocol):
    """Where a run is recorded; a configuration is one."""

    @property
    def experiment(self) -> str:
        """The experiment's name."""

    @property
    def run_dir(self) -> str:
        """The folder of all runs."""

    @property
    def tracking(self) -> TrackingConfig:
        """The store."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unsent:
    """What the store lacks of a run.

    Attributes:
        metrics: Metric values.
        files: Files of the run's folder.
        end: Whether its status and reason are lacking.
    """

    metrics: int
    files: int
    end: bool

    def __bool__(self) -> bool:
        return bool(self.metrics or self.files or self.end)

    def __str__(self) -> str:
        counted = (("metric value", self.metrics), ("file", self.files))
        parts = [f"{n:,} {name}{'s' if n > 1 else ''}" for name, n in counted if n]
        return ", ".join(parts + ["the run's end"] * self.end) or "nothing"


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyTrial:
    """A run's place in a study.

    Attributes:
        study: The study's name.
        number: Which of its trials the run is.
        parent: The id of the study's own run; None if that is not tracked.
        name: What sets the run apart from the other trials.
        started: Called with the run's id.
        prune: Called with the metrics of each validation and the optimizer steps done; whether the
            run is to stop. None never stops it.
    """

    study: str
    number: int
    parent: str | None
    name: str
    started: Callable[[str], None]
    prune: Callable[[Mapping[str, Tensor], int], bool] | None


class Run(ABC):
    """One run: `id` names it, `folder` (`run_dir/experiment/id`) holds all that it writes."""

    id: str
    folder: Path

    @property
    @abstractmethod
    def logger(self) -> Logger | None:
        """Lightning's logger of this run; the same object each time."""

    @abstractmethod
    def log_artifact(self, file: Path, folder: str | None = None) -> None:
        """Keep a file of the run folder with the tracked run too, in a folder of its artifacts."""

    @abstractmethod
    def finish(self, status: Status, reason: str | None = None) -> None:
        """Write the run's end and send what is unsent; called once by whoever started the run.

        Args:
            status: How it ended.
            reason: One line on why it failed or was stopped; `status.TAGS` may begin it.
        """


class Tracker(ABC):
    """Where runs are recorded."""

    @abstractmethod
    def start(
        self,
        place: Place,
        *,
        name: str,
        params: Mapping[str, str | int | float | bool | None],
        tags: Mapping[str, str],
        description: str,
        parent: str | None = None,
    ) -> Run:
        """Open a new run with status RUNNING and make its folder.

        Args:
            place: Where.
            name: For people.
            params: Flat, dotted.
            tags: Flat; the store has them from the run's first moment on.
            description: Markdown.
            parent: The run that this one is shown below.

        Raises:
            RunError: If the store can't be reached or written.
        """

    @abstractmethod
    def resume(self, config: Config, *, folder: Path, step: int, tags: Mapping[str, str]) -> Run:
        """Open a run again, with status RUNNING; the last end is forgotten.

        Args:
            config: The configuration; `tracking` says where.
            folder: The run's, named after it.
            step: The optimizer steps that are done; metrics that the run has from there on are
                not recorded twice.
            tags: Flat; they replace those of the same name.

        Raises:
            RunError: If the store can't be reached or written, or the run was removed from it.
            UnknownNameError: If the store doesn't know the run.
        """

    @abstractmethod
    def folder_of(self, run_id: str, *, uri: str | None, run_dir: Path) -> Path | None:
        """The folder of a recorded run, or None if the store doesn't know it."""

    @abstractmethod
    def find_logged(self, query: RunQuery, *, uri: str | None, run_dir: Path) -> list[LoggedRun]:
        """The recorded runs that fit the query, in its order; of a store that isn't there, none.

        A thousand of them are one request.

        Raises:
            RunError: If the store can't be reached.
        """

    @abstractmethod
    def histories(
        self, run_ids: Iterable[str], metric: str, *, uri: str | None, run_dir: Path
    ) -> dict[str, dict[int, float]]:
        """A metric of several runs, value by step in the order of steps; each run is one request.

        Raises:
            RunError: If the store can't be reached, or doesn't know a run.
        """

    @abstractmethod
    def sync(self, folder: Path, *, uri: str | None) -> Unsent:
        """Send what the store lacks of a run that has ended; twice is safe.

        Args:
            folder: The run's.
            uri: The store; None is the one that the run was recorded in.

        Returns:
            What was sent.

        Raises:
            RunError: If the store can't be reached, or `folder` is no tracked run's.
            UnknownNameError: If the store doesn't know the run.
        """

    @abstractmethod
    def add(
        self, folder: Path, *, metrics: Mapping[str, float], step: int, files: Mapping[Path, str]
    ) -> None:
        """Record more of a run that has ended, whose status stays as it is.

        Args:
            folder: The run's.
            metrics: By name; none that the run has at that step.
            step: The optimizer step that they are of.
            files: Of the run's folder, each with the folder of artifacts that it belongs to.

        Raises:
            RunError: If the store can't be reached; `sync` sends all of it later.
            UnknownNameError: If the store doesn't know the run.
        """

    @abstractmethod
    def end_lost(self, run_id: str, *, uri: str | None, run_dir: Path) -> None:
        """Mark a run KILLED whose process is gone, on whichever host that was.

        Raises:
            RunError: If the store can't be reached.
        """

    @abstractmethod
    def remove(self, run_id: str, *, uri: str | None, run_dir: Path) -> None:
        """Show a run no more.

        Raises:
            RunError: If the store can't be reached.
        """

    @abstractmethod
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
        """Show the recorded runs in a browser until interrupted; prints the address.

        Args:
            uri: The store.
            run_dir: The folder of the runs.
            host: The address to listen on.
            port: The port to listen on.
            experiment: Whose page to name; None is that of the study, or of the newest run.
            study: Whose curves to name; None is the experiment's newest.
            browser: Whether to open that page too.

        Raises:
            RunError: If the store, the port, the experiment or the study can't be had.
        """

    @abstractmethod
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
        """Pages of a comparison, an address by what it shows.

        Where the store is no server, they are those of `serve` at its usual address.

        Args:
            run_id: The comparison's own run.
            compared: The runs to put side by side.
            metric: What they are compared by.
            descending: Whether the greatest is best.
            study: The one that is compared; None is the experiment.
            uri: The store.
            run_dir: The folder of the runs.

        Raises:
            RunError: If the store can't be reached.
        """


@dataclass
class LocalRun(Run):
    """A run that nobody tracks: its folder, and metrics as CSV in it."""

    id: str
    folder: Path
    step: int = 0

    @classmethod
    def start(cls, config: Config) -> LocalRun:
        """Make the folder of a new run."""
        run_id = uuid.uuid4().hex
        folder = Path(config.run_dir).resolve() / config.experiment / run_id
        make_folder(folder, config.run_dir)
        write_start(folder)
        return cls(run_id, folder)

    @classmethod
    def resume(cls, folder: Path, *, step: int) -> LocalRun:
        """Open a run again, of which so many optimizer steps are done."""
        write_start(folder)
        return cls(folder.name, folder, step)

    @property
    def logger(self) -> Logger:
        """A logger that writes `metrics.csv`."""
        from statelab.runs.loggers import CsvLogger
        from statelab.runs.metric_history import Recorded

        if not hasattr(self, "_logger"):
            self._logger = CsvLogger(self.folder, Recorded(self.folder, self.step))
        return self._logger

    def log_artifact(self, file: Path, folder: str | None = None) -> None:
        """The file is in the run's folder already."""

    def finish(self, status: Status, reason: str | None = None) -> None:
        """Write the end beside the metrics."""
        write_end(self.folder, status, reason)


@dataclass(frozen=True)
class Followed(Run):
    """A run as its further processes see it: the first one records it."""

    id: str
    folder: Path

    @property
    def logger(self) -> None:
        """None."""

    def log_artifact(self, file: Path, folder: str | None = None) -> None:
        """The first process does."""

    def finish(self, status: Status, reason: str | None = None) -> None:
        """The first process does."""


def make_folder(folder: Path, given: str, key: str = "run_dir") -> None:
    """Make a folder, if it isn't there.

    Args:
        folder: The folder.
        given: What the user said, that it lies inside of.
        key: The key that it was said with.

    Raises:
        RunError: If it can't be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"{key}={given} can't be written: {error.strerror} ({error.filename}). "
            f"Choose another with {key}=FOLDER."
        ) from error


def tracker() -> Tracker:
    """The installed tracker."""
    return trackers.get("mlflow").cls()
