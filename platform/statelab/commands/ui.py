"""The command that shows the runs in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from statelab.commands.app import Keys, app, examples, refuse, take

__all__ = ["ui"]

_KEYS = ("experiment", "study", "open", "run_dir", "tracking.uri", "host", "port")


@app.command(
    epilog=examples(
        "ui", "ui experiment=mqar --open", "ui study=mqar-grid", "ui run_dir=/data/runs port=5001"
    )
)
def ui(
    overrides: Keys = None,
    browser: Annotated[
        bool, typer.Option("--open", help="Open a browser; so does open=true.")
    ] = False,
) -> None:
    """Show the runs in MLflow, open on the newest experiment.

    Keys: experiment, study, open, run_dir, tracking.uri, host and port.
    """
    from statelab.runs.lost import mark_all_lost
    from statelab.runs.tracking import USUAL_ADDRESS, tracker

    given, rest = take(overrides, *_KEYS)
    if rest:
        refuse(f"ui takes {', '.join(_KEYS[:-1])} and {_KEYS[-1]}, got {rest[0]}.")
    usual_host, usual_port = USUAL_ADDRESS
    port, wish = given.get("port", str(usual_port)), given.get("open", "false")
    if not (port.isdigit() and 0 < int(port) < 65536):
        refuse(f"port must be a number from 1 to 65535, got {port!r}.")
    if wish not in ("true", "false"):
        refuse(f"open must be true or false, got {wish!r}.")
    run_dir = Path(given.get("run_dir", "runs"))
    mark_all_lost(run_dir)
    tracker().serve(
        uri=given.get("tracking.uri"),
        run_dir=run_dir,
        host=given.get("host", usual_host),
        port=int(port),
        experiment=given.get("experiment"),
        study=given.get("study"),
        browser=browser or wish == "true",
    )
