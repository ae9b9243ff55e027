"""Find a run again by its id, and what it left."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from statelab.config import Config
from statelab.errors import RunError, near_miss
from statelab.loading import load_config, to_dict
from statelab.runs.lost import mark_lost
from statelab.runs.tracking import tracker

__all__ = ["StoredRun", "find_run", "write_config"]

_CONFIG = "config.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRun:
    """A run's folder.

    Attributes:
        id: Names the run.
        folder: What it wrote.
    """

    id: str
    folder: Path

    def parts(self) -> list[Path]:
        """The folder of each part, with its configuration: the run's own, and one a resume."""
        resumes = [file.parent for file in self.folder.glob(f"resumes/*/{_CONFIG}")]
        return [self.folder, *sorted(resumes, key=lambda folder: int(folder.name))]

    def config(self) -> Config:
        """The configuration of its last part."""
        return load_config(self.values())

    def values(self) -> dict[str, Any]:
        """The same as it stands in the file, nested; read in a fraction of the time.

        Raises:
            RunError: If the file is damaged.
        """
        file = self.parts()[-1] / _CONFIG
        # The parser in C, where there is one, is ten times faster.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            return dict(yaml.load(file.read_text(encoding="utf-8"), loader))
        except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
            raise RunError(
                f"run {self.id}: {file} can't be read. If the run was killed before it was "
                "written, train it anew, without resume."
            ) from error

    def checkpoint(self, name: str) -> Path:
        """One of its checkpoints: "last", "previous" or "best".

        Raises:
            RunError: If it has none of that name.
        """
        file = self.folder / "checkpoints" / f"{name}.ckpt"
        if not file.is_file():
            there = ", ".join(sorted(each.stem for each in file.parent.glob("*.ckpt"))) or "none"
            raise RunError(f"run {self.id} has no checkpoint {name!r}; it has: {there}.")
        return file


def write_config(config: Config, folder: Path) -> Path:
    """Write the configuration of a part of a run into its folder, in one move."""
    text = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
    aside, file = folder / f".{_CONFIG}", folder / _CONFIG
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, file)
    return file


def find_run(reference: str, *, run_dir: str = "runs", uri: str | None = None) -> StoredRun:
    """Find a run by its id, the start of one, or the path of its folder.

    The folders under `run_dir` are looked through first, then the tracking store is asked.

    A run that was lost on this host is marked so.

    Raises:
        RunError: If there is none, or several begin so.
    """
    run = _find(reference, run_dir, uri)
    mark_lost([run.folder])
    return run


def _find(reference: str, run_dir: str, uri: str | None) -> StoredRun:
    path = Path(reference)
    if path.is_dir() and (path / _CONFIG).is_file():
        return StoredRun(id=path.resolve().name, folder=path.resolve())
    folders = {file.parent.name: file.parent for file in Path(run_dir).glob(f"*/*/{_CONFIG}")}
    found = [name for name in folders if reference and name.startswith(reference)]
    if len(found) > 1:
        raise RunError(f"run={reference} begins {len(found)} runs: {', '.join(sorted(found))}.")
    if found:
        return StoredRun(id=found[0], folder=folders[found[0]].resolve())
    folder = tracker().folder_of(reference, uri=uri, run_dir=Path(run_dir))
    if folder is not None and folder.is_dir():
        return StoredRun(id=reference, folder=folder)
    raise RunError(
        f"there is no run {reference!r} under {Path(run_dir).resolve()}."
        f"{near_miss(reference, folders)} Give its id, run_dir=FOLDER, or the run folder's path."
    )
