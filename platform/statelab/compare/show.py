"""A comparison in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statelab.compare.report import Report

__all__ = ["print_comparison"]


def print_comparison(report: Report) -> None:
    """Print the table, what has to be said of it, and what was written."""
    from statelab.compare.export import heads, written_rows
    from statelab.compare.notes import notes
    from statelab.console import console, make_table, print_command

    comparison = report.comparison
    names = heads(comparison)
    metric = names.index(comparison.config.metric)
    table = make_table(*names, right=names[metric:])
    for row in written_rows(comparison):
        table.add_row(*row)
    console.print(table)
    console.print("\n".join(notes(comparison)))
    if report.files:
        console.print("\n".join(map(str, report.files)))
    if report.ui:
        print_command(*report.ui)
