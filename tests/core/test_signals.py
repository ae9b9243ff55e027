"""Ctrl-C and SIGTERM, at any moment."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from statelab.language_model import LanguageModel
from statelab.signals import Stopped, deferring, unwinding
from statelab.train import train

SIGNALS = [signal.SIGINT, signal.SIGTERM]


def strike(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def handlers_are_given_back():
    before = [signal.getsignal(each) for each in SIGNALS]
    yield
    assert [signal.getsignal(each) for each in SIGNALS] == before


# A command is left at once. `strike` comes while it runs; where it would go on, it prints.

MOMENTS = {
    "while it starts": """
        class Finder:
            def find_spec(self, name, path=None, target=None):
                name == "typer" and strike()
        sys.meta_path.insert(0, Finder())""",
    "while it works": """
        from statelab import console
        console.print_start = strike""",
    "where exceptions are swallowed": """
        from statelab import console
        class Careless:
            def __del__(self): strike()
        console.print_start = Careless""",
    "while it ends": """
        import atexit
        atexit.register(strike)
        from statelab import console
        console.print_start = lambda: None""",
}


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_command_is_left_at_once_without_a_word(moment, number):
    code = f"""if True:
        import os, sys, time
        def strike():
            os.kill(os.getpid(), {number.value})
            time.sleep(0.1)
            print("still here")
        sys.argv = ["statelab"]
        from statelab.__main__ import main
        {MOMENTS[moment]}
        main()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")


# What must be ended is ended.


@pytest.mark.parametrize("number", SIGNALS)
def test_unwinding_passes_whatever_catches_exceptions(number):
    ended = []

    def work():
        try:
            strike(number)
            time.sleep(5)
        except Exception:
            ended.append("never")
        finally:
            ended.append("ended")

    with pytest.raises(Stopped) as stopped, unwinding():
        work()
    assert (stopped.value.code, stopped.value.received, ended) == (128 + number, number, ["ended"])


class Garbage:
    """Is being thrown away as a signal comes; Python lets no exception out of there."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0)  # the signal's handler runs here at the latest


def test_unwinding_passes_what_lets_no_exception_through():
    def work():
        Garbage()
        for _ in range(500):
            time.sleep(0.01)

    before = sys.unraisablehook
    with pytest.raises(Stopped) as stopped, unwinding():
        work()
    assert stopped.value.received == signal.SIGTERM
    assert sys.unraisablehook is before


def test_deferring_finishes_the_block_first():
    done = []

    def work():
        strike()
        time.sleep(0.01)
        done.append(1)

    with pytest.raises(Stopped), deferring():
        work()
    assert done == [1]


def test_a_second_signal_is_not_deferred():
    done = []

    def work():
        strike(signal.SIGTERM)
        strike(signal.SIGINT)
        time.sleep(5)
        done.append(1)

    with pytest.raises(Stopped) as stopped, deferring():
        work()
    assert (stopped.value.received, done) == (signal.SIGINT, [])


# Runs.


@pytest.fixture
def config(toy_config, tmp_path):
    return toy_config(f"run_dir={tmp_path}/runs", "tracking.enabled=false")


def end_of(tmp_path):
    (status,) = tmp_path.glob("runs/*/*/status")
    return status.read_text()


@pytest.mark.parametrize("number", SIGNALS)
def test_before_the_model_exists_a_run_is_killed(config, tmp_path, monkeypatch, number):
    monkeypatch.setattr("statelab.runs.opening.write_environment", lambda folder: strike(number))
    with pytest.raises(Stopped) as stopped:
        train(config, progress=False)
    assert stopped.value.code == 128 + number
    assert end_of(tmp_path) == f"KILLED {number.name}\n"


@pytest.mark.parametrize("number", SIGNALS)
def test_before_the_first_step_a_run_is_killed(config, tmp_path, monkeypatch, number):
    monkeypatch.setattr(LanguageModel, "configure_optimizers", lambda self: strike(number))
    result = train(config, progress=False)
    assert (result.status, result.exit_status) == ("KILLED", 128 + number)
    assert result.checkpoint is None
    assert end_of(tmp_path).startswith("KILLED")


@pytest.mark.parametrize("number", SIGNALS)
def test_during_a_validation_a_run_is_saved_and_killed(
    config, tmp_path, monkeypatch, number, capfd
):
    batches, step = [], LanguageModel.validation_step

    def striking(self, batch, batch_idx):
        batches.append(batch_idx)
        strike(number)
        return step(self, batch, batch_idx)

    monkeypatch.setattr(LanguageModel, "validation_step", striking)
    result = train(config, progress=False)
    assert (result.status, result.exit_status, batches) == ("KILLED", 128 + number, [0])
    assert torch.load(result.checkpoint, weights_only=True)["global_step"] == 2
    assert end_of(tmp_path).startswith("KILLED")
    name = signal.Signals(number).name
    assert f"{name}: finishes the step and saves; once more stops at once" in capfd.readouterr().err


def test_a_second_signal_doesn_t_wait_for_the_step(config, tmp_path, monkeypatch):
    reached = []

    def striking(self, batch, batch_idx):
        strike()
        time.sleep(0.01)
        reached.append(1)
        strike()
        time.sleep(5)
        reached.append(2)

    monkeypatch.setattr(LanguageModel, "training_step", striking)
    result = train(config, progress=False)
    assert (result.status, result.exit_status, reached) == ("KILLED", 143, [1])
    assert end_of(tmp_path).startswith("KILLED")
