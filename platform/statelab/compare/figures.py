"""The figures of a comparison, each where the runs have something for it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean

from statelab.compare.config import CompareConfig
from statelab.compare.entries import is_finite
from statelab.compare.intervals import Interval, log_slope, mean_interval
from statelab.compare.table import Comparison, Row
from statelab.figures.chart import Chart, HeatMap, Point, is_share
from statelab.figures.lr_sensitivity import LR, lr_chart

__all__ = ["Histories", "charts", "curve_runs"]

Histories = Mapping[str, Mapping[int, float]]
"""A metric's value by step, by run."""

_WRITE, _READ, _LOSS = "model.write.name", "model.read.name", "val/loss"
_MOST_CURVES = 12  # more are told apart by nobody
_SLICE = re.compile(r"\D*(\d+)$")

Series = dict[tuple[str, ...], list[Point]]


def charts(comparison: Comparison, histories: Histories) -> dict[str, Chart | HeatMap]:
    """All that the runs have data for, by file name.

    Args:
        comparison: The table.
        histories: Of the metric, of the runs that `curve_runs` names.
    """
    makers: dict[str, Callable[[Comparison], Chart | HeatMap | None]] = {
        "against_state": _against_state,
        "against_length": _against_length,
        "loss_against_parameters": _against_parameters,
        "learning_curves": lambda each: _learning_curves(each, histories),
        "write_x_read": _heat_map,
        "lr_sensitivity": _lr_sensitivity,
    }
    made = ((name, make(comparison)) for name, make in makers.items())
    return {name: chart for name, chart in made if chart is not None}


def curve_runs(comparison: Comparison) -> list[str]:
    """The runs whose history the learning curves need."""
    rows = comparison.rows[:_MOST_CURVES]
    return [run.id for row in rows for run in row.best.entries if run.state == "done"]


def _against_state(comparison: Comparison) -> Chart | None:
    """The metric against the size of the state."""
    series: Series = defaultdict(list)
    for row in comparison.rows:
        size = row.size("state_bytes")
        if size is not None and row.summary is not None:
            series[_words(row)].append(_point(size, row.summary))
    if len({each.x for points in series.values() for each in points}) < 2:
        return None
    return _chart(
        comparison.config,
        f"{comparison.config.metric} against the size of the state",
        "state of a sequence (bytes)",
        series,
        log_x=True,
    )


def _against_length(comparison: Comparison) -> Chart | None:
    """The metric's slices that are called by a number: `kv_8`, `len_4096`."""
    config = comparison.config
    series: Series = defaultdict(list)
    for row in comparison.rows:
        runs = [each for each in row.best.entries if each.state == "done"]
        for name in sorted({name for each in runs for name in each.metrics}):
            number = _SLICE.fullmatch(name.removeprefix(f"{config.metric}/"))
            if number and name.startswith(f"{config.metric}/"):
                values = [each.metrics[name] for each in runs if name in each.metrics]
                point = _point(int(number[1]), mean_interval(values))
                series[row.labels].append(point)
    if len({each.x for points in series.values() for each in points}) < 2:
        return None
    return _chart(
        config,
        f"{config.metric} by slice",
        "the slice's number (pairs or tokens)",
        series,
        log_x=True,
    )


def _against_parameters(comparison: Comparison) -> Chart | None:
    """The loss against parameters, a point a run, with the slope of each line of rows."""
    found: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for row in comparison.rows:
        size = row.size("parameters")
        for each in row.best.entries:
            if each.state == "done" and each.metrics.get(_LOSS, 0.0) > 0 and size is not None:
                found[_words(row)].append((size, each.metrics[_LOSS]))
    series: Series = {}
    for words, points in found.items():
        if len({x for x, _ in points}) > 2:
            slope = log_slope(points)
            said = f"slope {slope.center:.3f}" + (f" ± {slope.half:.3f}" if slope.half else "")
            series[(*words, said)] = [_point(x, mean_interval(y)) for x, y in _by_x(points)]
    if not series:
        return None
    return _chart(
        comparison.config,
        "Loss against parameters, with the slope of log loss over log parameters (95 %)",
        "parameters",
        series,
        y="val/loss (nats a token)",
        log_x=True,
        log_y=True,
    )


