"""Commands that compute: train, inspect, bench."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from statelab.commands.app import Json, Keys, app, examples, refuse, take

__all__ = ["bench", "inspect", "train"]


@app.command(
    epilog=examples(
        "train experiment=mqar smoke=true",
        "train experiment=mqar write=deltanet read=ccq optim.lr=1e-2",
        "train experiment=text write=gla read=interdomain --json",
        "train experiment=mqar write=leaky.py:Leaky write.half_life=32",
        "train resume=3f2a",
        "train experiment=mqar write=deltanet resume=auto",
    )
)
def train(overrides: Keys = None, json: Json = False) -> None:
    """Train, validate and save, as one tracked run in one folder.

    resume=ID goes on with that run, resume=auto with the latest like this one, if there is one.
    checkpoint=previous goes back to the last checkpoint but one, where the last is damaged.
    """
    from statelab.console import print_json, print_result
    from statelab.runs.resume import load_resumable

    given, rest = take(overrides, "checkpoint")
    config = load_resumable(rest)
    if "checkpoint" in given and config.resume is None:
        refuse(f"checkpoint={given['checkpoint']} needs a run to go on with: resume=ID.")
    from statelab import train as training
    from statelab.runs.processes import is_first

    if not is_first():
        logging.getLogger().setLevel(logging.WARNING)
    result = training.train(config, checkpoint=given.get("checkpoint", "last"))
    if is_first():
        print_json(result.to_json()) if json else print_result(result, config)
    raise typer.Exit(result.exit_status)


@app.command(
    epilog=examples(
        "inspect run=3f2a",
        "inspect run=3f2a checkpoint=best text='the cat sat' out=figures",
        "inspect run=3f2a text='5 40 7 41 0 0 7' --json",
    )
)
def inspect(overrides: Keys = None, json: Json = False) -> None:
    """Draw what a checkpoint has learned: weights, states, gates."""
    from pathlib import Path

    from statelab.console import console, print_json

    given, rest = take(overrides, "run", "checkpoint", "text", "out", "run_dir", "tracking.uri")
    if rest:
        refuse(f"inspect takes run, checkpoint, text, out, run_dir, tracking.uri, got {rest[0]}.")
    if "run" not in given:
        refuse("inspect needs a run: statelab inspect run=ID.")
    from statelab import inspection
    from statelab.runs.stored import find_run

    run = find_run(
        given["run"], run_dir=given.get("run_dir", "runs"), uri=given.get("tracking.uri")
    )
    files = inspection.inspect(
        run,
        checkpoint=given.get("checkpoint", "last"),
        text=given.get("text"),
        out=Path(given["out"]) if "out" in given else None,
    )
    if json:
        print_json({"run_id": run.id, "figures": [str(file) for file in files]})
    else:
        console.print("\n".join(map(str, files)))


@app.command(
    epilog=examples(
        "bench kernels",
        "bench kernels cases=gla,kda threads=1",
        "bench pairs pairs=gla+ccq,deltanet+plain T=512",
        "bench decode quick=true out=figures --json",
    )
)
def bench(
    what: Annotated[str, typer.Argument(metavar="WHAT")], options: Keys = None, json: Json = False
) -> None:
    """Measure speed and memory of kernels, pairs or decode.

    A table is printed; it is written as JSON with a figure to out=FOLDER, or to runs/bench.
    """
    import dataclasses
    from pathlib import Path

    from statelab.benchmarks import run_benchmark
    from statelab.console import print_json, print_report

    given, rest = take(options, "out")
    report, files = run_benchmark(what, rest, out=Path(given.get("out", "runs/bench")))
    if json:
        print_json({**dataclasses.asdict(report), "files": [str(file) for file in files]})
    else:
        print_report(report, files)
    raise typer.Exit(0 if report.correct else 1)
