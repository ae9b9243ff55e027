"""The geometry of the keys: how many directions they share."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from statelab.figures.style import (
    BLUE,
    ORANGE,
    Subject,
    layer_colors,
    layer_label,
    make_figure,
    plain_axes,
)

__all__ = ["key_covariance"]


def key_covariance(spectra: Mapping[int, Tensor], subject: Subject) -> Figure | None:
    """Left all eigenvalues of each layer's covariance of unit keys; right the largest, and all.

    Args:
        spectra: Eigenvalues by layer, largest first, [H, K].
        subject: For the title.
    """
    if not spectra:
        return None
    figure, [[left, right]] = make_figure(subject, "Covariance Σ of the unit keys", (1, 2))
    layers = list(spectra)
    # A sequence of T keys has T - 1 of them at most, and rounding leaves dust below that.
    mean = {layer: each.mean(0).clamp(min=0) for layer, each in spectra.items()}
    for layer, color in layer_colors(layers).items():
        number = range(1, len(mean[layer]) + 1)
        left.plot(number, mean[layer], color=color, label=layer_label(layer, layers), linewidth=1.5)
    size = len(mean[layers[0]])
    left.axhline(1 / size, color="0.5", linestyle=":", label="no direction preferred")
    left.set_yscale("log")
    left.set_ylim(bottom=1e-5, top=1.2)
    plain_axes(left, x="eigenvalue, by size", y="eigenvalue, mean over heads (no unit)")
    left.legend(fontsize=8)

    for name, color, values in (
        ("trace, 1 - |mean key|²", BLUE, [e.sum(-1) for e in spectra.values()]),
        ("largest eigenvalue", ORANGE, [e[:, 0] for e in spectra.values()]),
    ):
        right.plot(layers, [float(e.mean()) for e in values], "o-", color=color, label=name)
        for layer, each in zip(layers, values, strict=True):
            right.plot([layer] * len(each), each, "_", color=color, alpha=0.6)
    right.set_ylim(0, 1.25)
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    plain_axes(right, x="layer", y="of Σ; dashes are heads (no unit)")
    right.legend(fontsize=8, loc="upper center")
    return figure
