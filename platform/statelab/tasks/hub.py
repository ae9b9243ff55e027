"""The six corpora of the length evaluations, as the Hugging Face Hub has them.

Both papers name the same six, and neither says which part of them it reads. Here it is the test
split (CodeParrot's validation set has one split), each document once, without the question that
SCROLLS puts before it.

Source: arXiv:2606.01294, section 4.4; arXiv:2605.24330, tables 2 and 8.
"""

from __future__ import annotations

import fnmatch
import gzip
import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statelab.errors import DataError

__all__ = ["CORPORA", "GROUPS", "Corpus", "Group"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """Texts in the repository of a data set.

    Attributes:
        repository: Its name on the hub.
        files: A pattern for the names of its files: .parquet, .json.gz, or .zip of JSON lines.
        column: What holds the text of a row, dotted where it lies inside another.
        member: In an archive, a pattern for the file to read.
        question: Whether the text begins with a question, up to an empty line.
    """

    repository: str
    files: str
    column: str
    member: str = "*"
    question: bool = False

    def documents(self, hub: str | None) -> Iterator[str]:
        """The texts, each once, in their order.

        Args:
            hub: A folder with repositories in place of the hub's, or None.

        Raises:
            DataError: If they can't be had, or are of another form.
        """
        seen: set[bytes] = set()
        for file in self._files(hub):
            for text in self._texts(file):
                digest = hashlib.blake2b(text.encode(errors="surrogatepass")).digest()
                if digest not in seen:
                    seen.add(digest)
                    yield text

    def _files(self, hub: str | None) -> list[Path]:
        if hub is not None:
            folder = Path(hub).expanduser() / self.repository
        else:
            # Takes half a second to import.
            from huggingface_hub import snapshot_download

            try:
                patterns = [self.files, f"*/{self.files}"]
                folder = Path(
                    snapshot_download(self.repository, repo_type="dataset", allow_patterns=patterns)
                )
            except Exception as error:
                raise DataError(
                    f"{self.repository} can't be fetched from the Hugging Face Hub: "
                    f"{type(error).__name__}. Connect to it, or give hub=FOLDER, where "
                    f"FOLDER/{self.repository} holds its files."
                ) from error
        files = sorted(folder.rglob(self.files))
        if not files:
            raise DataError(
                f"{folder} has no file {self.files}. Put those of the data set "
                f"{self.repository} there, or leave hub= out."
            )
        return files

    def _texts(self, file: Path) -> Iterator[str]:
        try:
            for row in _ROWS[file.suffix](file, self):
                text = row
                for name in self.column.split("."):
                    text = text[name]
                assert isinstance(text, str)
                yield text.partition("\n\n")[2] if self.question else text
        except (OSError, ValueError, KeyError, TypeError, AssertionError, zipfile.BadZipFile) as e:
            raise DataError(
                f"{file} has no texts in {self.column!r} ({type(e).__name__}: {e}). Fetch the "
                f"data set {self.repository} anew."
            ) from e


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Corpora that are evaluated together.

    Attributes:
        corpora: Their names.
        mean: Those in the mean.
        lengths: Of the windows, tokens.
    """

    corpora: tuple[str, ...]
    mean: tuple[str, ...]
    lengths: tuple[int, ...]


CORPORA = {
    "govreport": Corpus(
        repository="ccdv/govreport-summarization", files="test-*.parquet", column="report"
    ),
    "qmsum": Corpus(
        repository="tau/scrolls",
        files="qmsum.zip",
        member="*test.jsonl",
        column="input",
        question=True,
    ),
    "narrativeqa": Corpus(
        repository="deepmind/narrativeqa", files="test-*.parquet", column="document.text"
    ),
    "qasper": Corpus(
        repository="tau/scrolls",
        files="qasper.zip",
        member="*test.jsonl",
        column="input",
        question=True,
    ),
    "pg19": Corpus(repository="emozilla/pg19", files="test-*.parquet", column="text"),
    "codeparrot": Corpus(
        repository="codeparrot/codeparrot-clean-valid", files="*.json.gz", column="content"
    ),
}

_SIX = tuple(CORPORA)

GROUPS = {
    "long6": Group(corpora=_SIX, mean=_SIX, lengths=tuple(range(4096, 20_481, 2048))),
    "long6_14k": Group(
        corpora=_SIX,
        mean=tuple(name for name in _SIX if name != "narrativeqa"),
        lengths=(4096, 8192, 14_336),
    ),
}


def _parquet(file: Path, corpus: Corpus) -> Iterator[Mapping[str, Any]]:
    import pyarrow.parquet  # type: ignore[import-untyped]

    # A text may have megabytes, and the same one stand in many rows.
    with pyarrow.parquet.ParquetFile(file) as table:
        for batch in table.iter_batches(batch_size=16, columns=[corpus.column]):
            yield from batch.to_pylist()


def _gzip(file: Path, corpus: Corpus) -> Iterator[Mapping[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _zip(file: Path, corpus: Corpus) -> Iterator[Mapping[str, Any]]:
    with zipfile.ZipFile(file) as archive:
        for name in fnmatch.filter(archive.namelist(), corpus.member):
            with archive.open(name) as lines:
                yield from map(json.loads, lines)


_ROWS = {".parquet": _parquet, ".gz": _gzip, ".zip": _zip}
