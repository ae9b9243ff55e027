"""How a metric depends on the learning rate, rule by rule: whether each got the one it wants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from optuna.trial import FrozenTrial

from statelab.search.objective import VALUES

__all__ = ["LR", "lr_page", "lr_picture"]

LR = "optim.lr"

_RULES = ("model.write.name", "model.read.name", "write", "read")


def lr_page(trials: Sequence[FrozenTrial], metric: str) -> Any:
    """The interactive figure: a line a pair of rules, a point a trial."""
    from plotly import graph_objects  # type: ignore[import-untyped]

    figure = graph_objects.Figure()
    for pair, points in _lines(trials).items():
        rates, values = zip(*points, strict=True)
        figure.add_scatter(x=rates, y=values, name=pair, mode="lines+markers")
    figure.update_xaxes(type="log", title=LR)
    figure.update_yaxes(title=metric)
    return figure


def lr_picture(trials: Sequence[FrozenTrial], metric: str) -> Any:
    """The same as a picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    for pair, points in _lines(trials).items():
        rates, values = zip(*points, strict=True)
        axes.plot(rates, values, marker="o", label=pair)
    axes.set_xscale("log")
    axes.set_xlabel(LR)
    axes.set_ylabel(metric)
    axes.legend()
    return figure


def _lines(trials: Sequence[FrozenTrial]) -> dict[str, list[tuple[float, float]]]:
    """By pair of rules, rate and first metric of each trial, from the least rate on."""
    lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for trial in trials:
        sets = trial.user_attrs[VALUES]
        pair = "+".join(str(sets[key]) for key in _RULES if key in sets)
        lines[pair or "all"].append((float(sets[LR]), trial.values[0]))
    return {pair: sorted(points) for pair, points in sorted(lines.items())}
