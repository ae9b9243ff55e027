"""Which read rule can read what which write rule writes."""

from __future__ import annotations

from statelab.errors import RuleError
from statelab.registries import read_rules, write_rules
from statelab.registry import Plugin
from statelab.rules import ReadRule, WriteRule

__all__ = ["check_pair", "pairs", "partners"]


def pairs() -> list[tuple[str, str]]:
    """All (write, read) names that work together, of every rule that is registered."""
    return [
        (write, read)
        for write in write_rules.names()
        for read in read_rules.names()
        if _missing(write_rules.get(write), read_rules.get(read)) == frozenset()
    ]


def partners(*, write: str | None = None, read: str | None = None) -> list[tuple[str, str]]:
    """The pairs of one rule, which may be named by module or file; give either of the two."""
    if write is not None:
        own = write_rules.get(write)
        fits = [r for r in read_rules.names() if not _missing(own, read_rules.get(r))]
        return [(write, each) for each in fits]
    assert read is not None
    reader = read_rules.get(read)
    fits = [w for w in write_rules.names() if not _missing(write_rules.get(w), reader)]
    return [(each, read) for each in fits]


def check_pair(write: Plugin[WriteRule], read: Plugin[ReadRule]) -> None:
    """Refuse a pair that has no meaning.

    Raises:
        RuleError: Naming what is missing, and the pairs of either rule that work.
    """
    missing = _missing(write, read)
    if missing:
        works = ", ".join(f"{a}+{b}" for a, b in pairs() if a == write.name or b == read.name)
        raise RuleError(
            f"read rule {read.name!r} can't read what {write.name!r} writes: it requires "
            f"{', '.join(sorted(missing))}. Pairs that work: {works or 'none of either'}."
        )


def _missing(write: Plugin[WriteRule], read: Plugin[ReadRule]) -> frozenset[str]:
    return read.cls.requires - write.cls.provides
