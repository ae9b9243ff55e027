"""How a model takes windows of different lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from statelab.figures.style import PALETTE, Subject, make_figure, plain_axes

__all__ = ["against_length", "by_position"]

_WIDE = (6.4, 3.8)


def against_length(rows: Sequence[Mapping[str, Any]], subject: Subject) -> Figure:
    """Perplexity against the windows' length, a line a corpus.

    Args:
        rows: Each with corpus, length and ppl.
        subject: For the title.
    """
    figure, [[axes]] = make_figure(subject, "Perplexity by length of the windows", panel=_WIDE)
    names = list(dict.fromkeys(row["corpus"] for row in rows))
    for i, name in enumerate(names):
        points = sorted((row["length"], row["ppl"]) for row in rows if row["corpus"] == name)
        lengths, values = zip(*points, strict=True)
        axes.plot(lengths, values, "o-", color=PALETTE[i % len(PALETTE)], label=name, markersize=4)
    _mark(axes, sorted({row["length"] for row in rows}))
    plain_axes(axes, x="length of a window (tokens)", y="perplexity (no unit)")
    _name(axes, names)
    return figure


def by_position(
    curves: Mapping[str, Sequence[Mapping[str, float]]], length: int, subject: Subject
) -> Figure:
    """Loss by position in the windows, a line a corpus; a point is the mean of its bin.

    Args:
        curves: Rows of first and last position and loss, by corpus.
        length: Of the windows.
        subject: For the title.
    """
    what = f"Loss by position in windows of {length:,} tokens"
    figure, [[axes]] = make_figure(subject, what, panel=_WIDE)
    for i, (name, rows) in enumerate(curves.items()):
        middle = [(row["first"] * row["last"]) ** 0.5 for row in rows]
        color = PALETTE[i % len(PALETTE)]
        axes.plot(
            middle, [row["loss"] for row in rows], "o-", color=color, label=name, markersize=3
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    plain_axes(axes, x="position (tokens read before)", y="loss (nats a token)")
    _name(axes, list(curves))
    return figure


def _mark(axes: Axes, lengths: Sequence[int]) -> None:
    """A logarithmic axis, marked at the lengths themselves."""
    axes.set_xscale("log")
    axes.set_xticks(lengths, [f"{each:,}" for each in lengths])
    axes.tick_params(axis="x", labelrotation=30 if len(lengths) > 5 else 0)
    axes.xaxis.set_minor_locator(NullLocator())


def _name(axes: Axes, names: Sequence[str]) -> None:
    if len(names) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8, frameon=False)
    else:
        axes.set_title(names[0], fontsize=10)
