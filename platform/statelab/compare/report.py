"""From the runs to the table, its files, and its own run in the tracking store."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from statelab.compare.config import CompareConfig
from statelab.compare.entries import Entry, read_entries
from statelab.compare.export import records, to_csv, to_latex, to_markdown
from statelab.compare.figures import charts, curve_runs
from statelab.compare.notes import notes
from statelab.compare.page import to_page
from statelab.compare.table import Comparison, compare
from statelab.config import TrackingConfig
from statelab.errors import StatelabError
from statelab.figures.style import save
from statelab.runs.status import Status
from statelab.runs.tracking import make_folder, tracker
from statelab.values import flatten

__all__ = ["PAGE", "Report", "run_comparison"]

PAGE = "compare.html"

# A tag of MLflow's, which a description is, has 8,000 characters at most.
_MOST_DESCRIPTION = 7500
_MOST_SIDE_BY_SIDE = 12

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What became of a comparison.

    Attributes:
        comparison: The table.
        files: What was written.
        run_id: The run that has it in the tracking store; None if it wasn't recorded.
        ui: The command that shows it there; empty if it wasn't recorded.
        pages: Addresses there by what they show.
    """

    comparison: Comparison
    files: tuple[Path, ...]
    run_id: str | None
    ui: tuple[str, ...]
    pages: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "rows": records(self.comparison),
            "notes": notes(self.comparison),
            "files": [str(file) for file in self.files],
            "run_id": self.run_id,
            "pages": dict(self.pages),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """Where the comparison's own run is recorded."""

    experiment: str
    run_dir: str
    tracking: TrackingConfig

    def ui(self) -> tuple[str, ...]:
        """The command that shows the experiment."""
        run_dir = () if self.run_dir == "runs" else (f"run_dir={self.run_dir}",)
        uri = (f"tracking.uri={self.tracking.uri}",) if self.tracking.uri else ()
        experiment = self.tracking.experiment or self.experiment
        return ("ui", f"experiment={experiment}", *run_dir, *uri)


def run_comparison(
    config: CompareConfig, where: Mapping[str, str], tracking: TrackingConfig
) -> Report:
    """Compare, write the files, and record it all as a run of the experiment.

    Args:
        config: What is compared.
        where: Configuration keys with the value that runs have to have.
        tracking: The store; one that is not enabled is read only.

    Raises:
        StatelabError: One line on what can't be compared, read or written.
    """
    if config.out is not None:
        make_folder(Path(config.out), config.out, "out")
    entries = read_entries(config, where, tracking.uri)
    comparison = compare(entries, config)
    if not tracking.enabled:
        out = config.out and Path(config.out)
        files = _write(comparison, out, tracking) if out else ()
        return Report(comparison=comparison, files=files, run_id=None, ui=(), pages={})
    place = _Place(experiment=_experiment(entries), run_dir=config.run_dir, tracking=tracking)
    run = tracker().start(
        place,
        name=_title(config),
        params=flatten({"compare": asdict(config), "where": dict(where)}),
        tags={"kind": "compare", **({"study": config.study} if config.study else {})},
        description=_description(comparison),
    )
    status: Status = "FAILED"
    try:
        files = _write(comparison, run.folder, tracking)
        for file in files:
            run.log_artifact(file, "figures" if file.suffix == ".png" else None)
        status = "FINISHED"
    finally:
        run.finish(status)
    if config.out is not None:
        files = tuple(_copy(file, run.folder, Path(config.out)) for file in files)
    return Report(
        comparison=comparison,
        files=files,
        run_id=run.id,
        ui=place.ui(),
        pages=_pages(run.id, comparison, tracking),
    )


def _write(comparison: Comparison, folder: Path, tracking: TrackingConfig) -> tuple[Path, ...]:
    config = comparison.config
    histories = tracker().histories(
        curve_runs(comparison), config.metric, uri=tracking.uri, run_dir=Path(config.run_dir)
    )
    drawn = charts(comparison, histories)
    texts = {
        PAGE: to_page(comparison, drawn, _title(config)),
        "table.md": to_markdown(comparison),
        "table.csv": to_csv(comparison),
        "table.tex": to_latex(comparison),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    pictures = [folder / "figures" / f"{name}.png" for name in drawn]
    for file, chart in zip(pictures, drawn.values(), strict=True):
        save(chart.picture(), file)
    return (*(folder / name for name in texts), *pictures)


def _pages(run_id: str, comparison: Comparison, tracking: TrackingConfig) -> dict[str, str]:
    config = comparison.config
    try:
        return tracker().comparison_pages(
            run_id,
            _side_by_side(comparison),
            metric=config.metric,
            descending=config.sense == "maximize",
            study=config.study,
            uri=tracking.uri,
            run_dir=Path(config.run_dir),
        )
    except StatelabError as error:
        # The comparison is made and recorded; the store may be away again.
        log.warning("%s", error)
        return {}


def _side_by_side(comparison: Comparison) -> list[str]:
    """Runs that fit on a page: all of the curves, or else one of each row."""
    runs = curve_runs(comparison)
    if len(runs) <= _MOST_SIDE_BY_SIDE:
        return runs
    done = [[e.id for e in row.best.entries if e.id in runs] for row in comparison.rows]
    return [row[0] for row in done if row]


def _copy(file: Path, folder: Path, out: Path) -> Path:
    copy = out / file.relative_to(folder)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, copy)
    return copy


def _title(config: CompareConfig) -> str:
    return f"compare {config.metric} by {', '.join(config.by)}"


def _experiment(entries: list[Entry]) -> str:
    """The experiment that the most recent of the runs belongs to."""
    return max(entries, key=lambda each: each.started).experiment


def _description(comparison: Comparison) -> str:
    text = to_markdown(comparison)
    if len(text) <= _MOST_DESCRIPTION:
        return text
    kept = text[:_MOST_DESCRIPTION].rpartition("\n")[0]
    return f"{kept}\n\nThe rest is in table.md."
