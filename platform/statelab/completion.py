"""What the shell offers after a Tab: keys, and the values of those that have few."""

from __future__ import annotations

import re

__all__ = ["complete"]


def complete(args: list[str], incomplete: str) -> list[str]:
    """Whole arguments that begin as the one being typed does.

    Bash takes `=` for a word of its own: there `write=gl` comes as `write`, `=`, `gl`, and
    `write=` as `write`, `=`; in both only the value is asked for.

    Args:
        args: The arguments before it.
        incomplete: What was typed of this one.
    """
    known = _known()
    if incomplete == "=" and args:
        return known.get(args[-1], [])
    if args[-1:] == ["="]:
        return [each for each in known.get(args[-2], []) if each.startswith(incomplete)]
    offers = [f"{key}={each}" for key, values in known.items() for each in values or [""]]
    return [each for each in offers if each.startswith(incomplete)]


def _known() -> dict[str, list[str]]:
    """The values of each key; none where they are too many to list."""
    from statelab.config import Config
    from statelab.experiment import experiment_names
    from statelab.options import keys_of
    from statelab.registries import data_modules, read_rules, write_rules

    types = {key.name: key.type.replace("bool", "true | false") for key in keys_of(Config)}
    words = {
        key: [] if re.search(r"\b(int|float|str)\b", each) or each[0] in "[{" else each.split(" | ")
        for key, each in types.items()
    }
    names = {
        "write": write_rules.names(),
        "read": read_rules.names(),
        "data.name": data_modules.names(),
        "experiment": experiment_names(),
    }
    return words | names
