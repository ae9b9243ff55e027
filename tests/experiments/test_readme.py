"""The README's commands and its rule run as they stand there, at toy size."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
COMMAND = re.compile(r"^    \.venv/bin/statelab (.+?)(?:\s+#.*)?$", re.MULTILINE)


def statelab(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "statelab", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def commands():
    return [shlex.split(each) for each in COMMAND.findall(README.read_text())]


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 150


@pytest.mark.slow
def test_the_commands_run_in_their_order(tmp_path):
    listed = commands()
    assert {each[0] for each in listed} >= {"rules", "show", "describe", "train", "eval", "ui"}
    for command, *arguments in listed:
        if command in ("ui", "bench"):  # a server, and minutes: each has tests of its own
            continue
        if command == "train":
            arguments.append("smoke=true")
        if command == "eval":
            arguments = [f"run={next(tmp_path.glob('runs/*/*')).name}"]
        done = statelab(tmp_path, command, *arguments)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_rule_trains_from_its_file(tmp_path):
    text = README.read_text()
    block = text[text.index("    # leaky.py") : text.index("`statelab train experiment=mqar write=")]
    (tmp_path / "leaky.py").write_text("\n".join(line[4:] for line in block.splitlines()))
    line = re.search(r"`statelab (train .+?)`", text)
    assert line is not None
    done = statelab(tmp_path, *shlex.split(line[1]), "smoke=true", "tracking.enabled=false")
    assert done.returncode == 0, done.stderr
