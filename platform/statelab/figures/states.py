"""How large the memories' states are: over the text, and over training."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from statelab.figures.distributions import Fan
from statelab.figures.style import Subject, layer_colors, layer_label, make_figure, plain_axes

__all__ = ["state_norms"]


def state_norms(norms: Mapping[int, Tensor], training: Fan, subject: Subject) -> Figure | None:
    """Left |S_t| over the tokens of a text, right |S| after a text over the steps.

    Args:
        norms: Rows of t and |S_t| by layer.
        training: Quantiles of |S| after a text, by layer and step.
        subject: For the title.
    """
    if not norms:
        return None
    figure, [[left, right]] = make_figure(subject, "Norm of the state, a head", (1, 2))
    for layer, color in layer_colors(norms).items():
        tokens, norm = norms[layer].T
        left.plot(tokens, norm, "o-", color=color, markersize=3, label=layer_label(layer, norms))
        if layer in training:
            steps = list(training[layer])
            quantiles = np.array([training[layer][step] for step in steps])
            right.plot(steps, quantiles[:, 10], "o-", color=color, markersize=3)
            right.fill_between(steps, quantiles[:, 1], quantiles[:, 19], color=color, alpha=0.12)
    left.set_xlim(left=0)
    plain_axes(left, x="tokens read", y="|S|, Frobenius (units of k v)", title="over the text")
    left.legend(fontsize=8)
    right.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    plain_axes(
        right,
        x="optimizer step",
        y="|S| after the text (units of k v)",
        title="over training: median, and 90 %",
    )
    for axes in (left, right):
        axes.set_ylim(bottom=0)
    return figure
