"""Maps of the effective weights: how much of each token's value is in each output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from statelab.figures.style import Subject, make_figure
from statelab.model.layers import chosen
from statelab.probe import Weights

__all__ = ["against_plain", "effective_weights"]

_MOST_LAYERS, _MOST_HEADS = 3, 3
_LABELLED = 64  # longer texts have numbers at their axes

_PANEL = (5.0, 4.7)  # inches
_SHARE = "share of the row's |weights| (no unit)"


def effective_weights(
    weights: Mapping[int, Weights], kinds: Mapping[int, str], text: Sequence[str], subject: Subject
) -> Figure | None:
    """Up to three layers down, up to three heads across: o_t <- v_j.

    Args:
        weights: Of these layers.
        kinds: What each layer is.
        text: A label a token.
        subject: For the title.
    """
    if not weights:
        return None
    layers = chosen(list(weights), _MOST_LAYERS)
    heads = chosen(range(len(weights[layers[0]].read)), _MOST_HEADS)
    panels = [
        [
            (_shares(weights[layer].read[head]), f"layer {layer} ({kinds[layer]}), head {head}")
            for head in heads
        ]
        for layer in layers
    ]
    what = "Effective weights $o_t \\leftarrow v_j$: how much of value j is in output t"
    figure, rows = make_figure(subject, what, (len(layers), len(heads)), panel=_PANEL)
    # A layer of attention would outshine a memory on a scale that they share.
    for row, maps in zip(rows, panels, strict=True):
        _maps([row], [maps], _SHARE)
    _label(rows, text)
    return figure


def against_plain(
    weights: Mapping[int, Weights], text: Sequence[str], subject: Subject
) -> Figure | None:
    """The same memory, read plainly and as the pair reads it, and the difference.

    Of each layer the head is shown where that is largest.
    """
    reads: list[list[tuple[Tensor, str]]] = []
    changes: list[list[tuple[Tensor, str]]] = []
    for layer in chosen([i for i, each in weights.items() if each.plain is not None], 2):
        plain = weights[layer].plain
        assert plain is not None
        before, after = _shares(plain), _shares(weights[layer].read)
        head = int((after - before).abs().sum((1, 2)).argmax())
        where = f"layer {layer}, head {head}"
        reads.append(
            [(before[head], f"{where}: read plainly"), (after[head], "as this pair reads")]
        )
        changes.append([(after[head] - before[head], "difference, on a scale of its own")])
    if not reads:
        return None
    what = "What the read rule changes in the effective weights $o_t \\leftarrow v_j$"
    figure, rows = make_figure(subject, what, (len(reads), 3), panel=_PANEL)
    _maps([row[:2] for row in rows], reads, _SHARE)
    _maps([row[2:] for row in rows], changes, "difference of shares (no unit)")
    _label(rows, text)
    return figure


def _maps(
    rows: Sequence[Sequence[Axes]],
    panels: Sequence[Sequence[tuple[Tensor, str]]],
    label: str,
) -> None:
    """Draw maps [T, T], each with its title, on one scale."""
    largest = max(_typical(each) for row in panels for each, _ in row)
    for axes_row, row in zip(rows, panels, strict=True):
        for axes, (shares, title) in zip(axes_row, row, strict=True):
            future = torch.ones_like(shares, dtype=torch.bool).triu(1)
            shown = np.ma.masked_array(shares.numpy(), future.numpy())
            axes.set_facecolor("0.93")
            image = axes.imshow(
                shown, cmap="PuOr", vmin=-largest, vmax=largest, interpolation="nearest"
            )
            axes.set_title(title, fontsize=10)
            axes.tick_params(length=1.5, pad=1)
    every = [axes for row in rows for axes in row]
    every[0].figure.colorbar(
        image, ax=every, label=label, extend="both", fraction=0.04, aspect=30, shrink=0.8
    )


def _shares(weights: Tensor) -> Tensor:
    """Each row over the sum of its sizes: what stays where the output is normalised."""
    return weights / weights.abs().sum(-1, keepdim=True).clamp(min=1e-12)


def _typical(shares: Tensor) -> float:
    """The scale's end. The first rows have few tokens to share among, and would outshine all."""
    rows = shares[min(4, len(shares) - 1) :]
    return max(float(rows.abs().amax(-1).quantile(0.9)), 1e-6)


def _label(rows: Sequence[Sequence[Axes]], text: Sequence[str]) -> None:
    """Write the tokens at the left and lower edge of the grid, where they are few enough."""
    for axes in (axes for row in rows for axes in row):
        axes.set_xlabel("value of token j")
        axes.set_ylabel("output at token t")
        if len(text) <= _LABELLED:
            axes.set_xticks([])
            axes.set_yticks([])
    if len(text) > _LABELLED:
        return
    places = range(len(text))
    font: dict[str, Any] = {
        "fontsize": min(8.0, 270 / len(text)),
        "family": "monospace",
        "parse_math": False,
    }
    for row in rows:
        row[0].set_yticks(places, text, **font)
    for axes in rows[-1]:
        axes.set_xticks(places, text, rotation=90 * (max(map(len, text)) > 1), **font)
