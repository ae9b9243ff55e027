"""What has to be said beside a table: how it was made, and what it lacks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from statelab.compare.entries import Entry
from statelab.compare.intervals import LEVEL
from statelab.compare.table import Comparison, Row, other_keys, shorten

__all__ = ["notes"]

_MOST = 12  # runs named in a note


def notes(comparison: Comparison) -> list[str]:
    """One line on each matter."""
    return [*_method(comparison), *_fairness(comparison), *_lacking(comparison)]


def _method(comparison: Comparison) -> Iterator[str]:
    config = comparison.config
    order = "least" if config.sense == "minimize" else "greatest"
    yield (
        f"{config.metric}: the {config.value} value of each run; the {order} is best. Mean over "
        f"seeds ± half the {LEVEL:.0%} interval by Student's t."
    )
    alone = [row.name for row in comparison.rows if row.summary and row.summary.half is None]
    if alone:
        yield f"One seed gives no interval: {shorten(alone, _MOST)}."
    equal = [row.name for row in comparison.rows if row.summary and row.summary.half == 0]
    if equal:
        yield (
            f"All seeds ended alike, so that their interval says little: {shorten(equal, _MOST)}."
        )
    if config.baseline is not None:
        yield (
            f"Difference to {config.baseline}: mean over the seeds that both have, with the "
            f"{LEVEL:.0%} interval of the paired differences, by Student's t."
        )
    for place, key in enumerate(comparison.over):
        tried = {tuple(row.tried(place)) for row in comparison.rows}
        if all(len(each) == 1 for each in tried):
            values = sorted({value for each in tried for value in each})
            yield f"{key} was not varied: {shorten(values)}."


def _fairness(comparison: Comparison) -> Iterator[str]:
    config, rows = comparison.config, comparison.rows
    for row in rows:
        for key in row.edges:
            place = comparison.over.index(key)
            yield (
                f"Warning: the best {key} of {row.name}, {row.best.setting[place]}, is at the edge "
                f"of what was tried ({shorten(row.tried(place))}). Try values beyond it."
            )
    grids = {
        tuple(map(tuple, (row.tried(place) for place in range(len(comparison.over)))))
        for row in rows
    }
    if len(grids) > 1:
        yield f"Warning: rows were tried with other values of {', '.join(comparison.over)}."
    if config.at is not None:
        yield f"Compared are runs whose {config.at} differ by {config.tolerance:.3g} at most."
        if comparison.left_out:
            yield f"Left out, with nothing of their size to compare: {_sized(comparison)}."
    else:
        sizes = sorted({size for row in rows if (size := row.size("memory_bytes")) is not None})
        if sizes and sizes[-1] > sizes[0] * (1 + config.tolerance):
            yield (
                f"Warning: memory_bytes differ, from {sizes[0]:,} to {sizes[-1]:,}. Compare like "
                "with like by at=memory_bytes."
            )
    for key, values in other_keys(rows, (*comparison.by, *comparison.over)).items():
        yield f"Warning: rows also differ in {key}: {shorten(values)}."


def _lacking(comparison: Comparison) -> Iterator[str]:
    for row in comparison.rows:
        if row.missing:
            yield f"{row.name} lacks {_seeds(row.missing)}, which other rows have."
        if row.difference is not None and row.unpaired:
            yield f"{row.name} is compared with the baseline without {_seeds(row.unpaired)}."
        if row.baseline is not None and row.difference is None:
            yield f"{row.name} shares no seed with {'+'.join(row.baseline)}, its baseline."
    failed = list(_named(comparison, "failed"))
    if failed:
        yield f"Failed, and in no mean: {shorten(failed, _MOST)}."
    unfinished = list(_named(comparison, "unfinished"))
    if unfinished:
        yield f"Unfinished, and in no mean: {shorten(unfinished, _MOST)}."
    if comparison.repeated:
        ids = (each.id[:8] for each in comparison.repeated)
        yield f"Trained again with the same configuration, the last one counts: {shorten(ids)}."


def _named(comparison: Comparison, state: str) -> Iterator[str]:
    for row in comparison.rows:
        for cell in row.cells:
            for each in cell.entries:
                if each.state == state:
                    why = f": {each.trouble}" if state == "failed" else ""
                    yield f"{_title(row, cell.setting)} seed {each.seed} ({each.id[:8]}{why})"


def _title(row: Row, setting: tuple[str, ...]) -> str:
    return " ".join((row.name, *setting)) if len(row.cells) > 1 else row.name


def _sized(comparison: Comparison) -> str:
    size = str(comparison.config.at)
    by_arm: dict[str, list[Entry]] = defaultdict(list)
    for each in comparison.left_out:
        by_arm[comparison.arm(each)].append(each)
    return shorten((f"{name} ({_sizes(each, size)})" for name, each in by_arm.items()), _MOST)


def _sizes(entries: Iterable[Entry], size: str) -> str:
    known = {each.sizes.get(size) for each in entries}
    numbers = sorted(each for each in known if each is not None)
    return shorten([*(f"{each:,}" for each in numbers), *["no size logged"] * (None in known)])


def _seeds(seeds: tuple[str, ...]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"
