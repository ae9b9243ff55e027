"""Charts that exist twice: as a picture, and as an interactive figure of a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from statelab.figures.style import PALETTE, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Chart", "HeatMap", "Point", "is_share"]

_DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
_MARKS = {"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A value, with the ends of its interval if it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """Values over a number.

    Attributes:
        title: What is shown.
        x: The lower axis, with its unit.
        y: The left axis, with its unit.
        series: Points from left to right, by the words that name them. The first word gives the
            colour, the others the mark and the dash.
        log_x: Whether the lower axis has decades.
        log_y: Whether the left one has.
        bands: Whether intervals are drawn as bands.
        share: Whether the values lie between 0 and 1.
        rings: Points to look at.
    """

    title: str
    x: str
    y: str
    series: Mapping[tuple[str, ...], Sequence[Point]]
    log_x: bool = False
    log_y: bool = False
    bands: bool = False
    share: bool = False
    rings: Sequence[Point] = ()

    def picture(self) -> Figure:
        """For matplotlib."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        axes = figure.subplots()
        for name, style in _styles(self.series).items():
            self._draw(axes, name, style)
        for ring in self.rings:
            axes.plot(ring.x, ring.y, "o", markersize=11, fillstyle="none", color="black")
        axes.set_xscale("log" if self.log_x else "linear")
        axes.set_yscale("log" if self.log_y else "linear")
        if self.share:
            axes.set_ylim(-0.03, 1.03)
        plain_axes(axes, x=self.x, y=self.y)
        _label_own(axes, self)
        figure.suptitle(self.title, fontsize=11)
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(1.01, 1.0),
            fontsize=8,
            frameon=False,
            handlelength=3.2,
        )
        return figure

    def page(self) -> Any:
        """For plotly."""
        from plotly import graph_objects  # type: ignore[import-untyped]

        figure = graph_objects.Figure()
        for name, style in _styles(self.series).items():
            points = self.series[name]
            word, group = " + ".join(name), style.color + style.dash
            if self.bands:
                ring = [each for each in points if each.low is not None]
                figure.add_scatter(
                    x=[each.x for each in (*ring, *ring[::-1])],
                    y=[*(each.high for each in ring), *(each.low for each in ring[::-1])],
                    fill="toself",
                    fillcolor=style.color,
                    opacity=0.15,
                    line={"width": 0},
                    hoverinfo="skip",
                    showlegend=False,
                    legendgroup=group,
                )
            figure.add_scatter(
                x=[each.x for each in points],
                y=[each.y for each in points],
                name=word,
                mode="lines+markers",
                legendgroup=group,
                line={"color": style.color, "dash": _DASHES[style.dash]},
                marker={"symbol": _MARKS[style.mark]},
                error_y=None if self.bands else _bars(points),
            )
        figure.add_scatter(
            x=[each.x for each in self.rings],
            y=[each.y for each in self.rings],
            mode="markers",
            marker={"symbol": "circle-open", "size": 14, "color": "black"},
            hoverinfo="skip",
            showlegend=False,
        )
        figure.update_xaxes(title=self.x, type="log" if self.log_x else "linear")
        figure.update_yaxes(title=self.y, type="log" if self.log_y else "linear")
        if self.share:
            figure.update_yaxes(range=(-0.03, 1.03))
        return figure.update_layout(title=self.title, template="plotly_white")

    def _draw(self, axes: Axes, name: tuple[str, ...], style: _Style) -> None:
        points = self.series[name]
        axes.plot(
            [each.x for each in points],
            [each.y for each in points],
            label=" + ".join(name),
            color=style.color,
            linestyle=style.dash,
            marker=style.mark,
            markersize=4.5,
            linewidth=1.3,
        )
        ends = [(p.x, p.low, p.high) for p in points if p.low is not None and p.high is not None]
        if not ends:
            return
        x, low, high = map(list, zip(*ends, strict=True))
        if self.bands:
            axes.fill_between(x, low, high, color=style.color, alpha=0.13, linewidth=0)
        else:
            axes.vlines(x, low, high, color=style.color, linewidth=1.0, alpha=0.7)


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatMap:
    """A value for each pair of words.

    Attributes:
        title: What is shown.
        x: What the columns are.
        y: What the rows are.
        label: What the colour is.
        columns: Their names.
        rows: Their names.
        values: A list a row; None where there is none.
        texts: What is written into each cell.
        share: Whether the values lie between 0 and 1.
    """

    title: str
    x: str
    y: str
    label: str
    columns: Sequence[str]
    rows: Sequence[str]
    values: Sequence[Sequence[float | None]]
    texts: Sequence[Sequence[str]]
    share: bool = False

    def picture(self) -> Figure:
        """For matplotlib."""
        from matplotlib.figure import Figure

        size = 2.2 + 1.35 * len(self.columns), 1.7 + 0.62 * len(self.rows)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        numbers = np.array([[np.nan if v is None else v for v in row] for row in self.values])
        low, high = (0.0, 1.0) if self.share else (None, None)
        image = axes.imshow(numbers, cmap="cividis", aspect="auto", vmin=low, vmax=high)
        for i, row in enumerate(self.texts):
            for j, text in enumerate(row):
                # The map's first half is too dark for black.
                red, green, blue, _ = image.to_rgba(numbers[i, j : j + 1])[0]
                color = "w" if red + green + blue < 1.5 else "k"
                axes.text(j, i, text, ha="center", va="center", fontsize=9, color=color)
        axes.set_xticks(range(len(self.columns)), self.columns)
        axes.set_yticks(range(len(self.rows)), self.rows)
        axes.set_xlabel(self.x)
        axes.set_ylabel(self.y)
        axes.set_facecolor("0.93")
        figure.colorbar(image, label=self.label)
        figure.suptitle(self.title, fontsize=11)
        return figure

    def page(self) -> Any:
        """For plotly."""
        from plotly import graph_objects

        ends = {"zmin": 0.0, "zmax": 1.0} if self.share else {}
        figure = graph_objects.Figure(
            graph_objects.Heatmap(
                x=list(self.columns),
                y=list(self.rows),
                z=[list(row) for row in self.values],
                text=[[each.replace("\n", "<br>") for each in row] for row in self.texts],
                texttemplate="%{text}",
                colorscale="Cividis",
                colorbar={"title": self.label},
                **ends,
            )
        )
        figure.update_xaxes(title=self.x)
        figure.update_yaxes(title=self.y, autorange="reversed")
        return figure.update_layout(title=self.title, template="plotly_white")


