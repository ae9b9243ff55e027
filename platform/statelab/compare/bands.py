"""Whether an experiment's runs found what is expected of them: published, measured, in the band.

Only runs of the published setting count: whoever trains fewer steps or on fewer examples, say, has
to name that to have them judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from statelab.compare.config import CompareConfig
from statelab.compare.entries import entry_of, same_value
from statelab.compare.table import SEEDS, Row, compare, is_technical, shorten
from statelab.config import Config
from statelab.errors import ConfigError, UnknownNameError
from statelab.expect import Expectation, expectations
from statelab.experiment import find_experiment
from statelab.loading import load_config, to_dict
from statelab.runs.records import LoggedRun, RunQuery, logged_runs
from statelab.values import as_arguments, flatten

__all__ = ["Judgement", "Verdict", "judge", "judge_run"]

# A published figure is the best over it.
_OVER = "optim.lr"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One expectation beside what was measured.

    Attributes:
        expectation: What was expected.
        value: The metric of the best setting, mean over seeds; None if there is no such run.
        how: Seeds and setting of that, in words.
        runs: The ids of the runs whose mean it is.
        command: What makes the run that is lacking.
    """

    expectation: Expectation
    value: float | None
    how: str
    runs: tuple[str, ...]
    command: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the value is there, and in the band."""
        return self.value is not None and self.expectation.holds(self.value)

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            **asdict(self.expectation),
            "measured": self.value,
            "how": self.how,
            "runs": list(self.runs),
            "command": " ".join(self.command),
            "pass": self.passed,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """All verdicts on an experiment.

    Attributes:
        verdicts: One an expectation.
        notes: One line on each matter that has to be said.
    """

    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether all hold."""
        return all(each.passed for each in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        verdicts = [each.to_json() for each in self.verdicts]
        return {"verdicts": verdicts, "notes": list(self.notes), "pass": self.passed}


def judge(
    experiment: str, where: Mapping[str, str], *, run_dir: str = "runs", uri: str | None = None
) -> Judgement:
    """Judge an experiment by the finished runs of the tracking store.

    Args:
        experiment: Its name, or the path of its file.
        where: Keys of the configuration: expectations of another value are left out, and runs are
            judged that were trained with this one.
        run_dir: The folder of all runs.
        uri: The store.

    Raises:
        ConfigError: If nothing is expected, or nothing with those keys.
        RunError: If the store can't be reached.
    """
    expected = expectations(experiment)
    if not expected:
        raise ConfigError(
            f"experiment {experiment!r} expects nothing: its file has no list `expect:` of figures."
        )
    chosen = [each for each in expected if _allows(each, where)]
    if not chosen:
        said = " ".join(as_arguments(where))
        raise ConfigError(
            f"none of the {len(expected)} expectations of experiment {experiment!r} has {said}."
        )
    query = RunQuery(experiment=find_experiment(experiment).name, status="FINISHED")
    runs = [
        run
        for run in logged_runs(query, run_dir=Path(run_dir), uri=uri)
        if "model.write.name" in run.params
        and same_value(run.params.get("smoke", "false"), where.get("smoke", "false"))
    ]
    place = [] if run_dir == "runs" else [f"run_dir={run_dir}"]
    court = _Court(
        experiment, dict(where), runs, [*place, *([f"tracking.uri={uri}"] if uri else [])]
    )
    verdicts = tuple(map(court.verdict, chosen))
    return Judgement(verdicts=verdicts, notes=tuple(court.notes()))


def judge_run(config: Config, metrics: Mapping[str, float]) -> Judgement:
    """Judge one run by the expectations that it fits; those of an order of runs are left out.

    Args:
        config: The run's.
        metrics: What was measured.
    """
    try:
        expected = expectations(config.experiment)
    except UnknownNameError:
        return Judgement(verdicts=())
    params = {key: _text(value) for key, value in flatten(to_dict(config)).items()}
    verdicts = []
    for each in expected:
        setting = _setting(config.experiment, each.where)
        if each.metric in metrics and not each.minus and not _differences(params, setting):
            how = f"seed {config.seed}, {_OVER}={params[_OVER]}"
            value = metrics[each.metric]
            verdicts.append(Verdict(expectation=each, value=value, how=how, runs=()))
    return Judgement(verdicts=tuple(verdicts))


class _Court:
    """Finds the runs that an expectation means."""

    def __init__(
        self, experiment: str, where: dict[str, str], runs: Sequence[LoggedRun], place: list[str]
    ) -> None:
        self._experiment = experiment
        self._where = where
        self._runs = runs
        self._place = place
        self._changed: dict[str, str] = {}
        self._judged: set[str] = set()
        self._near: dict[str, dict[str, str]] = {}
        self._edges: dict[object, str] = {}

    def verdict(self, expected: Expectation) -> Verdict:
        """Judge by one expectation."""
        sides = [dict(expected.where)]
        if expected.minus:
            sides.append({**expected.where, **expected.minus})
        published = {**_setting(self._experiment, expected.where), **expected.where}
        self._changed |= {
            key: value
            for key, value in self._where.items()
            if key not in published or not same_value(published[key], value)
        }
        rows = [self._best(expected, side) for side in sides]
        for side, row in zip(sides, rows, strict=True):
            if row is None:
                keys = as_arguments(side | self._where)
                command = ("train", f"experiment={self._experiment}", *keys, *self._place)
                return Verdict(
                    expectation=expected, value=None, how="no run", runs=(), command=command
                )
        found = [row for row in rows if row is not None]
        centers = [row.summary.center for row in found if row.summary is not None]
        return Verdict(
            expectation=expected,
            value=centers[0] - sum(centers[1:]),
            how=" - ".join(map(_how, found)),
            runs=tuple(run.id for row in found for run in row.best.entries if run.state == "done"),
        )

    def notes(self) -> Iterable[str]:
        """What has to be said beside the verdicts."""
        if self._changed:
            said = " ".join(as_arguments(self._changed))
            yield f"Judged are runs with {said}, which is not the published setting."
        yield from self._edges.values()
        near = {run: each for run, each in self._near.items() if run not in self._judged}
        if near:
            changed = dict.fromkeys(word for each in near.values() for word in as_arguments(each))
            runs = f"{len(near)} finished run{'s' if len(near) > 1 else ''}"
            yield f"Left out {runs} of another setting: {shorten(changed)}."

    def _best(self, expected: Expectation, side: dict[str, str]) -> Row | None:
        """The runs of one side, seeds together, at their best setting."""
        setting = _setting(self._experiment, side | self._where)
        fitting = []
        for run in self._runs:
            differences = _differences(run.params, setting)
            if not differences:
                # As the setting has it: a run may know keys that are gone, or lack a new one.
                own = {key: run.params[key] for key in (*SEEDS, _OVER) if key in run.params}
                entry = entry_of(run, expected.metric)
                fitting.append(replace(entry, params=setting | own))
                self._judged.add(run.record.id)
            elif all(same_value(run.params.get(key, ""), each) for key, each in side.items()):
                self._near[run.record.id] = differences
        if not any(each.state == "done" for each in fitting):
            return None
        config = CompareConfig(metric=expected.metric, direction=expected.direction, over=(_OVER,))
        [row] = compare(fitting, config).rows
        if row.edges:
            best, tried = row.best.setting[0], shorten(row.tried(0))
            self._edges[row.name, best, tried] = (
                f"Warning: the best {_OVER} of {row.name}, {best}, is at the edge of what was "
                f"tried ({tried})."
            )
        return row


def _allows(expected: Expectation, where: Mapping[str, str]) -> bool:
    """Whether an expectation says nothing else of these keys."""
    return all(
        same_value(expected.where[key], value)
        for key, value in where.items()
        if key in expected.where
    )


def _setting(experiment: str, keys: Mapping[str, str]) -> dict[str, str]:
    """All that a run learns by; seed and learning rate are free where the keys are silent."""
    config = load_config(experiment, as_arguments(keys))
    free = {*SEEDS, _OVER} - keys.keys()
    flat = flatten(to_dict(config))
    return {k: _text(v) for k, v in flat.items() if not is_technical(k) and k not in free}


def _differences(params: Mapping[str, str], setting: Mapping[str, str]) -> dict[str, str]:
    """Where a run is not as it is expected to be; what it never knew of is as it is."""
    return {
        key: params[key]
        for key, value in setting.items()
        if key in params and not same_value(params[key], value)
    }


def _how(row: Row) -> str:
    count = len(row.best.values)
    return f"{count} seed{'s' if count > 1 else ''}, {_OVER}={row.best.setting[0]}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
