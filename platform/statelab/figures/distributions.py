"""How a number that the rules watch is distributed: over depth, and over training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
from torch import Tensor

from statelab.figures.style import BLUE, ORANGE, Subject, make_figure, plain_axes
from statelab.model.layers import chosen

__all__ = ["Fan", "bands", "distribution", "file_name"]

Fan = Mapping[int, Mapping[int, Sequence[float]]]
"""The quantiles 0, 0.05, ..., 1 of one number: by layer, by step."""

_BINS = 40
_LONGEST = 1e6  # tokens: from there on a half-life is for ever


@dataclass(frozen=True, slots=True)
class _Scale:
    """How a number is shown."""

    title: str
    label: str
    log: bool = False


_SCALES = {
    "read/lambda": _Scale("Strength of the correction", "λ (no unit)"),
    "read/removed": _Scale("What the correction takes from the query", "|q - c| / |q| (no unit)"),
    "write/beta": _Scale("Write strength", "β (no unit)"),
    "write/weight": _Scale("Weight of a write", "w (no unit)"),
    "write/decay": _Scale("How long a write lasts", "half-life (tokens)", log=True),
}


def file_name(name: str) -> str:
    """`lambda` for `read/lambda`; a decay is shown as a half-life."""
    return "half_life" if name == "write/decay" else name.partition("/")[2]


def distribution(
    name: str, layers: Mapping[int, Tensor], training: Fan, subject: Subject
) -> Figure | None:
    """Left a histogram of each layer; right, for up to three layers, quantiles over the steps.

    Args:
        name: What is watched, as `read/lambda`.
        layers: Its values by layer, of any shape.
        training: Its quantiles by layer and step.
        subject: For the title.
    """
    if not layers:
        return None
    scale = _SCALES.get(name, _Scale(name, f"{file_name(name)} (no unit)"))
    # Half-lives are longer where decays are larger: the order of quantiles stays.
    shown = _half_life if name == "write/decay" else np.asarray
    values = {layer: shown(each.double().flatten()) for layer, each in layers.items()}
    picked = chosen([layer for layer in layers if layer in training], 3)
    figure, [axes] = make_figure(
        subject, scale.title, (1, 1 + len(picked)), panel=(3.6, 3.4), sharey=True
    )
    _histograms(axes[0], values, scale)
    for place, layer in zip(axes[1:], picked, strict=True):
        steps = list(training[layer])
        bands(place, steps, np.array([shown(training[layer][step]) for step in steps]))
        plain_axes(place, x="optimizer step", y=scale.label, title=f"layer {layer}")
        place.tick_params(labelleft=True)
    if picked:
        axes[1].legend(fontsize=8)
    return figure


def bands(axes: Axes, steps: Sequence[int], quantiles: np.ndarray, color: str = BLUE) -> None:
    """The median over the steps, with the bands that hold half and nine tenths.

    Args:
        axes: Where to draw.
        steps: Optimizer steps.
        quantiles: 0, 0.05, ..., 1 at each of them, [steps, 21].
        color: Of all three.
    """
    axes.fill_between(
        steps, quantiles[:, 1], quantiles[:, 19], color=color, alpha=0.2, label="90 %"
    )
    axes.fill_between(
        steps, quantiles[:, 5], quantiles[:, 15], color=color, alpha=0.4, label="50 %"
    )
    axes.plot(steps, quantiles[:, 10], color=color, label="median", marker="o", markersize=4)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def _histograms(axes: Axes, values: Mapping[int, np.ndarray], scale: _Scale) -> None:
    """A column a layer, whose colours are the shares of its values."""
    low = min(float(each.min()) for each in values.values())
    high = max(float(each.max()) for each in values.values())
    if scale.log:
        low, high = low / 1.2, high * 1.2
        edges = np.geomspace(low, high, _BINS + 1)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        margin = max(0.05 * (high - low), 1e-3)
        edges = np.linspace(low - margin, high + margin, _BINS + 1)
    share = np.array([np.histogram(each, edges)[0] / each.size for each in values.values()])
    columns = np.arange(len(values) + 1) - 0.5
    image = axes.pcolormesh(columns, edges, 100 * share.T, cmap="Blues", vmin=0)
    axes.figure.colorbar(image, ax=axes, label="share of the layer's values (%)")
    medians = [float(np.median(each)) for each in values.values()]
    axes.plot(range(len(values)), medians, "D", color=ORANGE, markersize=5, label="median")
    plain_axes(axes, x="layer", y=scale.label, title="over depth")
    axes.grid(visible=False)
    axes.set_xticks(range(len(values)), [str(layer) for layer in values])
    axes.legend(fontsize=8)


def _half_life(decay: Tensor | Sequence[float]) -> np.ndarray:
    wide = torch.as_tensor(decay, dtype=torch.float64).clamp(1e-30, math.exp2(-1 / _LONGEST))
    return (-math.log(2) / wide.log()).numpy()
