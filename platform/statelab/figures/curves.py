"""How a run went: loss, metrics, learning rate and speed over its steps, accuracy by slice."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from statelab.figures.grid import SCORES, find_grid, over_rows
from statelab.figures.style import PALETTE, Subject, make_figure, plain_axes
from statelab.runs.metric_history import History

__all__ = ["slice_accuracy", "training_curves"]

_STEP = "optimizer step"
_SPIKED = ("val/ppl", "grad_norm")  # over decades, at times


def training_curves(history: History, subject: Subject) -> Figure | None:
    """Loss, accuracy, bits per byte or perplexity, learning rate, gradient and speed."""
    if "train/loss" not in history:
        return None
    text = "val/bpb" in history
    panels = {
        "loss (nats a token)": ["train/loss", "val/loss"],
        "bits a byte" if text else "perplexity (no unit)": ["val/bpb" if text else "val/ppl"],
        "accuracy (share of tokens)": ["val/accuracy"],
        "learning rate (no unit)": ["lr"],
        "gradient norm before clipping (no unit)": ["grad_norm"],
        "speed (tokens a second)": ["perf/tokens_per_second"],
    }
    figure, rows = make_figure(subject, "Training", (2, 3))
    every = (axes for row in rows for axes in row)
    for axes, (label, names) in zip(every, panels.items(), strict=True):
        _plot(axes, history, names)
        plain_axes(axes, x=_STEP, y=label)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure


def slice_accuracy(history: History, subject: Subject) -> Figure | None:
    """Exact match, or accuracy, by slice: over the steps, and at the last one.

    Of a grid of slices, the mean over its second number.
    """
    metric = next((each for each in SCORES if each in history), "")
    by_slice = {
        name.removeprefix(f"{metric}/"): values
        for name, values in history.items()
        if name.startswith(f"{metric}/")
    }
    if not metric or not by_slice:
        return None
    grid = find_grid(history)
    if grid is not None:
        by_slice = over_rows(history, grid)
    figure, [[left, right]] = make_figure(subject, "Validation accuracy by slice", (1, 2))
    for i, (label, by_step) in enumerate(by_slice.items()):
        steps, values = list(by_step), list(by_step.values())
        left.plot(steps, values, "o-", color=PALETTE[i % len(PALETTE)], label=label, markersize=4)
        right.barh(label, values[-1], height=0.7, color=PALETTE[i % len(PALETTE)])
        right.text(values[-1] + 0.02, i, f"{values[-1]:.3f}", va="center", fontsize=9)
    plain_axes(left, x=_STEP, y=SCORES[metric])
    left.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    left.set_ylim(-0.03, 1.03)
    left.legend(fontsize=8)
    plain_axes(right, x=f"{SCORES[metric]}, last step", y="slice")
    right.set_xlim(0, 1.15)
    right.set_ylim(max(len(by_slice), 4) - 0.5, -0.5)
    return figure


def _plot(axes: Axes, history: History, names: list[str]) -> None:
    for i, name in enumerate(names):
        if name in history:
            steps, values = list(history[name]), list(history[name].values())
            marks = "o-" if name.startswith("val/") else "-"
            axes.plot(steps, values, marks, color=PALETTE[i], markersize=4, linewidth=1.3)
            if name in _SPIKED and min(values) > 0 and max(values) > 20 * min(values):
                axes.set_yscale("log")
    if len(names) > 1:
        axes.legend([name.partition("/")[0] for name in names], fontsize=8)
