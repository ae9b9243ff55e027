"""A comparison as text: cells for people, in Markdown and LaTeX; plain numbers as CSV and JSON."""

from __future__ import annotations

import csv
import io
from typing import Any

from statelab.compare.entries import SIZES
from statelab.compare.intervals import Interval
from statelab.compare.notes import notes
from statelab.compare.table import Comparison, Row, shorten

__all__ = ["heads", "records", "to_csv", "to_latex", "to_markdown", "written_rows"]

_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
_LATEX |= {"±": r"$\pm$", "−": "$-$"}


def heads(comparison: Comparison) -> list[str]:
    """The heads of the table."""
    config = comparison.config
    return [
        *([f"equal {config.at}"] if config.at else []),
        *config.by,
        config.metric,
        *([f"to {config.baseline}"] if config.baseline else []),
        "seeds",
        *(f"best {key}" for key in config.over),
        *SIZES,
        *(["failed"] if _any_failed(comparison) else []),
    ]


def written_rows(comparison: Comparison) -> list[list[str]]:
    """The cells of the table, a list a row."""
    return [_written(row, comparison) for row in comparison.rows]


def records(comparison: Comparison) -> list[dict[str, Any]]:
    """A row as plain values by name; None where there is none."""
    return [_record(row, comparison) for row in comparison.rows]


def to_markdown(comparison: Comparison) -> str:
    """A table, and the notes as a list."""
    names = heads(comparison)
    words = names.index(comparison.config.metric)
    rules = ["---"] * words + ["---:"] * (len(names) - words)
    cells = [[each.replace("|", r"\|") for each in row] for row in written_rows(comparison)]
    lines = (f"| {' | '.join(row)} |" for row in [names, rules, *cells])
    return "\n".join((*lines, "", *(f"- {each}" for each in notes(comparison)))) + "\n"


def to_latex(comparison: Comparison) -> str:
    """A `tabular` that needs no package, with the notes as comments."""
    names = heads(comparison)
    words = names.index(comparison.config.metric)
    rows = [[_escaped(cell) for cell in row] for row in [names, *written_rows(comparison)]]
    first, *rest = (f"  {' & '.join(row)} \\\\" for row in rows)
    return (
        "\n".join(
            (
                *(f"% {each}" for each in notes(comparison)),
                f"\\begin{{tabular}}{{{'l' * words}{'r' * (len(names) - words)}}}",
                r"  \hline",
                first,
                r"  \hline",
                *rest,
                r"  \hline",
                r"\end{tabular}",
            )
        )
        + "\n"
    )


def to_csv(comparison: Comparison) -> str:
    """The numbers as they are; lists are joined by spaces."""
    rows = records(comparison)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {k: " ".join(map(str, v)) if isinstance(v, list) else v for k, v in row.items()}
        )
    return text.getvalue()


def _written(row: Row, comparison: Comparison) -> list[str]:
    config = comparison.config
    done, expected = len(row.best.values), len(row.best.entries) + len(row.missing)
    bests = (_best(row, place, key) for place, key in enumerate(comparison.over))
    sizes = (row.size(name) for name in SIZES)
    failed = sum(each.state == "failed" for each in row.entries)
    return [
        *([_range(row.sizes)] if row.sizes else []),
        *row.labels,
        _interval(row.summary, "none done"),
        *([_difference(row)] if config.baseline else []),
        str(done) if done == expected else f"{done} of {expected}",
        *bests,
        *("" if each is None else f"{each:,}" for each in sizes),
        *([f"{failed} of {len(row.entries)}"] if _any_failed(comparison) else []),
    ]


def _best(row: Row, place: int, key: str) -> str:
    tried, chosen = row.tried(place), row.best.setting[place]
    edge = " (edge)" if key in row.edges else ""
    return f"{chosen}{edge} of {shorten(tried, 5)}" if len(tried) > 1 else chosen


def _interval(value: Interval | None, nothing: str, sign: str = "") -> str:
    if value is None:
        return nothing
    center = f"{value.center:{sign}.4f}"
    return center if value.half is None else f"{center} ± {value.half:.4f}"


def _difference(row: Row) -> str:
    if row.baseline is None:
        return "baseline"
    return _interval(row.difference, "none", "+")


def _range(sizes: tuple[int, int]) -> str:
    least, greatest = sizes
    return f"{least:,}" if least == greatest else f"{least:,} to {greatest:,}"


def _record(row: Row, comparison: Comparison) -> dict[str, Any]:
    paired = row.difference
    summary = row.summary
    return {
        **dict(zip(comparison.config.by, row.labels, strict=True)),
        **({f"least {comparison.config.at}": row.sizes[0]} if row.sizes else {}),
        "metric": comparison.config.metric,
        "mean": summary and summary.center,
        "low": summary and summary.low,
        "high": summary and summary.high,
        "seeds": list(row.best.values),
        "values": list(row.best.values.values()),
        "missing_seeds": list(row.missing),
        "failed": [each.id for each in row.entries if each.state == "failed"],
        "unfinished": [each.id for each in row.entries if each.state == "unfinished"],
        **{
            name: value
            for place, key in enumerate(comparison.config.over)
            for name, value in (
                (key, row.best.setting[place]),
                (f"{key} tried", row.tried(place)),
                (f"{key} at edge", comparison.over[place] in row.edges),
            )
        },
        "baseline": "+".join(row.baseline or ()) or None,
        "difference": paired and paired.center,
        "difference_low": paired and paired.low,
        "difference_high": paired and paired.high,
        "pairs": paired.count if paired else 0,
        **{name: row.size(name) for name in SIZES},
        "runs": [each.id for each in row.best.entries],
    }


def _any_failed(comparison: Comparison) -> bool:
    return any(each.state == "failed" for row in comparison.rows for each in row.entries)


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)
