"""The README's commands and its rule run as they stand there, at toy size."""

import re

import pytest


@pytest.fixture
def readme(root):
    return (root / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_short(readme):
    assert len(readme.splitlines()) <= 150


@pytest.mark.slow
def test_the_commands_run_in_their_order(reader, readme):
    ran = {line.split()[1] for line in reader.follow(readme)}
    assert ran >= {"rules", "show", "describe", "train", "eval"}
    line = re.search(r"`(statelab train .+?)`", readme)
    assert line is not None
    reader.command(line[1])  # with the rule that the page has saved
