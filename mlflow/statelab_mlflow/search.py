"""Ask the store for runs; it filters, sorts and cuts, so that thousands cost little."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from statelab.errors import RunError, near_miss
from statelab.runs.records import LoggedRun, RunQuery, RunRecord

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

__all__ = ["find_experiment", "find_runs", "folder_of", "newest_study", "read_history"]

_PAGE = 1000


def find_runs(client: MlflowClient, query: RunQuery, run_dir: Path) -> list[LoggedRun]:
    """The runs that fit the query, in its order.

    Args:
        client: Of the store.
        query: Which runs.
        run_dir: Where their folders are looked for first, since `run_dir` may have been moved.
    """
    experiments = [each.experiment_id for each in client.search_experiments(max_results=_PAGE)]
    found = _pages(client, experiments, _filter(query), _order(query), query.limit or _PAGE)
    with _uncollected():
        return [
            LoggedRun(
                record=_record(run, run_dir),
                params=dict(run.data.params),
                tags=dict(run.data.tags),
            )
            for run in islice(found, query.limit)
        ]


def read_history(client: MlflowClient, run_id: str, metric: str) -> dict[int, float]:
    """A metric of a run, value by step in the order of steps; of two at a step the later one."""
    rows = client.get_metric_history(run_id, metric)
    rows.sort(key=lambda row: (row.step, row.timestamp))
    return {row.step: row.value for row in rows}


def find_experiment(
    client: MlflowClient, name: str | None, study: str | None = None
) -> Experiment | None:
    """The experiment of that name, or that of the newest run; None if there is no run.

    Args:
        client: Of the store.
        name: The experiment's.
        study: A study whose newest run counts, and which has to have one.

    Raises:
        RunError: If there is no experiment or study of that name.
    """
    known = {each.experiment_id: each for each in client.search_experiments(max_results=_PAGE)}
    names = {each.name: each for each in known.values()}
    if name is not None and name not in names:
        raise RunError(
            f"experiment={name}: the tracking store has none of that name."
            f"{near_miss(name, names)} It has: {', '.join(sorted(names))}."
        )
    if name is not None and study is None:
        return names[name]
    query = RunQuery(tags={"study": study} if study else {})
    among = [*known] if name is None else [names[name].experiment_id]
    newest = next(_pages(client, among, _filter(query), _order(query), 1), None)
    if newest is None and study is not None:
        raise RunError(
            f"study={study}: the tracking store has no run of that study. `statelab runs` lists "
            "what it has."
        )
    return known[newest.info.experiment_id] if newest else None


def newest_study(client: MlflowClient, experiment_id: str) -> str | None:
    """The study that the experiment's newest trial belongs to; None if it has none."""
    where = "tags.study LIKE '%' AND tags.kind = 'train'"
    newest = next(_pages(client, [experiment_id], where, _order(RunQuery()), 1), None)
    return newest.data.tags["study"] if newest else None


def folder_of(run: Run) -> Path | None:
    """Where a run was written, which may not be made yet; None of what isn't ours.

    A run is opened with its experiment's folder in the tag, since its own is named after its id.
    """
    written = run.data.tags.get("statelab.folder")
    if written is None:
        return None
    folder = Path(written)
    return folder if folder.name == run.info.run_id else folder / run.info.run_id


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep Python from looking for garbage again and again among a hundred thousand new objects.

    MLflow makes so many of a thousand runs, and they are read in less than half the time so.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _pages(
    client: MlflowClient, experiments: list[str], where: str, order: list[str], size: int
) -> Iterator[Run]:
    token = None
    while experiments:
        page = client.search_runs(
            experiments, where, max_results=min(size, _PAGE), order_by=order, page_token=token
        )
        yield from page
        token = page.token
        if not token:
            return


def _filter(query: RunQuery) -> str:
    # Others may keep runs in the same store; ours have a folder.
    parts = ["tags.`statelab.folder` LIKE '%'"]
    if query.id:
        parts.append(f"attributes.run_id LIKE {_quoted(query.id + '%')}")
    if query.status:
        parts.append(f"attributes.status = {_quoted(query.status)}")
    if query.experiment:
        parts.append(f"params.experiment = {_quoted(query.experiment)}")
    tags = {"write": query.write, "read": query.read, **query.tags}
    parts += [f"tags.`{name}` = {_quoted(value)}" for name, value in tags.items() if value]
    return " AND ".join(parts)


def _order(query: RunQuery) -> list[str]:
    newest = "attributes.start_time DESC"
    if query.sort is None:
        return [newest]
    return [f"metrics.`{query.sort}` {'DESC' if query.descending else 'ASC'}", newest]


def _quoted(value: str) -> str:
    return f'"{value}"' if "'" in value else f"'{value}'"


def _record(run: Run, run_dir: Path) -> RunRecord:
    tags, info = run.data.tags, run.info
    written = folder_of(run)
    assert written is not None  # the filter wants one
    moved = run_dir.resolve() / written.parent.name / written.name
    process = tags.get("statelab.pid", "")
    return RunRecord(
        id=info.run_id,
        experiment=written.parent.name,
        write=tags.get("write", ""),
        read=tags.get("read", ""),
        status=info.status,
        started=info.start_time / 1000,
        # MLflow keeps the steps of the last metrics nowhere else.
        step=max((metric.step for metric in run.data._metric_objs), default=None),
        metrics=dict(run.data.metrics),
        folder=moved if moved.is_dir() else written,
        host=tags.get("statelab.host"),
        process=int(process) if process.isdigit() else None,
        tracked=True,
        reason=tags.get("statelab.reason", ""),
        kind=tags.get("kind", "train"),
    )
