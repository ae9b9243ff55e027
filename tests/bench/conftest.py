"""Run a benchmark as the command line does, in a folder of its own."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from statelab.__main__ import main


@pytest.fixture
def bench(away: Path) -> Callable[..., int]:
    """`statelab bench` with these arguments; gives the exit status."""

    def run(*arguments: str) -> int:
        with pytest.raises(SystemExit) as stopped:
            main(["bench", *arguments])
        return int(stopped.value.code)

    return run


@pytest.fixture
def report_of(bench, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict]]:
    """The exit status and the JSON of a quick run."""

    def run(*arguments: str) -> tuple[int, dict]:
        status = bench(*arguments, "quick=true", "--json")
        return status, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def check_files() -> Callable[[str, dict], None]:
    """The report that was written is the printed one, and the figure is no empty page."""

    def check(name: str, report: dict) -> None:
        from matplotlib.image import imread

        table, picture = map(Path, report["files"])
        assert (table, picture) == (
            Path(f"runs/bench/bench-{name}.json"),
            Path(f"runs/bench/bench-{name}.png"),
        )
        printed = {key: value for key, value in report.items() if key != "files"}
        assert json.loads(table.read_text()) == printed
        pixels = imread(picture)[..., :3]
        assert pixels.shape[1] >= 1200
        assert (pixels.min(-1) < 0.5).mean() > 0.005

    return check
