"""All figures of a run and a model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from statelab.callbacks.diagnostics import DISTRIBUTIONS
from statelab.examination import Examination
from statelab.figures import curves, distributions, grid, keys, states, weights
from statelab.figures.style import Subject, save
from statelab.runs.metric_history import metric_history, read_lines

__all__ = ["draw"]

_STATE = "write/state_norm"

log = logging.getLogger(__name__)


def draw(seen: Examination, subject: Subject, run: Path, out: Path) -> list[Path]:
    """Draw whatever the run and the model have something for.

    One that fails is left out, which a line of the log says.

    Args:
        seen: What was found in the model.
        subject: For the titles.
        run: The run's folder, for what happened over training.
        out: Where the figures go.

    Returns:
        The files.
    """
    files = []
    for name, make in _figures(seen, subject, run).items():
        try:
            figure = make()
            if figure is not None:
                save(figure, out / f"{name}.png")
                files.append(out / f"{name}.png")
        except Exception as error:
            log.warning("no figure %s: %s: %s", name, type(error).__name__, error)
    return files


def _figures(
    seen: Examination, subject: Subject, run: Path
) -> dict[str, Callable[[], Figure | None]]:
    history, fans = metric_history(run), _fans(run)

    def watched(name: str) -> Callable[[], Figure | None]:
        layers = {i: each[name] for i, each in seen.diagnostics.items() if name in each}
        return lambda: distributions.distribution(name, layers, fans.get(name, {}), subject)

    names = {n for each in seen.diagnostics.values() for n, values in each.items() if values.ndim}
    return {
        "training": lambda: curves.training_curves(history, subject),
        "slices": lambda: curves.slice_accuracy(history, subject),
        "slice_map": lambda: grid.slice_map(history, subject),
        "weights": lambda: weights.effective_weights(seen.weights, seen.kinds, seen.text, subject),
        "weights_against_plain": lambda: weights.against_plain(seen.weights, seen.text, subject),
        "keys": lambda: keys.key_covariance(seen.spectra, subject),
        "states": lambda: states.state_norms(seen.norms, fans.get(_STATE, {}), subject),
        **{distributions.file_name(name): watched(name) for name in sorted(names - {_STATE})},
    }


def _fans(run: Path) -> dict[str, dict[int, dict[int, list[float]]]]:
    """The quantiles that training has left, by name, layer and step."""
    fans: dict[str, dict[int, dict[int, list[float]]]] = {}
    for row in read_lines(run / DISTRIBUTIONS):
        by_step = fans.setdefault(row["name"], {}).setdefault(row["layer"], {})
        by_step[row["step"]] = row["quantiles"]
    return fans
