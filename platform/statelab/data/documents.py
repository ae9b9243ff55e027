"""A user's documents, byte for byte: any files, tables with a column of text, or the stdlib."""

from __future__ import annotations

import glob
import logging
import os
import stat
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from statelab.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

__all__ = ["STDLIB", "TABLES", "absolute", "find", "read", "texts_of"]

STDLIB = "stdlib"
"""Stands for the source of Python's standard library on this machine: text that everybody has."""

TABLES = (".jsonl", ".parquet", ".arrow")
"""The files whose rows are documents."""

_BATCH_ROWS = 1000


def absolute(files: str) -> str:
    """A glob that means the same from every folder."""
    return files if files == STDLIB else os.path.abspath(os.path.expanduser(files))


def find(files: str, key: str = "data.files") -> list[Path]:
    """The files that a glob matches, in the order of their names.

    Args:
        files: A glob, in which `**` stands for any folders; or `stdlib`.
        key: The key that it was given by, for messages.

    Raises:
        DataError: If there is none.
    """
    if files == STDLIB:
        return list(_stdlib())
    if os.path.isdir(files):
        raise DataError(
            f"{key}={files!r} is a folder. Name its files: "
            f"{key}={os.path.join(files, '**', '*.txt')!r}."
        )
    if os.path.isfile(files):
        # A name of its own comes before a glob: it may hold brackets.
        return [Path(files)]
    paths = [Path(name) for name in sorted(glob.glob(files, recursive=True))]
    paths = [path for path in paths if not path.is_dir()]
    if not paths:
        raise DataError(
            f"{key}={files!r} matches no file. Give a glob such as 'corpus/**/*.txt', or "
            f"{STDLIB} for the source of Python's standard library."
        )
    return paths


def read(path: Path, column: str, key: str = "data.files") -> Iterator[bytes]:
    """The documents of a file: its rows if it is one of `TABLES`, else all its bytes.

    Args:
        path: The file.
        column: The column that holds the text of a row.
        key: The key that the file was given by, for messages.

    Raises:
        DataError: If it can't be read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            # A pipe, say, which would block.
            raise OSError("it is no regular file")
        if path.suffix in TABLES and path.stat().st_size:
            yield from _rows(path, column, key)
        else:
            yield path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{key}: can't read {str(path)!r}: {error.strerror or error}. Mend it, or give a "
            "glob that leaves it out."
        ) from error


def texts_of(table: pa.Table, column: str, what: str) -> list[str]:
    """The texts of a batch of rows.

    Args:
        table: The rows.
        column: The column that holds their text.
        what: The key and the file that they are from, for messages.

    Raises:
        DataError: If a row has none.
    """
    known = column in table.column_names
    texts: list[str] = table[column].to_pylist() if known else []
    if not known or not all(isinstance(text, str) for text in texts):
        raise DataError(
            f"{what} has a row without text in column {column!r}; its columns are "
            f"{', '.join(table.column_names)}. Set data.column to another one."
        )
    return texts


def _rows(path: Path, column: str, key: str) -> Iterator[bytes]:
    # Here and not above: it takes a second, and only tables need it. And these readers rather than
    # load_dataset, which asks a server on the net to count the call.
    from datasets import IterableDataset  # type: ignore[import-untyped]
    from datasets.exceptions import DatasetsError  # type: ignore[import-untyped]

    # It logs what it raises, too.
    logging.getLogger("datasets").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as cache:
        try:
            if path.suffix == ".arrow":
                rows = IterableDataset.from_file(str(path))
            else:
                of_format = {
                    ".jsonl": IterableDataset.from_json,
                    ".parquet": IterableDataset.from_parquet,
                }
                rows = of_format[path.suffix](str(path), cache_dir=cache)
            for table in rows.with_format("arrow").iter(_BATCH_ROWS):
                for text in texts_of(table, column, f"{key}: {str(path)!r}"):
                    yield text.encode()
        except DataError:
            raise
        except (DatasetsError, ValueError) as error:
            raise DataError(
                f"{key}: {str(path)!r} is no {path.suffix[1:]} table "
                f"({str(error).splitlines()[0]}). Mend it, or give a glob that leaves it out."
            ) from error


def _stdlib() -> Iterator[Path]:
    """All of its modules, without tests and without packages installed beside it."""
    apart = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = sorted(set(folders) - apart)
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))
