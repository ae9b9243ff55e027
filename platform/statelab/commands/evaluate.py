"""The command that looks at a trained run, or at all of an experiment."""

from __future__ import annotations

import typer

from statelab.commands.app import Json, Keys, app, examples, refuse, take
from statelab.values import parse_overrides

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
        "eval experiment=mqar_small write=deltanet",
    ),
)
def evaluate(overrides: Keys = None, json: Json = False) -> None:
    """Evaluate a run by a task; its id may be short.

    Without task=NAME it is validated. `statelab rules` lists the tasks, and `statelab keys
    task=NAME` the options of one. What a task finds is recorded with the run.

    With experiment=NAME, its finished runs are held against the figures that it expects; exit
    status 1 if one is lacking or outside of its band.
    """
    from statelab.console import print_evaluation, print_json

    own = ("run", "experiment", "task", "checkpoint", "run_dir", "tracking.uri")
    given, rest = take(overrides, *own)
    if "run" not in given and "experiment" not in given:
        refuse("eval needs a run: statelab eval run=ID, or an experiment: experiment=NAME.")
    from statelab.compare import bands
    from statelab.compare.show import print_judgement

    if "experiment" in given:
        if stray := given.keys() & {"run", "task", "checkpoint"}:
            refuse(f"eval experiment= judges what runs logged; leave {min(stray)}= out.")
        judgement = bands.judge(
            given["experiment"],
            parse_overrides(rest),
            run_dir=given.get("run_dir", "runs"),
            uri=given.get("tracking.uri"),
        )
        print_json(judgement.to_json()) if json else print_judgement(judgement)
        raise typer.Exit(0 if judgement.passed else 1)
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
    # What was measured on other data is no figure of the experiment's.
    changed = any(each.startswith(("data.", "trainer.")) for each in rest)
    judgement = bands.judge_run(run.config(), {} if changed else result.metrics)
    if json:
        print_json({**result.to_json(), "expected": judgement.to_json()["verdicts"]})
        return
    print_evaluation(result)
    if judgement.verdicts:
        print_judgement(judgement)
