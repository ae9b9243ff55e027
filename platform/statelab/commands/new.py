"""The command that begins a package."""

from __future__ import annotations

from typing import Annotated

import typer

from statelab.commands.app import Json, app, examples

__all__ = ["new"]


def _kinds(incomplete: str) -> list[str]:
    from statelab.scaffold import KINDS

    return [each for each in KINDS if each.startswith(incomplete)]


@app.command(epilog=examples("new write leaky", "new read sharpened", "new data copying"))
def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", autocompletion=_kinds)],
    name: Annotated[str, typer.Argument(metavar="NAME")],
    json: Json = False,
) -> None:
    """Begin a package of your own, with a rule or data.

    KIND is write, read or data. The package is a new folder NAME of the current one.
    """
    from pathlib import Path

    from statelab.console import console, print_json
    from statelab.scaffold import KINDS, write_package

    folder = write_package(kind, name, Path())
    written = sorted(file.name for file in folder.iterdir())
    if json:
        print_json({"folder": str(folder.resolve()), "files": written})
        return
    console.print(f"Wrote {', '.join(f'{folder}/{file}' for file in written)}. Next:")
    for command in (f"cd {folder}", *KINDS[kind].next_commands(name)):
        console.print(f"    {command}")
