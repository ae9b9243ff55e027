"""The application that the commands belong to, and what they share: arguments and examples."""

from __future__ import annotations

from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from statelab.completion import complete
from statelab.errors import ConfigError

__all__ = ["Json", "Keys", "app", "as_keys", "examples", "refuse", "take"]

_ORDER = (
    *("rules", "keys", "show", "describe"),
    *("train", "eval", "generate", "inspect"),
    *("grid", "search"),
    *("runs", "compare", "ui"),
    *("check", "new", "bench", "tokenizer"),
)

Keys = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE...", show_default=False, autocompletion=complete),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, last.")]


def examples(*commands: str) -> str:
    """The end of a command's help."""
    return "\n".join(("\b", "Examples:", *(f"  statelab {each}" for each in commands)))


class _InOrder(TyperGroup):
    """Lists the commands as they are needed: look, run, run many, see, extend."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in that order."""
        return sorted(super().list_commands(ctx), key=_ORDER.index)


app = typer.Typer(
    name="statelab",
    cls=_InOrder,
    help="A laboratory for language models with a fixed-size memory. Arguments are key=value.",
    epilog=examples(
        "train experiment=mqar smoke=true", "keys", "train --help", "--install-completion"
    ),
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    """Without a command, say what to type next."""
    from statelab.console import print_start

    if context.invoked_subcommand is None:
        print_start()


def as_keys(arguments: list[str]) -> list[str]:
    """Take `--section.key value` and `--section.key=value` as `section.key=value`.

    Raises:
        ConfigError: If there is no value.
    """
    keys: list[str] = []
    rest = iter(arguments)
    for each in rest:
        name = each.removeprefix("--")
        if not each.startswith("--") or "." not in name.partition("=")[0]:
            keys.append(each)
        elif "=" in name:
            keys.append(name)
        else:
            value = next(rest, "--")
            if value.startswith("--"):
                raise ConfigError(f"{each} needs a value, as in {each} VALUE or {name}=VALUE.")
            keys.append(f"{name}={value}")
    return keys


def take(overrides: list[str] | None, *names: str) -> tuple[dict[str, str], list[str]]:
    """Split key=value arguments into those of this command and the rest."""
    given: dict[str, str] = {}
    rest: list[str] = []
    for each in overrides or []:
        key, equals, value = each.partition("=")
        if key in names and equals:
            given[key] = value
        else:
            rest.append(each)
    return given, rest


def refuse(message: str) -> NoReturn:
    """End the command with one line."""
    raise ConfigError(message)
