"""What is recorded of a study as a whole: its run in the tracking store, its figures, its best."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.trial import TrialState

from statelab.errors import StatelabError
from statelab.loading import load_config, to_dict
from statelab.runs.records import RunQuery, RunRecord
from statelab.runs.status import LOST, RunStatus, Status, write_end
from statelab.runs.tracking import METRICS, Run, make_folder, tracker
from statelab.search.figures import draw
from statelab.search.objective import VALUES
from statelab.search.study import PARENT, Plan, as_overrides
from statelab.values import flatten

__all__ = ["BEST", "Record", "end_stray_runs", "open_record"]

#: The file with the best trial's configuration, an experiment as it stands.
BEST = "best.yaml"

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A study's files, and its run.

    Attributes:
        plan: The study's.
        folder: For the files.
        run: The study's, parent of its trials' runs; None if it is not tracked.
    """

    plan: Plan
    folder: Path
    run: Run | None

    def write(self, study: optuna.Study) -> list[Path]:
        """Draw the study, and write the best trial's configuration."""
        end_stray_runs(self.plan, study)
        files = draw(study, self.plan, self.folder)
        best = self._write_best(study)
        if self.run is not None:
            for file in files:
                self.run.log_artifact(file, "figures")
            if best is not None:
                self.run.log_artifact(best)
        return [*files, *([best] if best else [])]

    def close(self, status: Status, reason: str | None = None) -> None:
        """Record how the study's command ended."""
        if self.run is not None:
            self.run.finish(status, reason)

    def _write_best(self, study: optuna.Study) -> Path | None:
        if not study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            return None
        best = study.best_trials[0]
        overrides = as_overrides(best.user_attrs[VALUES])
        config = load_config(None, [*self.plan.base, *overrides])
        file = self.folder / BEST
        text = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
        file.write_text(f"# Trial {best.number} of study {self.plan.study}.\n{text}", "utf-8")
        return file


def open_record(plan: Plan, study: optuna.Study) -> Record:
    """The study's folder and run, made if there are none; whoever calls has the turn.

    Raises:
        RunError: If the folder or the tracking store can't be used.
    """
    folder = plan.folder
    make_folder(folder, plan.config.run_dir)
    if not plan.config.tracking.enabled:
        return Record(plan=plan, folder=folder, run=None)
    tags = {**plan.config.tags, "study": plan.study, "kind": "study"}
    config = replace(plan.config, tags=tags)
    known = study.user_attrs.get(PARENT)
    if known is not None:
        place = Path(config.run_dir).resolve() / config.experiment / known
        make_folder(place, config.run_dir)
        run = tracker().resume(config, folder=place, step=0, tags=config.tags)
    else:
        run = tracker().start(
            config,
            name=plan.study,
            params=_params(plan),
            tags=config.tags,
            description=f"Study **{plan.study}**: each trial is a run below this one.",
        )
        study.set_user_attr(PARENT, run.id)
    return Record(plan=plan, folder=folder, run=run)


def _params(plan: Plan) -> dict[str, Any]:
    """How the study looks for what; not where it is kept, which may hold a password."""
    params = flatten({"search": asdict(plan.search) | {"space": plan.space.name}})
    del params["search.storage"]
    return params


def end_stray_runs(plan: Plan, study: optuna.Study) -> None:
    """Mark the runs whose trial is over, though the tracking store takes them for running.

    Their process died, or had no store to tell its end to.
    """
    config = plan.config
    if not config.tracking.enabled:
        return
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    alive = {None, *(str(each.number) for each in running)}
    uri, run_dir = config.tracking.uri, Path(config.run_dir)
    # By its tags, since the process may have died before the study knew the run's id.
    query = RunQuery(tags={"study": plan.study}, status="RUNNING")
    try:
        for run in tracker().find_logged(query, uri=uri, run_dir=run_dir):
            if run.tags.get("trial") not in alive:
                _end(run.record, uri, run_dir)
    except (OSError, StatelabError) as error:
        log.warning("the runs of study %s can't be marked: %s", plan.study, error)


def _end(run: RunRecord, uri: str | None, run_dir: Path) -> None:
    if not (run.folder / METRICS).is_file():
        # It lies on another host, or the process died before it had made any.
        tracker().end_lost(run.id, uri=uri, run_dir=run_dir)
        return
    if RunStatus.read(run.folder).name == "RUNNING":
        write_end(run.folder, "KILLED", f"{LOST}: its process was gone")
    tracker().sync(run.folder, uri=uri)
