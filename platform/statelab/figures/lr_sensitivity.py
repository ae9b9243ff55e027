"""How a metric depends on the learning rate: whether everyone got the one they want."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from statelab.figures.chart import Chart, Point, is_share

__all__ = ["LR", "lr_chart"]

LR = "optim.lr"


def lr_chart(metric: str, series: Mapping[tuple[str, ...], Sequence[Point]]) -> Chart:
    """A line for each that was trained with several rates.

    Args:
        metric: The metric's name.
        series: The metric at each rate, from the least rate on.
    """
    return Chart(
        title=f"{metric} by learning rate",
        x=f"learning rate ({LR})",
        y=metric,
        series=series,
        log_x=True,
        share=is_share(metric),
    )