def _learning_curves(comparison: Comparison, histories: Histories) -> Chart | None:
    """The metric over steps: mean over seeds, with a band from the least to the greatest."""
    config = comparison.config
    series: Series = {}
    for row in comparison.rows[:_MOST_CURVES]:
        runs = [histories[run.id] for run in row.best.entries if run.state == "done"]
        curves = [item for each in runs for item in each.items()]
        points = _by_x((step, value) for step, value in curves if is_finite(value))
        if len(points) > 1:
            series[row.labels] = [
                Point(x=step, y=fmean(values), low=min(values), high=max(values))
                for step, values in points
            ]
    if not series:
        return None
    title = f"{config.metric} over training: mean and range of the seeds"
    return _chart(config, title, "optimizer step", series, bands=True)


def _heat_map(comparison: Comparison) -> HeatMap | None:
    """Write rule x read rule, where these make the rows."""
    if sorted(comparison.by) != sorted((_WRITE, _READ)) or comparison.config.at is not None:
        return None
    place = {key: comparison.by.index(key) for key in (_WRITE, _READ)}
    rows = {(row.labels[place[_WRITE]], row.labels[place[_READ]]): row for row in comparison.rows}
    writes, reads = (sorted({pair[i] for pair in rows}) for i in (0, 1))
    if len(writes) < 2 or len(reads) < 2:
        return None
    summaries = {pair: row.summary for pair, row in rows.items()}
    cells = [[summaries.get((write, read)) for read in reads] for write in writes]
    return HeatMap(
        title=f"{comparison.config.metric}: mean over seeds ± half the 95 % interval",
        x="read rule",
        y="write rule",
        label=comparison.config.metric,
        columns=reads,
        rows=writes,
        values=[[each.center if each else None for each in row] for row in cells],
        texts=[[_cell(each) for each in row] for row in cells],
    )


def _lr_sensitivity(comparison: Comparison) -> Chart | None:
    """The metric over the learning rates that were tried, mean over seeds."""
    if LR not in comparison.over:
        return None
    place = comparison.over.index(LR)
    series: Series = {}
    for row in comparison.rows:
        points = [
            (float(cell.setting[place]), value)
            for cell in row.cells
            for value in cell.values.values()
        ]
        if len({x for x, _ in points}) > 1:
            series[row.labels] = [_point(x, mean_interval(values)) for x, values in _by_x(points)]
    return lr_chart(comparison.config.metric, dict(sorted(series.items()))) if series else None


def _chart(
    config: CompareConfig,
    title: str,
    x: str,
    series: Series,
    *,
    y: str | None = None,
    log_x: bool = False,
    log_y: bool = False,
    bands: bool = False,
) -> Chart:
    return Chart(
        title=title,
        x=x,
        y=y or config.metric,
        series={
            name: sorted(points, key=lambda each: each.x) for name, points in sorted(series.items())
        },
        log_x=log_x,
        log_y=log_y,
        bands=bands,
        share=y is None and is_share(config.metric),
    )


def _words(row: Row) -> tuple[str, ...]:
    """The labels that are no numbers: rows of several sizes make one line."""
    return tuple(each for each in row.labels if not _is_number(each)) or row.labels


def _point(x: float, value: Interval) -> Point:
    return Point(x=x, y=value.center, low=value.low, high=value.high)


def _by_x(points: Iterable[tuple[float, float]]) -> list[tuple[float, list[float]]]:
    values: dict[float, list[float]] = defaultdict(list)
    for x, y in points:
        values[x].append(y)
    return sorted(values.items())


def _cell(value: Interval | None) -> str:
    if value is None:
        return "none"
    return f"{value.center:.3f}" + ("" if value.half is None else f"\n± {value.half:.3f}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
