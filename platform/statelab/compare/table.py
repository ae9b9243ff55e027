"""The table of a comparison: seeds together, best over the learning rate, paired differences.

All of it is a pure function of the runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

from statelab.compare.config import CompareConfig
from statelab.compare.entries import Entry
from statelab.compare.equal_size import split_by_size
from statelab.compare.intervals import Interval, mean_interval, paired_interval
from statelab.errors import ConfigError
from statelab.values import spell_out

__all__ = ["SEEDS", "Cell", "Comparison", "Row", "compare", "is_technical", "other_keys", "shorten"]

#: What sets a run apart that is one of several with the same meaning.
SEEDS = ("seed", "data.seed")
_TECHNICAL = (
    *("experiment", "arm", "resume", "run_dir", "model.backend", "data.num_workers"),
    *("trainer.val_every", "trainer.checkpoint_every", "trainer.nan_patience"),
    *("trainer.accelerator", "trainer.strategy", "trainer.compile"),
    "trainer.activation_checkpointing",
)
_RULES = ("model.write.", "model.read.", "model.mixer.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """The seeds of one setting.

    Attributes:
        setting: The values of the keys that the best is looked for over.
        entries: A run for each seed.
    """

    setting: tuple[str, ...]
    entries: tuple[Entry, ...]

    @property
    def values(self) -> dict[str, float]:
        """By seed, of the runs that are done."""
        done = (each for each in self.entries if each.state == "done")
        return {each.seed: each.value for each in done if each.value is not None}


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is compared: an arm at its best setting.

    Attributes:
        labels: The values of the keys that make a row.
        sizes: The least and the greatest size of the row's group; None if any size goes.
        cells: All settings, each with its seeds.
        best: The setting of the best mean, among those with the most seeds done.
        missing: Seeds that other rows have.
        edges: The keys whose best value is the least or the greatest that was tried.
        baseline: The labels of the row that it is paired with.
        difference: Its mean distance to that, seed by seed.
        unpaired: Seeds that only one of the two has.
    """

    labels: tuple[str, ...]
    sizes: tuple[int, int] | None
    cells: tuple[Cell, ...]
    best: Cell
    missing: tuple[str, ...]
    edges: tuple[str, ...]
    baseline: tuple[str, ...] | None = None
    difference: Interval | None = None
    unpaired: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The labels in one word."""
        return "+".join(self.labels)

    @cached_property
    def summary(self) -> Interval | None:
        """Mean over seeds, with its interval; None if no run is done."""
        values = self.best.values
        return mean_interval([*values.values()]) if values else None

    @property
    def entries(self) -> list[Entry]:
        """All runs."""
        return [each for cell in self.cells for each in cell.entries]

    def tried(self, place: int) -> list[str]:
        """The values of a key that the best is looked for over, in their order."""
        return sorted({cell.setting[place] for cell in self.cells}, key=_by_number)

    def size(self, name: str) -> int | None:
        """Of the best setting."""
        return next((each.sizes[name] for each in self.best.entries if name in each.sizes), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A table and what has to be said of it.

    Attributes:
        config: What was asked for.
        rows: From the best on, group by group.
        left_out: Runs that nothing of their size can be compared with.
        repeated: Runs whose setting and seed were trained again.
    """

    config: CompareConfig
    rows: tuple[Row, ...]
    left_out: tuple[Entry, ...]
    repeated: tuple[Entry, ...]

    @property
    def by(self) -> tuple[str, ...]:
        """The keys that make a row, dotted."""
        return tuple(map(spell_out, self.config.by))

    @property
    def over(self) -> tuple[str, ...]:
        """The keys that the best is looked for over, dotted."""
        return tuple(map(spell_out, self.config.over))

    def arm(self, entry: Entry) -> str:
        """The name of the row that a run belongs to, be it in one or left out."""
        return "+".join(map(entry.label, self.by))


