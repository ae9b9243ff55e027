"""Times that a noisy machine can't turn into wrong ratios."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

Name = TypeVar("Name")


def interleave(
    runs: Mapping[Name, Callable[[], object]], rounds: Mapping[Name, int], device: torch.device
) -> dict[Name, list[float]]:
    """Time each run once a round, one after the other, so that a drift meets all of them alike.

    Args:
        runs: What to time.
        rounds: In how many rounds each takes part, from the first.
        device: Waited for, where it works on its own.

    Returns:
        Seconds by run and round.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in runs}
    gc.collect()
    gc.disable()
    try:
        for index in range(max(rounds.values())):
            for name, run in runs.items():
                if index < rounds[name]:
                    seconds[name].append(_seconds(run, device))
    finally:
        gc.enable()
    return seconds


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median, and the quartiles as low and high."""
    if len(values) == 1:
        return {"median": values[0], "low": values[0], "high": values[0]}
    low, median, high = statistics.quantiles(values, method="inclusive")
    return {"median": median, "low": low, "high": high}


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> dict[str, float]:
    """The spread of the ratios round by round, over the rounds in which both took part."""
    pairs = zip(numerators, denominators, strict=False)
    return spread([above / below for above, below in pairs])


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    result = run()
    _wait(device)
    elapsed = time.perf_counter() - start
    # Freed after the clock has stopped, like every run's result.
    del result
    return elapsed


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
