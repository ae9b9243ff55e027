"""How a study's metric depends on the learning rate, rule by rule."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from optuna.trial import FrozenTrial

from statelab.figures.chart import Chart, Point
from statelab.figures.lr_sensitivity import LR, lr_chart
from statelab.search.objective import VALUES

__all__ = ["LR", "study_lr_chart"]

log = logging.getLogger(__name__)

_RULES = ("model.write.name", "model.read.name", "write", "read")


def study_lr_chart(trials: Sequence[FrozenTrial], metric: str, direction: str) -> Chart:
    """A line a pair of rules, a point a trial; the best rate of each pair is ringed.

    Where that is the least or the greatest that the pair has tried, a line of log says so.
    """
    lines: dict[tuple[str, ...], list[Point]] = defaultdict(list)
    for trial in trials:
        sets = trial.user_attrs[VALUES]
        pair = tuple(str(sets[key]) for key in _RULES if key in sets)
        lines[pair or ("all",)].append(Point(x=float(sets[LR]), y=trial.values[0]))
    series = {pair: sorted(lines[pair], key=lambda each: each.x) for pair in sorted(lines)}
    pick = min if direction == "minimize" else max
    best = {pair: pick(points, key=lambda each: each.y) for pair, points in series.items()}
    for pair, points in series.items():
        for word, end in (("least", points[0]), ("greatest", points[-1])):
            if len(points) > 1 and best[pair] is end:
                log.warning(
                    "%s: %s is best at %s=%.3g, the %s that was tried. Widen the range.",
                    "+".join(pair),
                    metric,
                    LR,
                    end.x,
                    word,
                )
    return replace(lr_chart(metric, series), rings=[*best.values()])
