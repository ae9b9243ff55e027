"""Runs that died without a word, and those that only seem so."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from statelab.__main__ import main
from statelab.runs.lost import mark_lost
from statelab.runs.status import RunStatus, beating, write_end, write_start
from statelab.runs.stored import find_run
from statelab.runs.tracking import LocalRun

NOBODY = 2**22 + 1  # more than Linux counts processes to


@pytest.fixture
def leave(away):
    """Leave the folder of a run as one that began and was killed would, some seconds ago."""

    def leave(line, *, age=200):
        folder = away / "runs" / "mqar" / ("a" * 32)
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("model: {write: {name: gla}, read: {name: ccq}}\n")
        (folder / "status").write_text(f"{line}\n")
        (folder / "heartbeat").touch()
        then = time.time() - age
        os.utime(folder / "heartbeat", (then, then))
        return folder

    return leave


def running(process=NOBODY, birth="1", host=None):
    return f"RUNNING {host or socket.gethostname()} {process} {birth}"


def statelab(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def test_the_listing_marks_a_run_whose_process_is_gone(leave, capsys, caplog):
    folder = leave(running())
    for _ in range(2):
        assert statelab("runs", "--json") == 0
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        assert (run["status"], run["lost"]) == ("KILLED", True)
    assert (folder / "status").read_text() == f"KILLED lost: process {NOBODY} was gone\n"
    assert caplog.messages == [f"run {'a' * 32} was lost: process {NOBODY} is gone."]
    assert statelab("runs") == 0
    assert " lost " in capsys.readouterr().out
    assert statelab("runs", "remove", "run=a", "--yes") == 0
    assert not folder.exists()


def test_a_number_that_another_process_has_now_is_no_life(leave):
    folder = leave(running(process=os.getpid(), birth="1"))
    assert mark_lost([folder])
    assert RunStatus.read(folder).tag == "lost"


@pytest.mark.parametrize(
    ("line", "age"),
    [
        (running(), 60),  # its heart has just beaten
        (running(host="another"), 10_000),
        ("FINISHED", 10_000),
        ("KILLED SIGTERM", 10_000),
    ],
)
def test_other_runs_are_left_alone(leave, line, age):
    folder = leave(line, age=age)
    assert not mark_lost([folder])
    assert (folder / "status").read_text() == f"{line}\n"


def test_a_process_that_lives_is_not_lost_however_old_its_heartbeat(leave):
    folder = leave("")
    write_start(folder)
    assert not mark_lost([folder])
    assert RunStatus.read(folder).process == os.getpid()


def test_a_killed_process_that_nobody_has_waited_for_is_gone(leave):
    folder = leave("")
    code = "import sys; from pathlib import Path; from statelab.runs.status import write_start"
    child = subprocess.Popen(
        [sys.executable, "-c", f"{code}; write_start(Path(sys.argv[1]))", folder]
    )
    while ") Z " not in Path(f"/proc/{child.pid}/stat").read_text():
        time.sleep(0.01)
    assert mark_lost([folder])
    child.wait()


def test_whoever_finds_the_run_marks_it(leave):
    folder = leave(running())
    assert find_run("a").folder == folder
    assert RunStatus.read(folder).name == "KILLED"


def test_a_run_that_cannot_be_marked_is_a_warning(leave, monkeypatch, caplog):
    def refuse(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("statelab.runs.lost.write_end", refuse)
    assert mark_lost([leave(running())])
    assert "can't be marked: [Errno 13] Permission denied" in caplog.messages[1]


def test_the_heart_beats_until_the_run_ends(leave, monkeypatch):
    monkeypatch.setattr("statelab.runs.status._BEAT_SECONDS", 0.01)
    folder = leave("")
    beat = (folder / "heartbeat").stat().st_mtime
    with beating(folder):
        while (folder / "heartbeat").stat().st_mtime <= beat:
            time.sleep(0.01)


def test_an_end_is_written_over_a_longer_line(leave):
    folder = leave("RUNNING " + "x" * 100 + " 1 1")
    write_end(folder, "FAILED", "two\nlines")
    assert (folder / "status").read_text() == "FAILED two lines\n"


@pytest.mark.parametrize("line", ["", "RUN", "RUNNING", "RUNNING here", "\0\0\0"])
def test_half_a_line_is_that_of_a_lost_run(leave, line):
    status = RunStatus.read(leave(line))
    assert (status.name, status.tag) == ("KILLED", "lost")


def test_an_untracked_run_is_running_until_it_ends(away, toy_config):
    run = LocalRun.start(toy_config())
    status = RunStatus.read(run.folder)
    assert (status.name, status.host) == ("RUNNING", socket.gethostname())
    assert status.process == os.getpid()
    run.finish("KILLED", "SIGTERM")
    assert (run.folder / "status").read_text() == "KILLED SIGTERM\n"
    (run.folder / "status").unlink()
    assert RunStatus.read(run.folder).name == "KILLED"
