"""What statelab raises: one root, each child also a builtin kind.

Every message says what is wrong, what was given, what is allowed and what to do, in the names
that the user wrote. The command line prints a `StatelabError` as one line and exits with its
status, which is 2 for a mistake of the user's.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

__all__ = [
    "ConfigError",
    "DataError",
    "NonFiniteError",
    "PluginError",
    "ProcessError",
    "RuleError",
    "RunError",
    "StatelabError",
    "UnknownKeyError",
    "UnknownNameError",
    "near_miss",
]


class StatelabError(Exception):
    """Something the user can mend; the message says how."""

    exit_status: ClassVar[int] = 2


class ConfigError(StatelabError, ValueError):
    """A configuration key or value that can't be used."""


class DataError(StatelabError, ValueError):
    """Data that can't be read, or doesn't fit the model."""


class NonFiniteError(StatelabError, ArithmeticError):
    """A loss, gradient or weight in training that is infinite, or no number."""

    exit_status: ClassVar[int] = 1


class ProcessError(StatelabError, RuntimeError):
    """A process of a run that has ended before the others."""

    exit_status: ClassVar[int] = 1


class RuleError(StatelabError, ValueError):
    """A pair of rules without a meaning, or inputs that a rule refuses."""


class RunError(StatelabError, RuntimeError):
    """A run or checkpoint that can't be found, read or continued."""


class PluginError(StatelabError, RuntimeError):
    """A plugin that fails to import, registers another name, or clashes with another one."""


class UnknownKeyError(ConfigError):
    """A key that the configuration doesn't have."""


class UnknownNameError(StatelabError, LookupError):
    """A name that no registry, file or section knows."""


def near_miss(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'deltanet'?` if a known name is close to `name`, else nothing."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""
