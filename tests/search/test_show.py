"""What the commands print at their end, and their exit status."""

import json
import re

import pytest

from statelab.__main__ import main
from statelab.search import objective
from statelab.search.naming import in_short


@pytest.fixture
def statelab(here, trained, capsys):
    """Run a command in this process; returns exit status and what it prints."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        return ended.value.code, capsys.readouterr().out

    return run


def test_a_search_ends_with_its_best_trial_and_what_to_type_next(statelab, arguments, away):
    status, out = statelab("search", *arguments("n_trials=2"))
    assert status == 0
    assert re.search(r"^trial +val/loss +sets +run *$", out, re.MULTILINE)
    assert re.search(r"^ *\d +\d\.\d+ +mlp_hidden=\d+ lr=0\.\d+ +0{8}$", out, re.MULTILINE)
    best = away / "runs/studies/toy-space/best.yaml"
    assert out.splitlines()[-5:] == [
        "study toy-space: 2 complete of 2",
        f"folder {best.parent}",
        f"statelab train experiment={best}",
        "statelab runs tags.study=toy-space",
        f"optuna-dashboard sqlite:///{away}/runs/optuna.db",
    ]


def test_a_grid_names_the_cells_that_failed(statelab, arguments, monkeypatch):
    works = objective.train

    def breaks(config, **given):
        if config.seed == 1:
            raise RuntimeError("no luck")
        return works(config, **given)

    monkeypatch.setattr(objective, "train", breaks)
    given = [each for each in arguments("seed=0,1") if not each.startswith("search=")]
    status, out = statelab("grid", *given)
    assert status == 1
    assert "trial 1 failed, seed=1: RuntimeError: no luck\n" in out
    assert "study toy-grid: 1 complete of 2\n" in out

    monkeypatch.setattr(objective, "train", works)
    status, out = statelab("grid", *given, "--json")
    told = json.loads(out)
    assert (status, told["counts"], told["failed"]) == (0, {"complete": 2}, [])
    assert [each["sets"] for each in told["cells"]] == [{"seed": "0"}, {"seed": "1"}]
    assert told["run_id"] is None


def test_names_are_short():
    sets = {"model.write.name": "gla", "read": "ccq", "optim.lr": 0.00123456, "model.d_model": 64}
    assert in_short(sets) == "write=gla read=ccq lr=0.001235 d_model=64"
