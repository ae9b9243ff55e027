"""How a study is shown in a terminal: a bar while it runs, a table at its end."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from optuna.trial import FrozenTrial, TrialState

from statelab.search.naming import in_short, short_value
from statelab.search.record import BEST
from statelab.search.storage import public_url

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

    metrics = plan.search.metric
    rows = make_table("trial", *metrics, "sets", "run", right=("trial", *metrics))
    for each in outcome.cells or outcome.best:
        values = map(short_value, each["values"].values())
        run = (each["run_id"] or "")[:8]
        rows.add_row(str(each["trial"]), *values, in_short(each["sets"]), run)
    if rows.row_count:
        console.print(rows)
    for each in outcome.failed:
        console.print(f"trial {each['trial']} failed, {in_short(each['sets'])}: {each['reason']}")
    for message in outcome.messages:
        console.print(message)
    counts = ", ".join(f"{count} {state}" for state, count in outcome.counts.items()) or "none done"
    console.print(f"study {outcome.study}: {counts} of {outcome.total}")
    if outcome.files:
        console.print(f"folder {plan.folder}")
    place = plan.config.place()
    best = [each for each in outcome.files if each.name == BEST]
    for file in best:
        print_command("train", f"experiment={file}", *place)
    print_command("runs", f"tags.study={outcome.study}", *place)
    if plan.config.tracking.enabled:
        print_command("ui", *place)
    console.print(shlex.join(("optuna-dashboard", public_url(plan.url))))


def _best(done: list[FrozenTrial], plan: Plan) -> str:
    values = [each.values for each in done if each.state == TrialState.COMPLETE]
    if not values or len(plan.search.metric) > 1:
        return ""
    pick = min if plan.search.direction[0] == "minimize" else max
    return f"best {plan.search.metric[0]} {short_value(pick(value[0] for value in values))}"