def is_share(metric: str) -> bool:
    """Whether a metric's values lie between 0 and 1."""
    return not {"accuracy", "exact"}.isdisjoint(metric.split("/"))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Style:
    color: str
    dash: str
    mark: str


def _styles(names: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], _Style]:
    """A look for each series, from its words."""
    names = list(names)
    # With one first word for all, what comes after it has the colours.
    cut = 1 if len({name[0] for name in names}) > 1 else max(map(len, names), default=1)
    split = {name: (name[:cut], name[cut:]) for name in names}
    colors = list(dict.fromkeys(first for first, _ in split.values()))
    looks = list(dict.fromkeys(rest for _, rest in split.values()))
    dashes, marks = list(_DASHES), list(_MARKS)
    return {
        name: _Style(
            color=PALETTE[colors.index(first) % len(PALETTE)],
            dash=dashes[looks.index(rest) % len(dashes)],
            mark=marks[looks.index(rest) % len(marks)],
        )
        for name, (first, rest) in split.items()
    }


def _bars(points: Sequence[Point]) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [None if each.high is None else each.high - each.y for each in points],
        "arrayminus": [None if each.low is None else each.y - each.low for each in points],
    }


def _label_own(axes: Axes, chart: Chart) -> None:
    """Write the numbers of a logarithmic axis at the chart's values, not at decades."""
    from matplotlib.ticker import NullLocator

    values = sorted({each.x for points in chart.series.values() for each in points})
    if not chart.log_x or values[0] <= 0 or len(values) < 2:
        return
    apart = np.log(values[-1] / values[0]) / 7
    labelled = values[:1]
    for each in values:
        if np.log(each / labelled[-1]) > apart:
            labelled.append(each)
    axes.set_xticks(labelled, [f"{each:.2g}" if each < 1 else f"{each:,.0f}" for each in labelled])
    axes.xaxis.set_minor_locator(NullLocator())
