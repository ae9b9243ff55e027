"""What is known of many runs at once: those of the tracking store, and those nobody tracked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from statelab.runs.lost import mark_all_lost, mark_lost, mark_stillborn
from statelab.runs.metric_history import metric_history
from statelab.runs.status import LOST, RunStatus
from statelab.runs.tracking import METRICS, tracker

__all__ = ["LoggedRun", "RunQuery", "RunRecord", "list_runs", "logged_runs", "pair_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """A run as a table shows it.

    Attributes:
        id: Names the run.
        experiment: The experiment's name.
        write: The write rule.
        read: The read rule.
        status: RUNNING, FINISHED, FAILED or KILLED.
        started: Seconds since 1970.
        step: The last optimizer step with a metric; None before the first.
        metrics: The last of each.
        folder: What it wrote; it may lie on another host.
        host: Where it runs or ran, if that is known.
        process: Its process there.
        tracked: Whether the tracking store has it.
        reason: Why it failed or was stopped.
        kind: train; study or compare for the run of one, which trained nothing itself.
    """

    id: str
    experiment: str
    write: str
    read: str
    status: str
    started: float
    step: int | None
    metrics: dict[str, float]
    folder: Path
    host: str | None
    process: int | None
    tracked: bool
    reason: str = ""
    kind: str = "train"

    @property
    def pair(self) -> str:
        """The pair of rules, as `gla+ccq`; its kind, where a run trained none."""
        return pair_of(self.write, self.read) if self.kind == "train" else self.kind

    @property
    def lost(self) -> bool:
        """Whether it died without a word."""
        return self.status == "KILLED" and self.reason.startswith(LOST)

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {**dataclasses.asdict(self), "folder": str(self.folder), "lost": self.lost}


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedRun:
    """A run with all that its tracking store has of it, but for the metrics' histories.

    Attributes:
        record: As a table shows it.
        params: The configuration by dotted key, each value as YAML writes it.
        tags: By name.
    """

    record: RunRecord
    params: dict[str, str]
    tags: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunQuery:
    """Which runs, and in what order; what is None or empty holds for all.

    Attributes:
        id: How the id begins.
        experiment: The experiment's name.
        write: The write rule's name.
        read: The read rule's name.
        status: RUNNING, FINISHED, FAILED or KILLED.
        tags: What the user tagged it with.
        sort: The metric to sort by; None is by age, the newest first.
        descending: Whether the greatest metric comes first.
        limit: The most to list.
    """

    id: str = ""
    experiment: str | None = None
    write: str | None = None
    read: str | None = None
    status: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    sort: str | None = None
    descending: bool = False
    limit: int | None = None


def pair_of(write: str, read: str) -> str:
    """The name of a pair; a rule from a file is called by its class."""
    return "+".join(name.rpartition(":")[2] for name in (write, read))


def list_runs(query: RunQuery, *, run_dir: Path, uri: str | None) -> list[RunRecord]:
    """The runs of the tracking store and the untracked ones of `run_dir` that fit the query.

    Those among them that were lost on this host are marked so first.

    Raises:
        RunError: If the store can't be reached.
    """
    tracked = [run.record for run in logged_runs(query, run_dir=run_dir, uri=uri)]
    return sorted([*tracked, *_untracked(query, run_dir)], key=_order(query))[: query.limit]


def logged_runs(query: RunQuery, *, run_dir: Path, uri: str | None) -> list[LoggedRun]:
    """The runs of the tracking store that fit the query; the lost ones are marked first.

    Raises:
        RunError: If the store can't be reached.
    """
    mark_all_lost(run_dir)
    found = tracker().find_logged(query, uri=uri, run_dir=run_dir)
    running = [run.record for run in found if run.record.status == "RUNNING"]
    # A store may have runs of other folders too.
    lost = mark_lost(run.folder for run in running)
    if mark_stillborn(running, uri=uri, run_dir=run_dir) or lost:
        found = tracker().find_logged(query, uri=uri, run_dir=run_dir)
    return found


def _order(query: RunQuery) -> Callable[[RunRecord], tuple[bool, float, float]]:
    def key(run: RunRecord) -> tuple[bool, float, float]:
        value = run.metrics.get(query.sort or "", float("nan"))
        missing = value != value
        signed = -value if query.descending else value
        return missing, 0.0 if missing else signed, -run.started

    return key


def _untracked(query: RunQuery, run_dir: Path) -> Iterator[RunRecord]:
    """Newest first, and no more than the query wants where only the age decides."""
    files = run_dir.glob(f"{query.experiment or '*'}/{query.id}*/config.yaml")
    own = [file for file in files if not (file.parent / METRICS).exists()]
    found = 0
    for file in sorted(own, key=lambda file: -file.stat().st_mtime):
        if query.sort is None and found == query.limit:
            return
        record = _read(file, query)
        if record is not None:
            found += 1
            yield record


def _read(file: Path, query: RunQuery) -> RunRecord | None:
    """The record of a run folder; None if it doesn't fit the query, or is damaged."""
    folder = file.parent
    status = RunStatus.read(folder)
    if query.status not in (None, status.name):
        return None
    try:
        # The parser in C, where there is one, is ten times faster.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        config: dict[str, Any] = yaml.load(file.read_text(encoding="utf-8"), loader)
        rules = {kind: str(config["model"][kind]["name"]) for kind in ("write", "read")}
        tags = config.get("tags") or {}
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        return None
    if query.write not in (None, rules["write"]) or query.read not in (None, rules["read"]):
        return None
    if not query.tags.items() <= tags.items():
        return None
    history = metric_history(folder)
    return RunRecord(
        id=folder.name,
        experiment=folder.parent.name,
        write=rules["write"],
        read=rules["read"],
        status=status.name,
        started=file.stat().st_mtime,
        step=max((max(values) for values in history.values()), default=None),
        metrics={name: list(values.values())[-1] for name, values in history.items()},
        folder=folder.resolve(),
        host=status.host,
        process=status.process,
        tracked=False,
        reason=status.reason,
    )