def compare(entries: Sequence[Entry], config: CompareConfig) -> Comparison:
    """Make the table.

    Raises:
        ConfigError: If runs of one row differ in more than was asked for, nothing is of equal
            size, or there is no baseline.
    """
    by, over = tuple(map(spell_out, config.by)), tuple(map(spell_out, config.over))

    def arm(entry: Entry) -> tuple[str, ...]:
        return tuple(map(entry.label, by))

    kept, repeated = _last_of_each(entries)
    groups, left_out = [kept], list[Entry]()
    if config.at is not None:
        groups, left_out = split_by_size(kept, config.at, config.tolerance, arm)
        if not groups:
            raise ConfigError(
                f"at={config.at} tolerance={config.tolerance:g}: no two rows are of equal size. "
                f"There are {_listed(kept, config.at, arm)}. Widen tolerance, or leave at out."
            )
    rows = [row for group in groups for row in _rows(group, arm, over, config)]
    return Comparison(
        config=config,
        rows=tuple(_pair(rows, by, config)),
        left_out=tuple(left_out),
        repeated=tuple(repeated),
    )


def shorten(values: Iterable[str], most: int = 6) -> str:
    """Values in one line; of many the first and the last."""
    listed = list(values)
    if len(listed) <= most:
        return ", ".join(listed)
    return f"{listed[0]} ... {listed[-1]} ({len(listed)} values)"


def _last_of_each(entries: Iterable[Entry]) -> tuple[list[Entry], list[Entry]]:
    """A run for each configuration, what is done before what is not; and the others."""
    alike: dict[object, list[Entry]] = defaultdict(list)
    for each in entries:
        meaning = frozenset((k, v) for k, v in each.params.items() if not is_technical(k))
        alike[meaning].append(each)
    order = ("failed", "unfinished", "done")
    kept, repeated = [], []
    for same in alike.values():
        *others, last = sorted(same, key=lambda run: (order.index(run.state), run.started))
        kept.append(last)
        repeated += others
    return kept, repeated


def _rows(
    group: Sequence[Entry],
    arm: Callable[[Entry], tuple[str, ...]],
    over: tuple[str, ...],
    config: CompareConfig,
) -> list[Row]:
    arms: dict[tuple[str, ...], list[Entry]] = defaultdict(list)
    for each in group:
        arms[arm(each)].append(each)
    cells = {labels: _cells(runs, over, labels) for labels, runs in arms.items()}
    best = {labels: _best(each, config) for labels, each in cells.items()}
    seeds = {each.seed for cell in best.values() for each in cell.entries}
    sizes = [each.sizes[config.at] for each in group] if config.at else []
    rows = [
        Row(
            labels=labels,
            sizes=(min(sizes), max(sizes)) if sizes else None,
            cells=tuple(each),
            best=best[labels],
            missing=tuple(
                sorted(seeds - {run.seed for run in best[labels].entries}, key=_by_number)
            ),
            edges=tuple(_edges(each, best[labels], over)),
        )
        for labels, each in cells.items()
    ]
    sign = 1 if config.sense == "minimize" else -1
    return sorted(
        rows,
        key=lambda row: (
            row.summary is None,
            sign * row.summary.center if row.summary else 0.0,
            row.labels,
        ),
    )


def _cells(runs: Sequence[Entry], over: tuple[str, ...], labels: tuple[str, ...]) -> list[Cell]:
    settings: dict[tuple[str, ...], list[Entry]] = defaultdict(list)
    for each in runs:
        settings[tuple(map(each.label, over))].append(each)
    for alike in settings.values():
        _refuse_mixed(alike, labels, set())
    # With another rule come other options.
    varied = any(key.startswith(_RULES) and key.endswith(".name") for key in over)
    options = {key for key in _params(runs) if varied and key.startswith(_RULES)}
    _refuse_mixed(runs, labels, {*over, *options})
    return [
        Cell(
            setting=setting,
            entries=tuple(sorted(each, key=lambda run: _by_number(run.seed))),
        )
        for setting, each in sorted(settings.items(), key=lambda kv: [*map(_by_number, kv[0])])
    ]


