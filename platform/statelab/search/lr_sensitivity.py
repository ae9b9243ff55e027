"""How a study's metric depends on the learning rate, rule by rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from optuna.trial import FrozenTrial

from statelab.figures.chart import Chart, Point
from statelab.figures.lr_sensitivity import LR, lr_chart
from statelab.search.objective import VALUES

__all__ = ["LR", "study_lr_chart"]

_RULES = ("model.write.name", "model.read.name", "write", "read")


def study_lr_chart(trials: Sequence[FrozenTrial], metric: str) -> Chart:
    """A line a pair of rules, a point a trial."""
    lines: dict[tuple[str, ...], list[Point]] = defaultdict(list)
    for trial in trials:
        sets = trial.user_attrs[VALUES]
        pair = tuple(str(sets[key]) for key in _RULES if key in sets)
        lines[pair or ("all",)].append(Point(x=float(sets[LR]), y=trial.values[0]))
    series = {pair: sorted(points, key=lambda each: each.x) for pair, points in lines.items()}
    return lr_chart(metric, dict(sorted(series.items())))
