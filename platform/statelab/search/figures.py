"""The figures of a study: each as an interactive page and as a picture."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from statelab.search.lr_sensitivity import LR, study_lr_chart
from statelab.search.naming import short_key
from statelab.search.study import Plan

__all__ = ["draw"]

log = logging.getLogger(__name__)

_OPTUNA = {
    "history": "plot_optimization_history",
    "importances": "plot_param_importances",
    "slice": "plot_slice",
    "contour": "plot_contour",
    "parallel_coordinates": "plot_parallel_coordinate",
}

Maker = Callable[[], Any]


def draw(study: optuna.Study, plan: Plan, folder: Path) -> list[Path]:
    """Draw a search into `folder`, every figure that there are enough trials for; the files.

    For several metrics that is the Pareto front, and all others for the first of them. What can't
    be drawn, such as the importances of parameters that never changed, gets a line of log.
    """
    done = [each for each in study.get_trials(deepcopy=False) if each.state == TrialState.COMPLETE]
    if plan.cells is not None or len(done) < 2:
        return []
    files: list[Path] = []
    study = _in_short(study)
    for name, page, picture in _figures(study, plan, done):
        try:
            with warnings.catch_warnings():
                # Optuna's say that its drawing is experimental.
                warnings.simplefilter("ignore")
                files += _save(folder / name, page, picture)
        except Exception as error:
            log.info("study %s has no figure %s: %s", plan.study, name, error)
    return files


def _in_short(study: optuna.Study) -> optuna.Study:
    """A copy in memory, with keys short enough for an axis where no two become the same."""
    trials = study.get_trials()
    keys = {key for each in trials for key in each.params}
    short = {key: short_key(key) for key in keys}
    if len({*short.values()}) < len(keys):
        return study
    copy = optuna.create_study(directions=study.directions)
    for each in trials:
        each.params, each.distributions = (
            {short[key]: value for key, value in part.items()}
            for part in (each.params, each.distributions)
        )
    copy.add_trials(trials)
    return copy


def _figures(
    study: optuna.Study, plan: Plan, done: list[FrozenTrial]
) -> Iterator[tuple[str, Maker, Maker]]:
    """For each figure its name, what makes it a page, and what makes it a picture."""
    from optuna import visualization

    pictures, metric = visualization.matplotlib, plan.search.metric[0]
    options: dict[str, Any] = {"target_name": metric}
    if len(plan.search.metric) > 1:
        names = list(plan.search.metric)
        yield (
            "pareto_front",
            partial(visualization.plot_pareto_front, study, target_names=names),
            partial(pictures.plot_pareto_front, study, target_names=names),
        )
        options["target"] = lambda trial: trial.values[0]
    for name, function in _OPTUNA.items():
        yield (
            name,
            partial(getattr(visualization, function), study, **options),
            partial(getattr(pictures, function), study, **options),
        )
    if plan.search.pruner != "none":
        yield (
            "intermediate_values",
            partial(visualization.plot_intermediate_values, study),
            partial(pictures.plot_intermediate_values, study),
        )
    if any(each.key == LR for each in plan.space.parameters):
        chart = study_lr_chart(done, metric, plan.search.direction[0])
        yield "lr_sensitivity", chart.page, chart.picture


def _save(stem: Path, page: Maker, picture: Maker) -> list[Path]:
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    html, png = stem.with_suffix(".html"), stem.with_suffix(".png")
    try:
        page().write_html(html, include_plotlyjs=True)
        drawn = picture()
        # Optuna gives axes, one or several.
        figure = drawn if isinstance(drawn, Figure) else getattr(drawn, "figure", None)
        if figure is None:
            figure = drawn.flat[0].figure
            _make_room(figure)
        figure.savefig(png, dpi=150, bbox_inches="tight")
    finally:
        pyplot.close("all")
    return [html, png]


def _make_room(figure: Any) -> None:
    """Let no label of a figure with several panels lie over another one."""
    from matplotlib.ticker import NullFormatter

    rows, columns = figure.axes[0].get_subplotspec().get_gridspec().get_geometry()
    figure.set_size_inches(3 * columns + 1, 2.6 * rows + 1.5)
    figure.set_layout_engine("constrained")
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                axis.set_minor_formatter(NullFormatter())
