"""A comparison in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statelab.compare.bands import Judgement
    from statelab.compare.report import Report

__all__ = ["print_comparison", "print_judgement"]


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
    if report.pages:
        console.print("Pages that it shows:")
    for name, address in report.pages.items():
        console.print(f"{name}: {address}")


def print_judgement(judgement: Judgement) -> None:
    """Print published, measured and band of each expectation, and what makes a run that lacks."""
    from statelab.console import console, make_table, print_command
    from statelab.values import as_arguments

    numbers = ("published", "measured", "band")
    table = make_table("metric", "where", *numbers, "pass", "how", "source", right=numbers)
    for each in judgement.verdicts:
        expected = each.expectation
        where = " ".join(as_arguments(expected.where))
        if expected.minus:
            where += f" less that of {' '.join(as_arguments(expected.minus))}"
        table.add_row(
            expected.metric,
            where,
            "-" if expected.published is None else f"{expected.published:.4g}",
            "-" if each.value is None else f"{each.value:.4f}",
            f"{expected.low:g} ... {expected.high:g}",
            "yes" if each.passed else "NO",
            each.how,
            expected.source,
            style="" if each.passed else "bold red",
        )
    console.print(table)
    for note in judgement.notes:
        console.print(note)
    for command in dict.fromkeys(each.command for each in judgement.verdicts if each.command):
        print_command(*command)
