"""The figures of the benchmarks: time against T, on logarithmic axes."""

from collections.abc import Mapping, Sequence
from itertools import cycle, product
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from statelab.figures.style import PALETTE, plain_axes

#: Measurements by T, by the name of the line.
Curves = dict[str, dict[int, Mapping[str, float]]]

# At most.
_COLUMNS = 4
# Lines differ in colour first; black is the baseline's.
_STYLES = [(color, dash) for dash, color in product(("-", "--"), PALETTE[:-1])]


def draw_times(
    panels: Mapping[str, Curves], *, title: str, x: str, y: str, baseline: str
) -> Figure | None:
    """A panel for each set of lines, all with the same axes, medians with their quartiles.

    Args:
        panels: Lines by the title of their panel.
        title: Of the figure.
        x: What is measured against, with its unit.
        y: What is measured, with its unit.
        baseline: The line that is drawn black.

    Returns:
        The figure; None if there is nothing in it.
    """
    if not panels:
        return None
    lines = list(dict.fromkeys(line for curves in panels.values() for line in curves))
    others = [line for line in lines if line != baseline]
    styles = dict(zip(others, cycle(_STYLES), strict=False)) | {baseline: (PALETTE[-1], ":")}
    rows = -(-len(panels) // _COLUMNS)
    columns = -(-len(panels) // rows)
    figure = Figure(figsize=(max(3.0 * columns, 9.0), 2.6 * rows + 1.2), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    handles: dict[str, Any] = {}
    for index, (axes, (name, curves)) in enumerate(zip(grid.flat, panels.items(), strict=False)):
        lowest = index + columns >= len(panels)
        plain_axes(axes, x=x if lowest else "", y="" if index % columns else y, title=name)
        axes.tick_params(labelbottom=lowest)
        for line, points in curves.items():
            handles[line] = _line(axes, points, *styles[line])
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    _scale(figure.axes[0], {t for curves in panels.values() for p in curves.values() for t in p})
    figure.suptitle(title, fontsize=11)
    named = [line for line in lines if line in handles]
    figure.legend(
        [handles[line] for line in named],
        named,
        loc="outside lower center",
        ncols=min(len(named), 6),
        handlelength=3,
        frameon=False,
    )
    return figure


def panels_by_read(
    rows: Sequence[Mapping[str, Any]], *, x: str, baseline: str
) -> dict[str, Curves]:
    """A panel a read rule with a line a write rule, and the baseline in each of them."""
    panels: dict[str, Curves] = {}
    for row in rows:
        write, _, read = row["pair"].partition("+")
        place = baseline if row["pair"] == baseline else read
        line = baseline if row["pair"] == baseline else write
        panels.setdefault(place, {}).setdefault(line, {})[row[x]] = row["ms"]
    common = panels.pop(baseline, {})
    return {read: {**common, **curves} for read, curves in panels.items()} or (
        {baseline: common} if common else {}
    )


def _line(axes: Axes, points: Mapping[int, Mapping[str, float]], color: str, dash: str) -> Any:
    medians = [cell["median"] for cell in points.values()]
    below = [cell["median"] - cell["low"] for cell in points.values()]
    above = [cell["high"] - cell["median"] for cell in points.values()]
    return axes.errorbar(
        list(points),
        medians,
        yerr=[below, above],
        color=color,
        linestyle=dash,
        marker="o",
        markersize=3.5,
        linewidth=1.4,
        capsize=2,
    )


def _scale(axes: Axes, lengths: set[int]) -> None:
    """Logarithmic, for all panels, and marked at the lengths that were measured."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted(lengths)
    axes.set_xticks(ticks, [f"{each:,}" for each in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    # Marked often enough where all lies within one power of ten.
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
