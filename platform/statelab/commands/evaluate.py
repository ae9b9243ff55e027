"""The command that looks at a trained run."""

from __future__ import annotations

from statelab.commands.app import Json, Keys, app, examples, refuse, take

__all__ = ["evaluate"]


@app.command(
    "eval",
    epilog=examples(
        "eval run=3f2a",
        "eval run=3f2a checkpoint=best --json",
        "eval run=3f2a data.seq_len=512",
        "eval run=3f2a task=length lengths=4096,8192 text='books/*.txt'",
        "eval run=3f2a task=length text=long6 method=stream chunk=2048",
        "eval run=3f2a task=geometry",
        "keys task=length",
    ),
)
def evaluate(overrides: Keys = None, json: Json = False) -> None:
    """Evaluate a run by a task; its id may be short.

    Without task=NAME it is validated. `statelab rules` lists the tasks, and `statelab keys
    task=NAME` the options of one. What a task finds is recorded with the run.
    """
    from statelab.console import print_evaluation, print_json

    given, rest = take(overrides, "run", "task", "checkpoint", "run_dir", "tracking.uri")
    if "run" not in given:
        refuse("eval needs a run: statelab eval run=ID.")
    from statelab import evaluate as evaluation
    from statelab.runs.stored import find_run

    run = find_run(
        given["run"], run_dir=given.get("run_dir", "runs"), uri=given.get("tracking.uri")
    )
    result = evaluation.evaluate(
        run,
        task=given.get("task", "validation"),
        checkpoint=given.get("checkpoint", "last"),
        overrides=rest,
    )
    print_json(result.to_json()) if json else print_evaluation(result)
