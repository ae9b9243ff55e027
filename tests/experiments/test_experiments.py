"""Every experiment resolves, and takes two steps at toy size, in each of its arms."""

from __future__ import annotations

import math

import pytest

from statelab.experiment import experiment_names, find_experiment
from statelab.loading import load_config
from statelab.sizes import measure
from statelab.train import train

# An experiment with arms is run by them.
CELLS = [
    (name, arm) for name in experiment_names() for arm in (find_experiment(name).arms or [None])
]


def overrides(name, arm, *more):
    return [f"experiment={name}", *([f"arm={arm}"] if arm else []), *more]


@pytest.mark.parametrize(("name", "arm"), CELLS)
def test_an_experiment_resolves_and_has_a_size(name, arm):
    sizes = measure(load_config(None, overrides(name, arm)))
    assert sizes.parameters > 0
    assert sizes.memory_bytes > 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arm"), CELLS)
def test_an_experiment_takes_two_steps_at_toy_size(name, arm, tmp_path):
    config = load_config(
        None, overrides(name, arm, "smoke=true", f"run_dir={tmp_path}", "tracking.enabled=false")
    )
    result = train(config, progress=False)
    assert result.status == "FINISHED"
    assert result.checkpoint is not None
    assert math.isfinite(result.metrics["val/loss"])
