"""What all figures share: title, colours that every eye can tell apart, size, and file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from statelab.model.layers import chosen

__all__ = [
    "BLUE",
    "ORANGE",
    "PALETTE",
    "Subject",
    "layer_colors",
    "layer_label",
    "make_figure",
    "plain_axes",
    "save",
]

#: Okabe and Ito's colours, from most to least contrast on white.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
BLUE, ORANGE = PALETTE[:2]

_DPI = 150


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What a figure shows, for its title.

    Attributes:
        pair: The pair of rules, as `gla+ccq`.
        parameters: How large the model is.
        moment: When: `step 250`, `best checkpoint`.
    """

    pair: str
    parameters: int
    moment: str

    def title(self) -> str:
        """`gla + ccq, 135M parameters, step 250`."""
        pair = self.pair.replace("+", " + ")
        return f"{pair}, {_short(self.parameters)} parameters, {self.moment}"


def make_figure(
    subject: Subject,
    what: str,
    shape: tuple[int, int] = (1, 1),
    *,
    panel: tuple[float, float] = (4.2, 3.2),
    **options: Any,
) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a title and a grid of axes.

    Args:
        subject: For the title's first line.
        what: Its second line, what the figure shows.
        shape: Rows and columns.
        panel: Width and height of an axes, inches.
        options: More of `Figure.subplots`.
    """
    rows, columns = shape
    # One panel still has to hold the title.
    size = max(columns * panel[0], 6.0), rows * panel[1] + 0.7
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    figure.suptitle(f"{subject.title()}\n{what}", fontsize=11)
    return figure, axes.tolist()


def plain_axes(axes: Axes, *, x: str, y: str, title: str = "") -> None:
    """Name both axes, with their units, and draw a light grid."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def layer_colors(layers: Iterable[int]) -> dict[int, Any]:
    """A colour a layer, from dark to light with depth; the palette's where layers are few."""
    layers = list(layers)
    if len(layers) <= 4:
        return dict(zip(layers, PALETTE, strict=False))
    # The last part of the map is too light for lines on white.
    ramp = matplotlib.colormaps["viridis"]
    return {layer: ramp(0.9 * i / (len(layers) - 1)) for i, layer in enumerate(layers)}


def layer_label(layer: int, layers: Iterable[int]) -> str | None:
    """A layer's name in a legend; of many layers only some are named."""
    return f"layer {layer}" if layer in chosen(list(layers), 5) else None


def save(figure: Figure, file: Path) -> None:
    """Write a PNG."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=_DPI)


def _short(number: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)
