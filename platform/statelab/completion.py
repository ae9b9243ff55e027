"""What the shell offers after a Tab: keys, and the values of those that have few."""

from __future__ import annotations

import re
from pathlib import Path

import typer

__all__ = ["complete"]


def complete(ctx: typer.Context, incomplete: str) -> list[str]:
    """Whole arguments that begin as the one being typed does.

    Bash takes `=` for a word of its own, and Typer drops it at the end: `write=gl` comes as
    `write`, `=`, `gl`, and `write=` as `write` and nothing. In both only the value is asked for.

    Args:
        ctx: Holds the arguments before it.
        incomplete: What was typed of this one.
    """
    known = _known()
    words = next((each for each in ctx.params.values() if isinstance(each, list)), [])
    key = "".join(words[-2:-1] if words[-1:] == ["="] else words[-1:])
    if key in known and (words[-1] == "=" or not incomplete):
        return [each for each in known[key] if each.startswith(incomplete)]
    offers = [f"{key}={each}" for key, values in known.items() for each in values or [""]]
    return [each for each in offers if each.startswith(incomplete)]


def _known() -> dict[str, list[str]]:
    """The values of each key; none where they are too many to list."""
    from statelab.config import Config
    from statelab.experiment import experiment_names, space_names
    from statelab.options import keys_of
    from statelab.registries import data_modules, eval_tasks, read_rules, write_rules
    from statelab.search.config import SearchConfig

    keys = [*keys_of(Config), *keys_of(SearchConfig, "search.")]
    types = {key.name: key.type.replace("bool", "true | false") for key in keys}
    words = {
        key: [] if re.search(r"\b(int|float|str)\b", each) or each[0] in "[{" else each.split(" | ")
        for key, each in types.items()
    }
    runs = [file.parent.name for file in Path("runs").glob("*/*/config.yaml")]
    names = {
        "write": write_rules.names(),
        "read": read_rules.names(),
        "data.name": data_modules.names(),
        "task": eval_tasks.names(),
        "experiment": experiment_names(),
        "search": space_names(),
        "n_trials": [],
        "workers": [],
        "run": runs,
        "resume": ["auto", *runs],
    }
    return words | names
