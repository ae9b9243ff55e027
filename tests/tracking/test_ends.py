"""However a run ends, MLflow says how; read through its API."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from statelab.__main__ import main
from statelab.errors import RunError
from statelab.language_model import LanguageModel
from statelab.train import train
from statelab_mlflow.journal import Journal
from statelab_mlflow.store import connect

LONG = ("trainer.max_steps=1000", "trainer.val_every=2")


@pytest.fixture
def config(toy_config, run_dir):
    return toy_config(f"run_dir={run_dir}", *LONG)


@pytest.fixture
def at_step(monkeypatch):
    """Do something when that optimizer step is trained."""

    def at_step(number, act):
        step = LanguageModel.training_step

        def acting(model, batch, batch_idx):
            loss = step(model, batch, batch_idx)
            return act(loss) if model.global_step == number - 1 else loss

        monkeypatch.setattr(LanguageModel, "training_step", acting)

    return at_step


@pytest.fixture
def the_run(run_dir):
    """The one run of the store."""

    def the_run():
        client = connect(f"sqlite:///{run_dir}/mlflow.db")
        (run,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
        return run

    return the_run


@pytest.fixture
def saved_step(run_dir):
    """The step of the one last checkpoint, which is whole."""

    def saved_step():
        (file,) = run_dir.glob("*/*/checkpoints/last.ckpt")
        return torch.load(file, weights_only=True)["global_step"]

    return saved_step


def strike(*numbers):
    def strike(loss):
        for each in numbers:
            os.kill(os.getpid(), each)
            time.sleep(0.01)
        return loss

    return strike


def fail(loss):
    raise ZeroDivisionError("no luck")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_saves_it_and_kills(
    config, at_step, the_run, saved_step, number
):
    at_step(5, strike(number))
    result = train(config, progress=False)
    run = the_run()
    assert (run.info.status, run.data.tags["statelab.reason"]) == ("KILLED", number.name)
    assert (result.status, result.exit_status) == ("KILLED", 128 + number)
    assert run.info.end_time is not None
    assert saved_step() == 5


def test_a_second_signal_waits_for_nothing_and_kills_too(config, at_step, the_run, saved_step):
    at_step(5, strike(signal.SIGINT, signal.SIGINT))
    result = train(config, progress=False)
    assert (the_run().info.status, result.exit_status) == ("KILLED", 130)
    assert saved_step() == 4


def test_an_exception_fails_the_run(config, at_step, the_run, saved_step):
    at_step(5, fail)
    with pytest.raises(ZeroDivisionError):
        train(config, progress=False)
    run = the_run()
    assert run.info.status == "FAILED"
    assert run.data.tags["statelab.reason"] == "ZeroDivisionError: no luck"
    assert saved_step() == 4


def test_a_loss_that_is_no_number_fails_the_run(config, at_step, the_run, saved_step):
    at_step(5, lambda loss: loss * torch.nan)
    with pytest.raises(Exception, match=r"(?i)nan|finite"):
        train(config, progress=False)
    assert the_run().info.status == "FAILED"
    assert saved_step() == 4


def test_a_full_disk_fails_the_run_in_one_line(config, the_run, saved_step, monkeypatch, run_dir):
    append = Journal.append

    def no_room(journal, metrics, step):
        if step == 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(journal, metrics, step)

    monkeypatch.setattr(Journal, "append", no_room)
    with pytest.raises(RunError, match=r"^run \w+ can't write into .*: No space left on device\."):
        train(config, progress=False)
    run = the_run()
    assert run.info.status == "FAILED"
    assert run.data.tags["statelab.reason"].endswith("No space left on device")
    assert saved_step() == 4


# SLURM.


@pytest.fixture
def slurm(monkeypatch, tmp_path, run_dir):
    """A job with a `scontrol` that notes how it is called, and what the run's status is then."""
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    notes = tmp_path / "notes"
    program.write_text(f"#!/bin/sh\ncat {run_dir}/*/*/status > {notes}\necho $@ >> {notes}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    # So that Lightning sees the job too; its own handler would end the run as finished.
    ranks = {"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    for name, value in {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "mqar", **ranks}.items():
        monkeypatch.setenv(name, value)
    return program, notes


def test_slurm_s_signal_saves_kills_and_requeues_and_the_job_goes_on(
    slurm, toy_config, run_dir, at_step, the_run, saved_step, caplog, monkeypatch
):
    options = (f"run_dir={run_dir}", "trainer.max_steps=8", "trainer.val_every=2", "resume=auto")
    at_step(5, strike(signal.SIGUSR1))
    result = train(toy_config(*options), progress=False)
    run = the_run()
    assert (run.info.status, run.data.tags["requeued"]) == ("KILLED", "true")
    assert (result.exit_status, saved_step()) == (128 + signal.SIGUSR1, 5)
    assert slurm[1].read_text() == "KILLED requeued: SIGUSR1\nrequeue 4711\n"

    monkeypatch.undo()
    again = train(toy_config(*options), progress=False)
    run = the_run()
    assert (again.run_id, again.status) == (result.run_id, "FINISHED")
    assert (run.info.status, "requeued" in run.data.tags) == ("FINISHED", False)
    client = connect(f"sqlite:///{run_dir}/mlflow.db")
    history = client.get_metric_history(result.run_id, "train/loss")
    assert [each.step for each in history] == [*range(1, 9)]


@pytest.mark.parametrize(("line", "says"), [("echo no >&2; exit 1", "no"), ("exit 3", "status 3")])
def test_a_job_that_slurm_does_not_requeue_is_a_warning(slurm, config, at_step, caplog, line, says):
    slurm[0].write_text(f"#!/bin/sh\n{line}\n")
    at_step(3, strike(signal.SIGUSR1))
    train(config, progress=False)
    (message,) = (each for each in caplog.messages if "SLURM" in each)
    assert message.startswith("SLURM doesn't requeue job 4711: ")
    assert says in message


def test_of_many_processes_one_requeues_the_job(slurm, monkeypatch):
    from statelab.runs.slurm import requeue

    monkeypatch.setenv("SLURM_PROCID", "1")
    requeue()
    assert not slurm[1].exists()


# SIGKILL.


@pytest.mark.slow
def test_after_sigkill_the_next_command_marks_the_run_and_resume_goes_on(
    toy, run_dir, the_run, capsys
):
    arguments = toy(f"run_dir={run_dir}", "trainer.max_steps=100000", "trainer.val_every=20")
    training = subprocess.Popen(
        [sys.executable, "-m", "statelab", "train", *arguments], stdout=-1, stderr=-1
    )
    deadline = time.monotonic() + 120
    while not [*run_dir.glob("*/*/checkpoints/last.ckpt")]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    training.kill()
    training.communicate()
    assert the_run().info.status == "RUNNING"
    (heartbeat,) = run_dir.glob("*/*/heartbeat")
    then = time.time() - 121
    os.utime(heartbeat, (then, then))
    with pytest.raises(SystemExit):
        main(["runs", f"run_dir={run_dir}"])
    assert " lost " in capsys.readouterr().out
    run = the_run()
    assert (run.info.status, run.data.tags["lost"]) == ("KILLED", "true")
    assert "lost: process" in Path(heartbeat.with_name("status")).read_text()
