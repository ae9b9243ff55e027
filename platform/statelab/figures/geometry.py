"""The geometry of needles and distractors among the keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from statelab.figures.style import BLUE, ORANGE, Subject, make_figure, plain_axes

__all__ = ["key_geometry"]

_MOST_TEXTS = 96


def key_geometry(layers: Sequence[Mapping[str, Any]], rank: int, subject: Subject) -> Figure:
    """Left the gap of each layer and head; right both shares by layer, with a dash a head.

    Args:
        layers: Rows of layer, and gap, needle and distractor, a list over heads each.
        rank: Eigenvectors.
        subject: For the title.
    """
    what = f"Share of centred key energy in the top {rank} eigenvectors"
    figure, [[left, right]] = make_figure(subject, what, (1, 2), panel=(4.6, 3.8))
    numbers = [row["layer"] for row in layers]
    gaps = np.array([row["gap"] for row in layers])
    most = max(float(np.abs(gaps).max()), 1e-3)
    image = left.imshow(gaps, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
    if gaps.size <= _MOST_TEXTS:
        for (i, j), gap in np.ndenumerate(gaps):
            color = "w" if abs(gap) > 0.6 * most else "k"
            left.text(j, i, f"{gap:.2f}", ha="center", va="center", fontsize=8, color=color)
    left.set_yticks(range(len(numbers)), [str(each) for each in numbers])
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    plain_axes(left, x="head", y="layer", title="needle minus distractors")
    left.grid(visible=False)
    figure.colorbar(image, ax=left)
    for name, color in (("needle", ORANGE), ("distractor", BLUE)):
        values = [row[name] for row in layers]
        right.plot(numbers, [np.mean(each) for each in values], "o-", color=color, label=name)
        for layer, each in zip(numbers, values, strict=True):
            right.plot([layer] * len(each), each, "_", color=color, alpha=0.6)
    right.set_ylim(0, 1.05)
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    plain_axes(right, x="layer", y="share of energy; dashes are heads (no unit)")
    right.legend(fontsize=8)
    return figure
