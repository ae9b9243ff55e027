"""Worker processes: started again when they die, and never left alone."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from statelab.errors import RunError
from statelab.search import pool
from statelab.search.pool import NUMBER, Pool


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a pool whose workers do what a script says, in place of a command of statelab's."""

    def start(arguments, log, environment, **options):
        with log.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-c", arguments[1]],
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
            )

    monkeypatch.setattr(pool, "start_child", start)
    monkeypatch.setattr(pool, "_POLL_SECONDS", 0.02)

    def run(size, script, watch=lambda: None):
        top = "import os, pathlib, sys, time\n"
        top += f"number = os.environ[{NUMBER!r}]; notes = pathlib.Path({str(tmp_path)!r})\n"
        return Pool([top + textwrap.dedent(script)], size, tmp_path / "logs").run(watch)

    return run


def test_each_worker_has_a_number_and_a_log(run, tmp_path):
    looks = []
    assert run(2, "print('I am', number)", lambda: looks.append(1)) == []
    logs = sorted((tmp_path / "logs").glob("worker_*.log"))
    assert [each.read_text() for each in logs] == ["I am 0\n", "I am 1\n"]
    assert looks


def test_workers_share_the_cores(run, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(pool.os, "sched_getaffinity", lambda process: range(9))
    run(2, "(notes / number).write_text(os.environ['OMP_NUM_THREADS'])")
    assert [(tmp_path / each).read_text() for each in "01"] == ["4", "4"]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    run(1, "(notes / number).write_text(os.environ['OMP_NUM_THREADS'])")
    assert (tmp_path / "0").read_text() == "3"


def test_a_worker_that_dies_is_started_again(run, tmp_path):
    dies_twice = """
        lives = notes / number
        lives.write_text((lives.read_text() if lives.exists() else "") + "x")
        if number == "0" and len(lives.read_text()) < 3:
            os.kill(os.getpid(), 9)
    """
    assert run(2, dies_twice) == []
    assert [(tmp_path / each).read_text() for each in "01"] == ["xxx", "x"]


def test_a_worker_that_always_dies_is_given_up_with_its_last_words(run):
    (words,) = run(1, "print('no memory'); sys.exit(1)")
    assert words.startswith("worker 0: no memory (")
    (words,) = run(1, "os.kill(os.getpid(), 9)")
    assert words.startswith("worker 0: SIGKILL (")


def test_a_worker_that_says_what_is_wrong_ends_all(run, tmp_path):
    refuses = """
        (notes / number).write_text(str(os.getpid()))
        if number == "1":
            while not (notes / "0").exists() or not (notes / "2").exists():
                time.sleep(0.01)
            print("statelab: search.metric=x: no run logs it.")
            sys.exit(2)
        time.sleep(60)
    """
    with pytest.raises(RunError, match=r"^worker 1: search\.metric=x: no run logs it\. \(.*1\.log"):
        run(3, refuses)
    for each in "02":
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / each).read_text()), 0)


def test_workers_end_with_their_parent_however_it_ends(tmp_path):
    """The child says its number, and waits; its parent is killed without a chance to tell it."""
    (tmp_path / "child.py").write_text(
        textwrap.dedent("""
        import os, pathlib, signal, sys, time
        from statelab.runs.children import end_with_parent

        def stop(number, frame):
            pathlib.Path("stopped").touch()
            sys.exit(143)

        signal.signal(signal.SIGTERM, stop)
        end_with_parent()
        pathlib.Path("begun").touch()
        time.sleep(60)
        """)
    )
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import pathlib, time\nfrom statelab.runs.children import start_child\n"
            "start_child(['child'], pathlib.Path('log'), {})\ntime.sleep(60)",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    _await(tmp_path / "begun")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _await(tmp_path / "stopped")


def _await(file, seconds=60):
    deadline = time.monotonic() + seconds
    while not file.exists():
        assert time.monotonic() < deadline, f"no {file.name}"
        time.sleep(0.02)
