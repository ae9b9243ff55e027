"""The runs of a comparison, as they were logged."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from statelab.compare.config import CompareConfig
from statelab.errors import ConfigError, UnknownNameError, near_miss
from statelab.runs.records import LoggedRun, RunQuery, logged_runs
from statelab.runs.tracking import tracker
from statelab.values import spell_out

__all__ = ["SIZES", "Entry", "entry_of", "is_finite", "read_entries", "same_value"]

log = logging.getLogger(__name__)

SIZES = ("parameters", "state_bytes", "memory_bytes")

_OWN = {each.name for each in dataclasses.fields(CompareConfig)}

# MLflow stores the greatest float for what is infinite.
_INFINITE = 1e308


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One run.

    Attributes:
        id: The run's.
        experiment: Its experiment's name.
        status: RUNNING, FINISHED, FAILED or KILLED.
        reason: Why it failed or was stopped.
        started: Seconds since 1970.
        params: The configuration by dotted key, each value as YAML writes it.
        metrics: The last of each.
        sizes: Parameters and bytes of state, by name.
        value: The one that is compared; None if it was not logged.
    """

    id: str
    experiment: str
    status: str
    reason: str
    started: float
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    sizes: Mapping[str, int]
    value: float | None

    @property
    def seed(self) -> str:
        """The seed as it was logged."""
        return self.params.get("seed", "none")

    @property
    def state(self) -> Literal["done", "unfinished", "failed"]:
        """Only what is done has a value to compare."""
        if self.status == "RUNNING":
            return "unfinished"
        return "done" if self.status == "FINISHED" and is_finite(self.value) else "failed"

    @property
    def trouble(self) -> str:
        """Why it has no value to compare."""
        if self.status != "FINISHED":
            return f"{self.status}: {self.reason}" if self.reason else self.status
        if self.value is None:
            return "FINISHED without that metric"
        return f"FINISHED with {'NaN' if math.isnan(self.value) else 'an infinite value'}"

    def label(self, key: str) -> str:
        """What a table shows of a key; a rule from a file is called by its class."""
        return self.params.get(key, "-").rpartition(":")[2]


def is_finite(value: float | None) -> bool:
    """Whether it is a number at all, as far as MLflow tells."""
    return value is not None and abs(value) < _INFINITE


def read_entries(config: CompareConfig, where: Mapping[str, str], uri: str | None) -> list[Entry]:
    """The runs that are meant, from the tracking store.

    Args:
        config: The comparison's.
        where: Configuration keys with the value that runs have to have.
        uri: The store.

    Raises:
        UnknownNameError: If there is no such run or key, or none has logged the metric.
        RunError: If the store can't be reached.
    """
    run_dir = Path(config.run_dir)
    found = _find(config, run_dir, uri)
    known = {key for run in found for key in run.params}
    for key in (*where, *map(spell_out, config.by)):
        if key not in known:
            raise UnknownNameError(
                f"no run that is compared has a key {key!r}."
                f"{near_miss(key, known | _OWN)} `statelab keys` lists those of runs."
            )
    chosen = [
        run for run in found if all(same_value(run.params.get(k, ""), v) for k, v in where.items())
    ]
    if not chosen:
        said = " ".join(f"{key}={value}" for key, value in where.items())
        raise ConfigError(f"none of {len(found)} runs has {said}.")
    if "smoke" not in where:
        chosen = _without_smoke(chosen)
    histories = _best_values(chosen, config, run_dir, uri) if config.value == "best" else {}
    entries = [entry_of(run, config.metric, histories) for run in chosen]
    logged = {name for each in entries for name in each.metrics}
    if config.metric not in logged and any(each.state != "unfinished" for each in entries):
        raise UnknownNameError(
            f"metric={config.metric}: none of {len(entries)} runs has logged it."
            f"{near_miss(config.metric, logged)} Logged: {', '.join(sorted(logged)) or 'nothing'}."
        )
    return entries


def _without_smoke(runs: list[LoggedRun]) -> list[LoggedRun]:
    """The runs without those that only showed that all works, if there are others."""
    real = [run for run in runs if run.params.get("smoke") != "true"]
    if not real or len(real) == len(runs):
        return runs
    log.info("left out %d smoke runs; smoke=true compares them", len(runs) - len(real))
    return real


def _find(config: CompareConfig, run_dir: Path, uri: str | None) -> list[LoggedRun]:
    tags = {"study": config.study} if config.study else {}
    found: dict[str, LoggedRun] = {}
    for each in config.runs or ("",):
        query = RunQuery(id=each, experiment=config.experiment, tags=tags)
        # A study's own run and an earlier comparison have trained nothing.
        trained = {
            run.record.id: run
            for run in logged_runs(query, run_dir=run_dir, uri=uri)
            if "model.write.name" in run.params
        }
        if not trained:
            asked = {"runs": each, "experiment": config.experiment, "study": config.study}
            said = " ".join(f"{key}={value}" for key, value in asked.items() if value)
            raise UnknownNameError(
                f"the tracking store has no run to compare{' with ' if said else ''}{said}. "
                "`statelab runs` lists those there are."
            )
        found |= trained
    return list(found.values())


def _best_values(
    runs: Iterable[LoggedRun], config: CompareConfig, run_dir: Path, uri: str | None
) -> dict[str, float]:
    best = min if config.sense == "minimize" else max
    having = [run.record.id for run in runs if config.metric in run.record.metrics]
    histories = tracker().histories(having, config.metric, uri=uri, run_dir=run_dir)
    finite = {run: [*filter(is_finite, each.values())] for run, each in histories.items()}
    return {run: best(values) for run, values in finite.items() if values}


def entry_of(run: LoggedRun, metric: str, best: Mapping[str, float] | None = None) -> Entry:
    """A run with its last value of the metric, or its best by id, where that is given."""
    record = run.record
    return Entry(
        id=record.id,
        experiment=record.experiment,
        status=record.status,
        reason=record.reason,
        started=record.started,
        params=run.params,
        metrics=record.metrics,
        sizes={name: int(run.tags[name]) for name in SIZES if run.tags.get(name, "").isdigit()},
        value=(best or {}).get(record.id, record.metrics.get(metric)),
    )


def same_value(logged: str, given: str) -> bool:
    """Whether two texts mean one value: `0.01` and `1e-2`, a rule's name and its file's."""
    if given in (logged, logged.rpartition(":")[2]):
        return True
    try:
        return float(logged) == float(given)
    except ValueError:
        return False