def _refuse_mixed(runs: Sequence[Entry], labels: tuple[str, ...], free: set[str]) -> None:
    """Refuse runs that differ in more than their seed and the keys that are free."""
    values = {
        key: sorted({run.params.get(key, "-") for run in runs}, key=_by_number)
        for key in _params(runs) - {*SEEDS} - free
    }
    mixed = sorted(
        (key for key, each in values.items() if len(each) > 1),
        key=lambda key: (not key.endswith(".name"), key),
    )
    if mixed:
        key, *others = mixed
        more = f" (and in {shorten(others, 3)})" if others else ""
        raise ConfigError(
            f"the runs of {'+'.join(labels)} differ in {key}: {shorten(values[key])}{more}. Name "
            f"it in by= or over=, or choose one value with {key}={values[key][0]}."
        )


def _best(cells: Sequence[Cell], config: CompareConfig) -> Cell:
    most = max(len(each.values) for each in cells)
    if most == 0:
        return max(cells, key=lambda cell: len(cell.entries))
    full = [each for each in cells if len(each.values) == most]
    pick = min if config.sense == "minimize" else max
    return pick(full, key=lambda cell: fmean(cell.values.values()))


def _edges(cells: Sequence[Cell], best: Cell, over: tuple[str, ...]) -> Iterable[str]:
    for place, key in enumerate(over):
        tried = sorted({_by_number(cell.setting[place]) for cell in cells})
        # Words have no order that could go on.
        ordered = len(tried) > 1 and not any(word for _, word in tried)
        if ordered and _by_number(best.setting[place]) in (tried[0], tried[-1]):
            yield key


def _pair(rows: Sequence[Row], by: tuple[str, ...], config: CompareConfig) -> list[Row]:
    """The rows with their distances to the baseline."""
    wanted = config.wanted_baseline()
    if not wanted:
        return list(rows)
    known = {(row.sizes, row.labels): row for row in rows}

    def baseline_of(labels: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(wanted.get(key, label) for key, label in zip(by, labels, strict=True))

    if not any(row.labels == baseline_of(row.labels) for row in rows):
        raise ConfigError(
            f"baseline={config.baseline}: there is no such row. "
            f"There are {shorten(dict.fromkeys(row.name for row in rows))}."
        )
    paired = []
    for row in rows:
        labels = baseline_of(row.labels)
        other = known.get((row.sizes, labels))
        if labels == row.labels:
            paired.append(row)
        elif other is None:
            paired.append(replace(row, baseline=labels))
        else:
            mine, its = row.best.values, other.best.values
            paired.append(
                replace(
                    row,
                    baseline=labels,
                    difference=paired_interval(mine, its),
                    unpaired=tuple(sorted(mine.keys() ^ its.keys(), key=_by_number)),
                )
            )
    return paired


def other_keys(rows: Sequence[Row], named: Iterable[str]) -> dict[str, list[str]]:
    """The keys beside the rules and those that are named in which rows differ, with the values."""
    runs = [run for row in rows for run in row.best.entries]
    keys = {key for key in _params(runs) if not key.startswith(_RULES)} - {*named, *SEEDS}
    values = {key: {run.params.get(key, "-") for run in runs} for key in sorted(keys)}
    return {k: sorted(each, key=_by_number) for k, each in values.items() if len(each) > 1}


def _params(runs: Iterable[Entry]) -> set[str]:
    return {key for run in runs for key in run.params if not is_technical(key)}


def is_technical(key: str) -> bool:
    """Whether a key says where a run computes, what it looks at or keeps: nothing it learns by."""
    return key in _TECHNICAL or key.startswith(("tags.", "tracking."))


def _listed(entries: Sequence[Entry], size: str, arm: Callable[[Entry], tuple[str, ...]]) -> str:
    sizes: dict[str, set[int]] = defaultdict(set)
    for each in entries:
        if size in each.sizes:
            sizes["+".join(arm(each))].add(each.sizes[size])
    said = (f"{name} ({shorten(f'{n:,}' for n in sorted(of))})" for name, of in sizes.items())
    return shorten(said, 12)


def _by_number(text: str) -> tuple[float, str]:
    """A key to sort by: numbers by size, then words."""
    try:
        return float(text), ""
    except ValueError:
        return float("inf"), text
