"""Commands on what was run: ui."""

from __future__ import annotations

from statelab.commands.app import Keys, app, examples, refuse, take

__all__ = ["ui"]


@app.command(epilog=examples("ui", "ui run_dir=runs port=5001"))
def ui(overrides: Keys = None) -> None:
    """Open MLflow on the runs of this folder."""
    from pathlib import Path

    from statelab.tracking import tracker

    given, rest = take(overrides, "run_dir", "tracking.uri", "host", "port")
    if rest:
        refuse(f"ui takes run_dir, tracking.uri, host and port, got {rest[0]}.")
    port = given.get("port", "5000")
    if not (port.isdigit() and 0 < int(port) < 65536):
        refuse(f"port must be a number from 1 to 65535, got {port!r}.")
    tracker().serve(
        uri=given.get("tracking.uri"),
        run_dir=Path(given.get("run_dir", "runs")),
        host=given.get("host", "127.0.0.1"),
        port=int(port),
    )
