"""Commands that make many runs: search and grid."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import typer

from statelab.commands.app import Json, Keys, app, examples

if TYPE_CHECKING:
    from statelab.search.study import Plan

__all__ = ["grid", "search"]


@app.command(
    epilog=examples(
        "search experiment=mqar search=ccq_gates n_trials=20 workers=2",
        "search experiment=mqar search=state_sizes search.sampler=random",
        "search experiment=mqar search=pareto search.storage=postgresql://db",
    )
)
def search(overrides: Keys = None, json: Json = False) -> None:
    """Look for good values of keys with Optuna.

    The same command again goes on, and so does one on another machine with the same storage.

    Keys: search=SPACE, n_trials, workers, search.* (see `statelab keys`), and those of train.
    """
    from statelab.search.plan import plan_search

    _run("search", overrides or [], plan_search, json)


@app.command(
    epilog=examples(
        "grid experiment=mqar write=gla,deltanet read=plain,ccq seed=0,1,2",
        "grid experiment=ccq_500m arm=all workers=2",
    )
)
def grid(overrides: Keys = None, json: Json = False) -> None:
    """Train every combination of several values of keys.

    The same command again goes on, and trains again what failed.

    Keys: those of train, of which some have several values, workers and search.*.
    """
    from statelab.search.plan import plan_grid

    _run("grid", overrides or [], plan_grid, json)


def _run(
    command: str, overrides: list[str], make: Callable[[Iterable[str]], Plan], json: bool
) -> None:
    plan = make(overrides)
    from statelab.search.launch import run_study, work
    from statelab.search.pool import NUMBER

    if NUMBER in os.environ:
        work(plan)
        return
    from statelab.console import print_json
    from statelab.search.show import print_outcome, watching

    with watching(plan) as watch:
        outcome = run_study(plan, [command, *overrides], watch)
    print_json(outcome.to_json()) if json else print_outcome(outcome, plan)
    raise typer.Exit(outcome.exit_status)
