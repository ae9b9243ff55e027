"""Means and slopes with their intervals, of 95 % and by Student's t."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

__all__ = ["LEVEL", "Interval", "log_slope", "mean_interval", "paired_interval"]

#: How often such an interval holds the true value.
LEVEL = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """An estimate, and how far the true value may be from it.

    Attributes:
        center: The estimate.
        half: Half the interval's width; None where there is one value too few for it.
        count: Of how many values.
    """

    center: float
    half: float | None
    count: int

    @property
    def low(self) -> float | None:
        """The lower end."""
        return None if self.half is None else self.center - self.half

    @property
    def high(self) -> float | None:
        """The upper end."""
        return None if self.half is None else self.center + self.half


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean +- t_(n-1) s / sqrt(n), s the sample's standard deviation.

    Args:
        values: One at least, finite.
    """
    n = len(values)
    half = _t(n - 1) * stdev(values) / math.sqrt(n) if n > 1 else None
    return Interval(center=fmean(values), half=half, count=n)


def paired_interval(values: Mapping[str, float], others: Mapping[str, float]) -> Interval | None:
    """The mean difference `values - others` of what both have, with its interval; None of nothing.

    What a seed does to both cancels, so that it is narrower than either's own mostly.
    """
    both = [values[key] - others[key] for key in values if key in others]
    return mean_interval(both) if both else None


def log_slope(points: Sequence[tuple[float, float]]) -> Interval:
    """The slope b of log y = a + b log x by least squares, b +- t_(n-2) s_b.

    Args:
        points: x and y, all above 0, at two different x at least.
    """
    x, y = ([math.log(each) for each in axis] for axis in zip(*points, strict=True))
    n, mean_x, mean_y = len(x), fmean(x), fmean(y)
    spread = sum((each - mean_x) ** 2 for each in x)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    rest = (b - mean_y - slope * (a - mean_x) for a, b in zip(x, y, strict=True))
    half = None
    if n > 2:
        half = _t(n - 2) * math.sqrt(sum(each**2 for each in rest) / (n - 2) / spread)
    return Interval(center=slope, half=half, count=n)


def _t(degrees: int) -> float:
    """Student's t that a value stays below in size, LEVEL of the time."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return float(stdtrit(degrees, (1 + LEVEL) / 2))
