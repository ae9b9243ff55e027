"""How a study is shown in a terminal: a bar while it runs, a table at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from optuna.trial import FrozenTrial, TrialState

if TYPE_CHECKING:
    from statelab.search.launch import Outcome
    from statelab.search.study import Plan

__all__ = ["print_outcome", "watching"]


@contextmanager
def watching(plan: Plan) -> Iterator[Callable[[list[FrozenTrial]], None]]:
    """A bar over the trials on standard error; call what it gives with the finished ones."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[best]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(plan.study, total=plan.total, best="")

        def watch(done: list[FrozenTrial]) -> None:
            progress.update(task, completed=len(done), best=_best(done, plan))

        yield watch


def print_outcome(outcome: Outcome, plan: Plan) -> None:
    """Print the best trials or all cells, what failed and why, and what to type next."""
    from statelab.console import console, make_table, print_command

    rows = make_table(
        "trial", *plan.search.metric, "sets", "run", right=("trial", *plan.search.metric)
    )
    for each in outcome.cells or outcome.best:
        sets = " ".join(f"{key}={_short(value)}" for key, value in each["sets"].items())
        run = (each["run_id"] or "")[:8]
        rows.add_row(str(each["trial"]), *map(_short, each["values"].values()), sets, run)
    console.print(rows)
    for each in outcome.failed:
        sets = " ".join(f"{key}={_short(value)}" for key, value in each["sets"].items())
        console.print(f"trial {each['trial']} failed, {sets}: {each['reason']}")
    for message in outcome.messages:
        console.print(message)
    counts = ", ".join(f"{count} {state}" for state, count in outcome.counts.items()) or "none done"
    console.print(f"study {outcome.study}: {counts} of {outcome.total}")
    if outcome.files:
        console.print("\n".join(map(str, outcome.files)))
    place = [] if plan.config.run_dir == "runs" else [f"run_dir={plan.config.run_dir}"]
    print_command("runs", f"tags.study={outcome.study}", *place)


def _best(done: list[FrozenTrial], plan: Plan) -> str:
    values = [each.values for each in done if each.state == TrialState.COMPLETE]
    if not values or len(plan.search.metric) > 1:
        return ""
    pick = min if plan.search.direction[0] == "minimize" else max
    return f"best {plan.search.metric[0]} {_short(pick(value[0] for value in values))}"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
