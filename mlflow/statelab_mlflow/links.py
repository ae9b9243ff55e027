"""Addresses inside MLflow's pages: an experiment's runs, one run, several side by side."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["View", "comparison", "publish", "run_page", "runs_page"]

_COLUMNS = (
    *("metrics.`val/loss`", "metrics.`val/accuracy`", "params.`optim.lr`"),
    *("tags.`seed`", "tags.`parameters`", "tags.`memory_bytes`"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """How the runs of an experiment are shown.

    Attributes:
        sort: The metric to sort by, which shows trained runs only, trials beside the others; None
            is by age, the newest first, trials below their study.
        descending: Whether the greatest metric comes first.
        study: The study to show the trials of; None is all runs.
        charts: Whether curves are shown, not the table.
    """

    sort: str | None = None
    descending: bool = False
    study: str | None = None
    charts: bool = False

    @property
    def search(self) -> dict[str, str]:
        """Which runs and in what order, in MLflow's names."""
        wanted = [f"tags.study = {_quoted(self.study)}"] if self.study else []
        if self.sort is None:
            return {
                "searchFilter": " AND ".join(wanted),
                "orderByKey": "attributes.start_time",
                "orderByAsc": "false",
            }
        return {
            "searchFilter": " AND ".join(["tags.kind = 'train'", *wanted]),
            "orderByKey": f"metrics.`{self.sort}`",
            "orderByAsc": json.dumps(not self.descending),
        }

    @property
    def state(self) -> str:
        """The same with columns and charts, as MLflow keeps what its button Share shares."""
        search = {**self.search, "orderByAsc": json.loads(self.search["orderByAsc"])}
        sorted_by = () if self.sort is None else (self.search["orderByKey"],)
        looks = {
            "selectedColumns": tuple(dict.fromkeys(sorted_by + _COLUMNS)),
            "runsHiddenMode": "FIRST_20_RUNS",
            "chartsSearchFilter": "|".join(filter(None, ("loss", "accuracy", self.sort))),
        }
        return json.dumps({**search, **looks})


def publish(client: MlflowClient, experiment_id: str, view: View) -> str:
    """Keep a view with its experiment, as a tag; returns the key that a page's address names.

    An address alone can't say which columns are shown. Equal views have one key.

    Raises:
        MlflowException: If the user may not write the experiment.
    """
    key = f"statelab-{zlib.crc32(view.state.encode()):08x}"
    client.set_experiment_tag(experiment_id, f"mlflow.sharedViewState.{key}", view.state)
    return key


def runs_page(root: str, experiment_id: str, view: View, key: str | None = None) -> str:
    """The runs of an experiment.

    Args:
        root: The server's address.
        experiment_id: MLflow's id of the experiment.
        view: What of them.
        key: What `publish` returned for the view; without it no metric has a column.
    """
    values = view.search if key is None else {"viewStateShareKey": key}
    if view.charts:
        values = {**values, "compareRunsMode": "CHART"}
    return f"{_pages(root)}/experiments/{experiment_id}/runs?{urlencode(values, quote_via=quote)}"


def run_page(root: str, experiment_id: str, run_id: str) -> str:
    """One run: its description, parameters, metrics and files; a study's lists its trials."""
    return f"{_pages(root)}/experiments/{experiment_id}/runs/{run_id}"


def comparison(root: str, experiment_ids: Sequence[str], run_ids: Sequence[str]) -> str:
    """Several runs side by side, with a chart of parameters against metrics."""
    values = {"runs": json.dumps([*run_ids]), "experiments": json.dumps([*experiment_ids])}
    return f"{_pages(root)}/compare-runs?{urlencode(values, quote_via=quote)}"


def _pages(root: str) -> str:
    return f"{root.rstrip('/')}/#"


def _quoted(value: str) -> str:
    return f'"{value}"' if "'" in value else f"'{value}'"
