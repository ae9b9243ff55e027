"""`statelab runs`, on runs that nobody tracked; `tests/tracking/test_search.py` has the others."""

import json
import os
import socket
import time
from io import StringIO

import pytest

from statelab.__main__ import main


@pytest.fixture
def statelab(away, capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["runs", *arguments])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


@pytest.fixture
def leave(away):
    """Leave the folder of a run, as training does."""

    def leave(
        run_id, status="FINISHED", *, loss=1.0, write="gla", experiment="mqar", age=0, tags="{}"
    ):
        folder = away / "runs" / experiment / run_id
        folder.mkdir(parents=True)
        model = f"{{write: {{name: {write}}}, read: {{name: ccq}}}}"
        (folder / "config.yaml").write_text(f"model: {model}\ntags: {tags}\n")
        (folder / "status").write_text(f"{status}\n")
        (folder / "metrics.csv").write_text(
            f"step,train/loss,val/loss\n1,3.5,\n2,3.25,\n2,,{loss}\n"
        )
        then = time.time() - age
        os.utime(folder / "config.yaml", (then, then))
        return folder

    return leave


def ids(out):
    return [run["id"] for run in json.loads(out)["runs"]]


def test_no_run_is_no_mistake(statelab, away):
    assert statelab() == (0, "", f"No run of {away}/runs is like that.\n")
    assert statelab("--json")[:2] == (0, '{"runs": []}\n')
    assert not list(away.iterdir())


def test_a_table_says_what_a_run_was_and_how_it_ended(statelab, leave):
    leave("a" * 32, "FAILED no luck", loss=1.25, age=3 * 3600)
    leave("b" * 32, write="/home/me/leaky.py:Leaky", experiment="text", age=300)
    status, out, err = statelab()
    assert (status, err) == (0, "")
    names, heads, newer, older = (line.split() for line in out.splitlines())
    assert names == ["val/"]
    assert heads == ["run", "experiment", "pair", "status", "step", "loss", "age"]
    assert newer == ["bbbbbbbb", "text", "Leaky+ccq", "FINISHED", "2", "1.0000", "5", "min"]
    assert older == ["aaaaaaaa", "mqar", "gla+ccq", "FAILED", "2", "1.2500", "3", "h"]


def test_json_has_all_of_it(statelab, leave):
    folder = leave("a" * 32, loss=1.25)
    (run,) = json.loads(statelab("--json")[1])["runs"]
    assert (run["id"], run["step"], run["folder"]) == ("a" * 32, 2, str(folder))
    assert run["metrics"] == {"train/loss": 3.25, "val/loss": 1.25}
    assert (run["tracked"], run["lost"]) == (False, False)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "edcba"),
        (("limit=2",), "ed"),
        (("sort=val/loss",), "bacde"),
        (("sort=-val/loss", "limit=1"), "e"),
        (("experiment=text",), "e"),
        (("write=deltanet",), "d"),
        (("read=plain",), ""),
        (("status=failed",), "c"),
        (("tags.team=blue",), "b"),
        (("tag.team=blue", "tag.more=no"), ""),
        (("run=a",), "a"),
        (("run=a,d",), "ad"),
        (("experiment=mqar", "status=FINISHED", "sort=val/loss"), "bad"),
    ],
)
def test_runs_are_filtered_sorted_and_cut(statelab, leave, words, expected):
    leave("a" * 32, age=50, loss=2)
    leave("b" * 32, age=40, loss=1, tags="{team: blue}")
    leave("c" * 32, "FAILED", age=30, loss=3)
    leave("d" * 32, age=20, loss=4, write="deltanet")
    leave("e" * 32, age=10, loss=5, experiment="text")
    status, out, _ = statelab(*words, "--json")
    assert status == 0
    assert ids(out) == [name * 32 for name in expected]


def test_what_is_left_out_is_said(statelab, leave):
    for name in "abc":
        leave(name * 32)
    assert statelab("limit=2")[2] == "There are more; limit=20 shows so many.\n"
    assert statelab("limit=3")[2] == ""


def test_a_metric_that_no_run_has_is_refused(statelab, leave):
    leave("a" * 32)
    status, _, err = statelab("sort=val/los")
    assert status == 2
    assert err == (
        "statelab: sort=val/los: none of these runs has that metric. Did you mean 'val/loss'?\n"
    )


def test_a_damaged_folder_is_left_out(statelab, leave):
    (leave("a" * 32) / "config.yaml").write_text("{")
    (leave("b" * 32) / "config.yaml").write_text("model: 3")
    leave("c" * 32)
    assert ids(statelab("--json")[1]) == ["c" * 32]


def test_thousands_of_runs_are_listed_at_once(statelab, leave):
    for number in range(2000):
        leave(f"{number:032x}", age=number)
    begin = time.perf_counter()
    assert ids(statelab("limit=3", "--json")[1]) == [f"{number:032x}" for number in range(3)]
    assert time.perf_counter() - begin < 2


def test_a_run_is_removed_with_its_folder(statelab, leave):
    gone, stays = leave("ab" + "0" * 30), leave("b" * 32)
    assert statelab("remove", "run=ab", "--yes") == (0, "Removed 1.\n", "")
    assert not gone.exists()
    assert stays.exists()


def test_removal_by_filter_prints_the_ids(statelab, leave):
    leave("a" * 32, "FAILED")
    leave("b" * 32)
    status, out, _ = statelab("remove", "status=failed", "--yes", "--json")
    assert (status, json.loads(out)) == (0, {"removed": ["a" * 32]})


@pytest.mark.parametrize(
    ("answer", "status", "out", "left"),
    [("y", 0, "Removed 1.\n", False), ("no", 1, "", True), ("", 1, "", True)],
)
def test_removal_shows_the_runs_and_asks(statelab, leave, monkeypatch, answer, status, out, left):
    folder = leave("a" * 32)
    monkeypatch.setattr("sys.stdin", StringIO(f"{answer}\n"))
    found = statelab("remove", "run=a")
    assert found[:2] == (status, out)
    assert "aaaaaaaa" in found[2]
    assert found[2].endswith("Remove 1 with all files? [y/N] ")
    assert folder.exists() == left


def test_removal_without_anyone_to_answer_is_refused(statelab, leave, monkeypatch):
    folder = leave("a" * 32)
    monkeypatch.setattr("sys.stdin", StringIO())
    status, out, err = statelab("remove", "run=a")
    assert (status, out) == (2, "")
    assert "[y/N] statelab: nobody answers, and nothing was removed. Say --yes" in err
    assert folder.exists()


def test_the_start_of_two_ids_removes_neither(statelab, leave):
    folders = [leave("ab" + "0" * 30), leave("ac" + "0" * 30)]
    status, _, err = statelab("remove", "run=a", "--yes")
    assert status == 2
    assert err.startswith("statelab: run=a begins 2 runs: ab0")
    assert all(folder.exists() for folder in folders)


@pytest.mark.parametrize("host", ["here", "another"])
def test_a_running_run_is_not_removed(statelab, leave, host):
    host = socket.gethostname() if host == "here" else host
    folder = leave("a" * 32, f"RUNNING {host} {os.getpid()}")
    ended = leave("b" * 32)
    status, out, err = statelab("remove", "experiment=mqar", "--yes")
    assert (status, out) == (2, "")
    assert f", as process {os.getpid()}: nothing was removed. Stop it first" in err
    assert folder.exists()
    assert ended.exists()
