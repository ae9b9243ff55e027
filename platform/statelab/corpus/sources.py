"""Where documents come from: local files, a folder with a data set, or the Hugging Face Hub.

They come in one order, with the place behind each, from which reading goes on later.
"""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from statelab.data import documents
from statelab.errors import ConfigError, DataError

__all__ = ["Place", "Source", "check_parts", "kind_of", "qualified"]

Place = dict[str, Any]
"""Where reading goes on, as plain values; empty is the beginning."""

_BATCH_ROWS = 1000
_LOCAL = (".txt", ".py", ".md", ".json", *documents.TABLES)


def kind_of(path: str) -> Literal["files", "folder", "hub"]:
    """What a path means: files of text or tables, the folder of a data set, or a name on the hub.

    A name on the hub is `name` or `owner/name`, and nothing local is called so.
    """
    local = os.path.expanduser(path)
    if os.path.isdir(local):
        return "folder"
    if path == documents.STDLIB or os.path.exists(local) or glob.has_magic(path):
        return "files"
    is_name = re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", path)
    return "hub" if is_name and Path(path).suffix not in _LOCAL else "files"


def qualified(path: str) -> str:
    """The path as it means the same from every folder."""
    return path if kind_of(path) == "hub" else documents.absolute(path)


def check_parts(path: str, key: str, parts: Mapping[str, str | None]) -> None:
    """See that no part is asked for of files, which have none: all of them would be read.

    Args:
        path: What is read.
        key: The key that it was given by.
        parts: What was asked for, by key; None where nothing was.

    Raises:
        ConfigError: If a part of files was asked for.
    """
    asked = [f"{name}={value}" for name, value in parts.items() if value is not None]
    if asked and kind_of(path) == "files":
        raise ConfigError(
            f"{key}={path!r} are files, which have no parts: {asked[0]} is for data sets on the "
            "hub or in a folder. Leave it out, or set it to what it is by default."
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Documents, and how to read them.

    Attributes:
        path: Files, a folder or a name on the hub, as `kind_of` tells them apart.
        subset: The configuration of the data set, where it has several.
        split: Which of its splits.
        column: What holds the text of a row.
        revision: Branch, tag or commit on the hub.
        streaming: Whether the hub's rows are read as they come, instead of downloaded first.
    """

    path: str
    subset: str | None = None
    split: str = "train"
    column: str = "text"
    revision: str | None = None
    streaming: bool = True

    def identity(self) -> dict[str, Any]:
        """What makes up the documents; of local files a digest of names, sizes and times."""
        identity = asdict(self)
        del identity["streaming"]
        kind = kind_of(self.path)
        if kind != "hub":
            files = documents.find(self.path, "data.path") if kind == "files" else self._inside()
            digest = hashlib.sha256()
            for file in files:
                stat = file.stat() if file.exists() else None
                digest.update(f"{file}\0{stat and (stat.st_size, stat.st_mtime_ns)}\n".encode())
            identity["files"] = digest.hexdigest()
        return identity

    def commit(self) -> str | None:
        """The commit that the revision means now; None where the source is local.

        Raises:
            DataError: If the hub can't be asked.
        """
        if kind_of(self.path) != "hub":
            return None
        from huggingface_hub import HfApi

        try:
            return HfApi().dataset_info(self.path, revision=self.revision).sha
        except Exception as error:
            raise self._unreachable(error) from error

    def read(self, place: Place) -> Iterator[tuple[bytes, Place]]:
        """The documents after a place, each with the place behind it; empty ones are left out.

        Raises:
            DataError: If they can't be read.
        """
        rows = self._files(place) if kind_of(self.path) == "files" else self._rows(place)
        return ((document, behind) for document, behind in rows if document)

    def _files(self, place: Place) -> Iterator[tuple[bytes, Place]]:
        first, done = place.get("file", 0), place.get("rows", 0)
        for number, file in enumerate(documents.find(self.path, "data.path")):
            if number < first:
                continue
            for row, document in enumerate(documents.read(file, self.column, "data.path"), 1):
                if number > first or row > done:
                    yield document, {"file": number, "rows": row}

    def _rows(self, place: Place) -> Iterator[tuple[bytes, Place]]:
        try:
            rows = self._data_set().with_format("arrow")
        except DataError:
            raise
        except Exception as error:
            raise self._unreachable(error) from error
        state, done = place.get("state"), place.get("rows", 0)
        if state:
            rows.load_state_dict(state)
        batches = rows.iter(_BATCH_ROWS)
        while (table := self._next(batches)) is not None:
            texts = documents.texts_of(table, self.column, f"data.path={self.path!r}")
            for row, text in enumerate(texts[done:], done + 1):
                yield text.encode(), {"state": state, "rows": row}
            state, done = rows.state_dict(), 0

    def _next(self, batches: Iterator[Any]) -> Any:
        try:
            return next(batches, None)
        except Exception as error:
            raise DataError(
                f"data.path={self.path!r}: reading broke off ({_first_line(error)}). Run the same "
                "again: it goes on behind the last whole shard."
            ) from error

    def _data_set(self) -> Any:
        """The split, as an iterable data set."""
        import datasets  # type: ignore[import-untyped]

        logging.getLogger("datasets").setLevel(logging.CRITICAL)
        folder = Path(self.path)
        if any((folder / name).is_file() for name in ("state.json", "dataset_dict.json")):
            # What `save_to_disk` wrote.
            saved = datasets.load_from_disk(self.path)
            return (saved[self.split] if isinstance(saved, dict) else saved).to_iterable_dataset()
        is_local = kind_of(self.path) == "folder"
        if is_local:
            # Local data are nobody else's business, not even that they are loaded.
            datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
        loaded = datasets.load_dataset(
            self.path,
            name=self.subset,
            split=self.split,
            streaming=self.streaming or is_local,
            revision=self.revision,
        )
        return loaded if self.streaming or is_local else loaded.to_iterable_dataset()

    def _inside(self) -> list[Path]:
        return sorted(file for file in Path(self.path).rglob("*") if file.is_file())

    def _unreachable(self, error: Exception) -> DataError:
        return DataError(
            f"data.path={self.path!r} can't be loaded: {_first_line(error)}. Give the name of a "
            "data set on the hub, its folder, or local files; data.subset, data.split and "
            "data.revision say which part."
        )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip('.')}"
