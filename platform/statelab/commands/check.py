"""The command that holds rules to what they promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from statelab.commands.app import Json, Keys, app, examples, refuse, take

if TYPE_CHECKING:
    from statelab.testing.subject import Subject

__all__ = ["check"]


@app.command(
    epilog=examples(
        "check write=leaky.py:Leaky read=plain",
        "check write=leaky.py:Leaky write.half_life=3",
        "check read=ccq --json",
    )
)
def check(overrides: Keys = None, json: Json = False) -> None:
    """Try all that a pair of rules has to keep.

    Without read=, with every read rule that fits; without write=, with every write rule. Options
    of the rules and model.* may follow. Exit status 1 if anything is not kept.
    """
    from statelab.console import print_checks, print_json, progress

    subjects = _subjects(overrides or [])
    from statelab.testing.suite import examine

    reports = []
    for subject in subjects:
        with progress(f"{subject.write} + {subject.read}") as tell:
            reports.append(examine(subject, tell))
        if not json:
            print_checks(reports[-1])
    passed = all(report.passed for report in reports)
    if json:
        print_json({"passed": passed, "pairs": [report.to_json() for report in reports]})
    raise typer.Exit(0 if passed else 1)


def _subjects(overrides: list[str]) -> list[Subject]:
    """The pairs that are meant, each with the options given.

    Raises:
        StatelabError: If a rule can't be loaded, or no pair makes sense as it is given.
    """
    given, options = take(overrides, "write", "read")
    for each in options:
        key = each.partition("=")[0]
        if not key.startswith(("write.", "read.", "model.")) or key == "model.layers":
            refuse(f"check takes write, read, and options of both and of model, got {each}.")
    if not given:
        refuse("check needs a rule: statelab check write=NAME, read=NAME, or both.")
    from statelab.errors import RuleError
    from statelab.pairs import partners
    from statelab.testing.subject import Subject

    if given.keys() == {"write", "read"}:
        subject = Subject(**given, overrides=tuple(options))
        subject.config()
        return [subject]
    found, refused = [], None
    for write, read in partners(**given):
        subject = Subject(write=write, read=read, overrides=tuple(options))
        try:
            subject.config()
        except RuleError as error:
            typer.echo(f"{write} + {read} is left out: {error}", err=True)
            refused = error
        else:
            found.append(subject)
    if not found and refused:
        raise refused
    return found
