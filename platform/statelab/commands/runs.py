"""The command that lists runs, removes them, and sends what they couldn't."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from statelab.commands.app import Json, Keys, app, examples, refuse, take

if TYPE_CHECKING:
    from statelab.runs.records import RunQuery

__all__ = ["runs"]

_SHOWN = 20
_FILTERS = ("run", "experiment", "write", "read", "status")
_KEYS = (*_FILTERS, "sort", "limit", "run_dir", "tracking.uri")
_STATUSES = ("RUNNING", "FINISHED", "FAILED", "KILLED")


@app.command(
    epilog=examples(
        "runs",
        "runs experiment=mqar write=gla status=finished sort=val/loss",
        "runs tags.team=blue sort=-val/accuracy limit=5 --json",
        "runs remove run=3f2a,91bc",
        "runs remove experiment=mqar status=failed --yes",
        "runs sync",
        "runs sync run=3f2a tracking.uri=http://tracking.example.org:5000",
    )
)
def runs(
    words: Keys = None,
    json: Json = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
) -> None:
    """List runs, the newest first; remove or sync some.

    `runs sync` sends what a tracking store that was away lacks.

    Which ones: run, experiment, write, read, status, tags.NAME. How: sort=METRIC (-METRIC for the
    greatest first) and limit. Where: run_dir and tracking.uri.
    """
    words = words or []
    action = words[0] if words[:1] in (["remove"], ["sync"]) else "list"
    given, tags = _given(words if action == "list" else words[1:])
    queries = _queries(given, tags)
    run_dir, uri = Path(given.get("run_dir", "runs")), given.get("tracking.uri")
    if yes and action != "remove":
        refuse("--yes asks for nothing here: it belongs to statelab runs remove.")
    if action == "sync":
        unfit = given.keys() - {"run", "run_dir", "tracking.uri"} | tags.keys()
        if unfit:
            refuse(f"runs sync takes run, run_dir and tracking.uri, got {min(unfit)}.")
        _sync([query.id for query in queries], run_dir, uri, json=json)
        return
    if action == "list":
        _list(queries, run_dir, uri, limit=_number(given.get("limit", str(_SHOWN))), json=json)
        return
    unfit = {"sort", "limit"} & given.keys()
    if unfit:
        refuse(f"runs remove takes no {unfit.pop()}: it removes all that are meant.")
    if not (tags or given.keys() & set(_FILTERS)):
        refuse("runs remove needs to know which: run=ID[,ID...], or say status=FAILED.")
    _remove(queries, run_dir, uri, json=json, yes=yes)


def _list(
    queries: list[RunQuery], run_dir: Path, uri: str | None, *, limit: int, json: bool
) -> None:
    from statelab.console import print_json, print_runs
    from statelab.errors import near_miss
    from statelab.runs.records import list_runs

    # One more than asked for, to know whether there are more.
    asked = [replace(query, limit=limit + 1) for query in queries]
    found = [run for query in asked for run in list_runs(query, run_dir=run_dir, uri=uri)]
    sort = queries[0].sort
    known = {name for run in found for name in run.metrics}
    if sort and known and sort not in known:
        refuse(f"sort={sort}: none of these runs has that metric.{near_miss(sort, known)}")
    if json:
        print_json({"runs": [run.to_json() for run in found[:limit]]})
    elif found:
        print_runs(found[:limit], sort)
    _say_of_rest(len(found), limit, run_dir)


def _say_of_rest(found: int, limit: int, run_dir: Path) -> None:
    if not found:
        typer.echo(f"No run of {run_dir.resolve()} is like that.", err=True)
    elif found > limit:
        typer.echo(f"There are more; limit={10 * limit} shows so many.", err=True)


def _remove(
    queries: list[RunQuery], run_dir: Path, uri: str | None, *, json: bool, yes: bool
) -> None:
    from statelab.console import print_json, print_runs
    from statelab.runs.removal import remove_run, runs_to_remove

    found = [run for query in queries for run in runs_to_remove(query, run_dir=run_dir, uri=uri)]
    if found and not yes:
        print_runs(found, None, to=sys.stderr)
        if not _agrees(f"Remove {len(found)} with all files?"):
            raise typer.Exit(1)
    for run in found:
        remove_run(run, run_dir=run_dir, uri=uri)
    if json:
        print_json({"removed": [run.id for run in found]})
    else:
        typer.echo(f"Removed {len(found)}.")


def _sync(ids: list[str], run_dir: Path, uri: str | None, *, json: bool) -> None:
    from dataclasses import asdict

    from statelab.console import print_json
    from statelab.runs.syncing import sync_runs

    sent = sync_runs(ids, run_dir=run_dir, uri=uri)
    if json:
        print_json(
            {"sent": {run: None if each is None else asdict(each) for run, each in sent.items()}}
        )
    elif not any(sent.values()):
        typer.echo("Nothing is unsent." if None not in sent.values() else "Nothing was sent.")
    else:
        for run, each in sent.items():
            if each:
                typer.echo(f"{run}: sent {each}.")
    raise typer.Exit(int(None in sent.values()))


def _agrees(question: str) -> bool:
    typer.echo(f"{question} [y/N] ", nl=False, err=True)
    answer = sys.stdin.readline()
    if not answer:
        refuse("nobody answers, and nothing was removed. Say --yes to remove without asking.")
    return answer.strip().lower() in ("y", "yes")


def _given(words: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The keys of this command, and the tags."""
    given, rest = take(words, *_KEYS)
    tags = {}
    for each in rest:
        key, equals, value = each.partition("=")
        section, _, name = key.partition(".")
        if section not in ("tag", "tags") or not name or not equals:
            refuse(f"runs takes {', '.join(_KEYS)} and tags.NAME, got {each}.")
        tags[name] = value
    for key, value in (given | tags).items():
        if not value:
            refuse(f"{key}= is empty. Give a value, or leave it out.")
    return given, tags


def _queries(given: dict[str, str], tags: dict[str, str]) -> list[RunQuery]:
    """What was asked for: one query, or one for each id."""
    from statelab.registries import read_rules, write_rules
    from statelab.runs.records import RunQuery

    status = given.get("status", "").upper() or None
    if status not in (None, *_STATUSES):
        refuse(f"status must be {' | '.join(_STATUSES)}, got {given['status']!r}.")
    ids = given.get("run", "").split(",")
    for each in ids:
        if "run" in given and not each.isalnum():
            refuse(f"run={given['run']}: an id is made of letters and digits, got {each!r}.")
    sort = given.get("sort", "")
    query = RunQuery(
        experiment=given.get("experiment"),
        write=write_rules.qualified(given["write"]) if "write" in given else None,
        read=read_rules.qualified(given["read"]) if "read" in given else None,
        status=status,
        tags=tags,
        sort=sort.removeprefix("-") or None,
        descending=sort.startswith("-"),
    )
    return [replace(query, id=each) for each in ids]


def _number(limit: str) -> int:
    if not limit.isdigit() or int(limit) == 0:
        refuse(f"limit must be a whole number from 1 on, got {limit!r}.")
    return int(limit)
