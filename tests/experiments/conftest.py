"""Pages are run as a reader would run them: their blocks in order, in one empty folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from statelab.__main__ import main
from statelab.registries import data_modules, read_rules, write_rules

ROOT = Path(__file__).parents[2]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n|\n(?= {4}))+")
#: A block that begins so is a file; the reader saves it under that name.
NAME = re.compile(r"# ([\w/-]+\.\w+)\n")
#: A server, minutes of work, other people's commands: each is tested elsewhere or not ours.
NOT_RUN = ("statelab ui", "statelab bench", "statelab search", "git ", "make ", "cd ")
#: What makes a training as short as it can be; the last word wins.
SHORT = ("smoke=true", "trainer.max_steps=2", "trainer.val_every=2", "tracking.figures=false")


@dataclass(frozen=True)
class Block:
    """One block of code.

    Attributes:
        kind: What stands behind the fence: bash, python, yaml, toml run or are saved, text isn't.
        text: What stands in it.
        line: Where in the page.
    """

    kind: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """The name it is saved under."""
        name = NAME.match(self.text)
        return name and name[1]


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, and those indented by four that are commands or files."""
    found = [
        Block(match[1], match[2], page.count("\n", 0, match.start()) + 1)
        for match in FENCE.finditer(page)
    ]
    for match in INDENTED.finditer(FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), page)):
        text = textwrap.dedent(match[0])
        kind = "python" if NAME.match(text) else "bash" if _is_command(text) else "text"
        found.append(Block(kind, text, page.count("\n", 0, match.start()) + 1))
    return sorted(found, key=lambda block: block.line)


class Reader:
    """Someone who types what a page says.

    Args:
        folder: Where.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, object] = {"__name__": "__main__"}

    def follow(self, page: str) -> list[str]:
        """Save and run all blocks; returns the commands that were run."""
        return [command for block in blocks(page) for command in self._take(block)]

    def command(self, line: str) -> None:
        """Run one line; a training is made short, a grid small, and ID is the newest run."""
        words = shlex.split(line, comments=True)
        runs = sorted(self.folder.glob("runs/*/*"), key=lambda run: run.stat().st_mtime)
        words = [re.sub(r"\bID\b", runs[-1].name, each) if runs else each for each in words]
        if words[0] == "statelab":
            if words[1] == "grid":
                # Two values of a key are several.
                words = [re.sub(r"=([^,]+,[^,]+),.*", r"=\1", each) for each in words]
            if words[1] in ("train", "grid"):
                words += SHORT
            with pytest.raises(SystemExit) as ended:
                main(words[1:])
            assert ended.value.code == 0, line
        else:
            assert words[0] == "python", f"what is {line!r}?"
            done = subprocess.run(
                [sys.executable, *words[1:]],
                cwd=self.folder,
                capture_output=True,
                text=True,
                timeout=300,
                env=os.environ | {"MPLBACKEND": "Agg"},
            )
            assert done.returncode == 0, done.stdout + done.stderr

    def code(self, text: str, where: str) -> None:
        """Run Python as the next cell of one session; a training is made short here too."""
        text = re.sub(r'"trainer\.max_steps=\d+"', ", ".join(f'"{key}"' for key in SHORT[1:]), text)
        text = re.sub(r"\btrainer\.val_every=\d+", SHORT[2], text)
        # MLflow keeps one connection a URI, and so that of another reader's folder.
        text = text.replace("sqlite:///runs/", f"sqlite:///{self.folder}/runs/")
        exec(compile(text, where, "exec"), self.names)

    def _take(self, block: Block) -> Iterator[str]:
        if block.file:
            (self.folder / block.file).write_text(block.text)
        elif block.kind == "bash":
            for line in block.text.splitlines():
                line = line.strip().removeprefix(".venv/bin/")
                if line and not line.startswith(("#", *NOT_RUN)):
                    self.command(line)
                    yield line
        elif block.kind == "python":
            self.code(block.text, f"line {block.line}")
        else:
            assert block.kind in ("", "text"), f"line {block.line}: what is {block.kind!r}?"


@pytest.fixture
def reader(away: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """A reader in an empty folder; the rules that a page registers are forgotten at its end."""
    for registry in (write_rules, read_rules, data_modules):
        installed = {name: registry.get(name) for name in registry.names()}
        monkeypatch.setattr(registry, "_plugins", installed)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.syspath_prepend(away)
    return Reader(away)


@pytest.fixture(scope="session")
def page_blocks() -> Callable[[str], list[Block]]:
    """The blocks of a page."""
    return blocks


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


def _is_command(text: str) -> bool:
    return text.startswith((".venv/bin/", "statelab ", *NOT_RUN))
