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

from statelab.errors import DataError

__all__ = ["STDLIB", "absolute", "find", "read"]

STDLIB = "stdlib"
"""Stands for the source of Python's standard library on this machine: text that everybody has."""


def absolute(files: str) -> str:
    """A glob that means the same from every folder."""
    return files if files == STDLIB else os.path.abspath(os.path.expanduser(files))


def find(files: str) -> list[Path]:
    """The files that a glob matches, in the order of their names.

    Args:
        files: A glob, in which `**` stands for any folders; or `stdlib`.

    Raises:
        DataError: If there is none.
    """
    if files == STDLIB:
        return list(_stdlib())
    if os.path.isdir(files):
        raise DataError(
            f"data.files={files!r} is a folder. Name its files: "
            f"data.files={os.path.join(files, '**', '*.txt')!r}."
        )
    if os.path.isfile(files):
        # A name of its own comes before a glob: it may hold brackets.
        return [Path(files)]
    paths = [Path(name) for name in sorted(glob.glob(files, recursive=True))]
    paths = [path for path in paths if not path.is_dir()]
    if not paths:
        raise DataError(
            f"data.files={files!r} matches no file. Give a glob such as 'corpus/**/*.txt', or "
            f"{STDLIB} for the source of Python's standard library."
        )
    return paths


def read(path: Path, column: str) -> Iterator[bytes]:
    """The documents of a file: its rows if it is `.jsonl` or `.parquet`, else all its bytes.

    Args:
        path: The file.
        column: The column that holds the text of a row.

    Raises:
        DataError: If it can't be read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            # A pipe, say, which would block.
            raise OSError("it is no regular file")
        if path.suffix in (".jsonl", ".parquet") and path.stat().st_size:
            yield from _rows(path, column)
        else:
            yield path.read_bytes()
    except OSError as error:
        raise DataError(
            f"data.files: can't read {str(path)!r}: {error.strerror or error}. Mend it, or give a "
            "glob that leaves it out."
        ) from error


def _rows(path: Path, column: str) -> Iterator[bytes]:
    # Here and not above: it takes a second, and only tables need it. And these two readers rather
    # than load_dataset, which asks a server on the net to count the call.
    from datasets import IterableDataset  # type: ignore[import-untyped]
    from datasets.exceptions import DatasetsError  # type: ignore[import-untyped]

    # It logs what it raises, too.
    logging.getLogger("datasets").setLevel(logging.CRITICAL)
    reader = IterableDataset.from_json if path.suffix == ".jsonl" else IterableDataset.from_parquet
    with tempfile.TemporaryDirectory() as cache:
        try:
            for row in reader(str(path), cache_dir=cache):
                if not isinstance(row.get(column), str):
                    raise DataError(
                        f"data.files: {str(path)!r} has a row without text in column {column!r}; "
                        f"its columns are {', '.join(row)}. Set data.column to another one."
                    )
                yield row[column].encode()
        except DataError:
            raise
        except (DatasetsError, ValueError) as error:
            raise DataError(
                f"data.files: {str(path)!r} is no {path.suffix[1:]} table "
                f"({str(error).splitlines()[0]}). Mend it, or give a glob that leaves it out."
            ) from error


def _stdlib() -> Iterator[Path]:
    """All of its modules, without tests and without packages installed beside it."""
    apart = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = sorted(set(folders) - apart)
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))
