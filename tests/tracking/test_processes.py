"""Several processes train as one does, end as one does, and leave one run."""

import csv
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from statelab.devices import check_devices
from statelab.errors import ConfigError, NonFiniteError, ProcessError, RunError
from statelab.evaluate import evaluate, load_checkpoint
from statelab.language_model import LanguageModel
from statelab.registries import write_rules
from statelab.runs import children
from statelab.runs.processes import Launch
from statelab.runs.status import RunStatus
from statelab.runs.stored import StoredRun
from statelab.runs.tracking import StudyTrial
from statelab.signals import Pruned
from statelab.train import train
from statelab_mlflow.store import connect

TWO = ("trainer.devices=2", "data.batch_size=2")
LONG = ("trainer.max_steps=1000", "trainer.val_every=2", "tracking.enabled=false")


@pytest.fixture
def started(monkeypatch):
    """The processes that are started."""
    found, start = [], children.start_child

    def recording(*arguments, **options):
        found.append(start(*arguments, **options))
        return found[-1]

    monkeypatch.setattr("statelab.runs.processes.start_child", recording)
    return found


@pytest.fixture
def at_step(monkeypatch):
    """Do something in this process when that optimizer step is trained."""

    def at_step(number, act):
        step = LanguageModel.training_step

        def acting(model, batch, batch_idx):
            if model.global_step == number - 1:
                act()
            return step(model, batch, batch_idx)

        monkeypatch.setattr(LanguageModel, "training_step", acting)

    return at_step


@pytest.mark.slow
def test_a_run_shared_by_any_number_of_processes_equals_that_of_one(toy_config, run_dir, started):
    # 19 examples: the last batch of an epoch is short. One of validation: a process has none.
    sizes = ("data.num_train=19", "data.num_val=1", "trainer.accumulate=2")
    sizes += ("model.tie_embeddings=true", "read=ccq")
    options = (*sizes, "optim.schedule=constant", "optim.lr=0.01", "trainer.val_every=2")

    def config(steps, *overrides):
        return toy_config(*options, f"trainer.max_steps={steps}", *overrides)

    place = f"run_dir={run_dir}"
    whole = train(config(8, f"run_dir={run_dir}/alone", "tracking.enabled=false"), progress=False)
    first = train(config(2, place, *TWO), progress=False)
    again = (place, f"resume={first.run_id}")
    train(config(4, *again, *TWO, "trainer.strategy=fsdp2"), progress=False)
    train(config(6, *again), progress=False)
    last = train(
        config(8, *again, *TWO, "trainer.strategy=fsdp2", "tracking.figures=true"),
        progress=False,
    )

    assert [each.returncode for each in started] == [0, 0, 0]
    assert [*run_dir.glob("default/*")] == [last.folder]
    client = connect(f"sqlite:///{run_dir}/mlflow.db")
    (run,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert (run.info.run_id, run.info.status) == (first.run_id, "FINISHED")
    assert [*(last.folder / "figures").glob("*.png")]

    with (whole.folder / "metrics.csv").open() as file:
        rows = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
    for name in ("train/loss", "grad_norm", "lr", "val/loss", "val/accuracy"):
        wanted = {int(row["step"]): row[name] for row in rows if name in row}
        history = client.get_metric_history(first.run_id, name)
        assert len(wanted) in (4, 8)
        assert {each.step: each.value for each in history} == pytest.approx(wanted, abs=1e-5), name
        assert len(history) == len(wanted), name

    mine = StoredRun(id=last.run_id, folder=last.folder)
    seen = evaluate(mine).metrics
    assert seen == pytest.approx({name: last.metrics[name] for name in seen}, abs=1e-5)
    with pytest.raises(ConfigError, match=r"^eval works in one process\."):
        evaluate(mine, overrides=["trainer.devices=2"])
    with pytest.raises(ConfigError, match=r"data\.batch_size x .*num_nodes=8 \(the run has 4\)"):
        train(config(10, *again, "data.batch_size=4", "trainer.devices=2"), progress=False)


@pytest.mark.slow
def test_a_signal_to_the_first_process_stops_all_at_one_step(toy_config, run_dir, started, at_step):
    at_step(3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    result = train(toy_config(f"run_dir={run_dir}", *LONG, *TWO), progress=False)
    assert (result.status, result.exit_status) == ("KILLED", 143)
    assert torch.load(result.checkpoint, weights_only=True)["global_step"] == 3
    assert [each.returncode for each in started] == [0]
    assert "LOCAL_RANK" not in os.environ


@pytest.mark.slow
def test_a_loss_that_is_no_number_stops_all_whoever_searches_longer(
    toy_config, run_dir, monkeypatch
):
    step = LanguageModel.training_step

    def poisoned(model, batch, batch_idx):
        loss = step(model, batch, batch_idx)
        return loss * torch.nan if model.global_step == 2 else loss

    monkeypatch.setattr(LanguageModel, "training_step", poisoned)
    # The other process runs its batches again, alone, with weights that are in pieces otherwise.
    monkeypatch.setattr(
        "statelab.callbacks.nan_guard._search", lambda model, batches: ("the loss", batches[0])
    )
    options = ("trainer.strategy=fsdp2", "trainer.accumulate=2")
    with pytest.raises(NonFiniteError, match=r"^step 3: the loss is infinite or no number"):
        train(toy_config(f"run_dir={run_dir}", *LONG, *TWO, *options), progress=False)
    (file,) = run_dir.glob("default/*/checkpoints/nan.ckpt")
    assert load_checkpoint(file).model is not None


@pytest.mark.slow
def test_a_process_that_dies_ends_the_run_with_its_name(toy_config, run_dir, started, at_step):
    at_step(3, lambda: started[0].kill())
    with pytest.raises(ProcessError, match=r"^process 1 of 2 has ended: SIGKILL .*process_1\.log"):
        train(toy_config(f"run_dir={run_dir}", *LONG, *TWO), progress=False)
    (folder,) = run_dir.glob("default/*")
    assert RunStatus.read(folder).name == "FAILED"


@pytest.mark.slow
def test_a_process_that_can_t_begin_ends_the_run_with_its_last_line(
    toy_config, run_dir, monkeypatch
):
    only_here = replace(write_rules.get("gla"), name="only_here")
    monkeypatch.setitem(write_rules._plugins, "only_here", only_here)
    config = toy_config(f"run_dir={run_dir}", "write=only_here", *LONG, *TWO)
    with pytest.raises(ProcessError, match=r"ended: .*unknown write rule 'only_here'.*_1\.log"):
        train(config, progress=False)


@pytest.mark.slow
def test_a_failure_of_the_first_process_is_its_own(toy_config, run_dir, started, at_step):
    def fail():
        raise RuntimeError("no luck")

    at_step(3, fail)
    with pytest.raises(RuntimeError, match=r"^no luck$"):
        train(toy_config(f"run_dir={run_dir}", *LONG, *TWO), progress=False)
    assert [each.returncode for each in started] == [-signal.SIGKILL]


@pytest.mark.slow
def test_a_study_prunes_all_processes_of_a_trial_at_one_step(toy_config, run_dir, started):
    asked = []

    def prune(metrics, step):
        asked.append((step, "val/loss" in metrics))
        return step >= 4

    trial = StudyTrial(
        study="mine", number=0, parent=None, name="lr", started=lambda run_id: None, prune=prune
    )
    with pytest.raises(Pruned, match="step 4"):
        train(toy_config(f"run_dir={run_dir}", *LONG, *TWO), progress=False, trial=trial)
    assert asked == [(2, True), (4, True)]
    # It has ended by itself, and without a word.
    assert [each.returncode for each in started] == [0]
    (log,) = run_dir.glob("default/*/process_1.log")
    assert log.read_text() == ""


# Launchers.


@pytest.fixture
def torchrun(monkeypatch):
    """This process is the first of two that torchrun has started."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0"}
    worlds = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "a/b"}
    for name, value in (ranks | worlds | meeting).items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
def test_processes_of_a_launcher_make_one_run(toy, toy_config, run_dir, torchrun, started):
    options = (f"run_dir={run_dir}", "tracking.enabled=false", *TWO)
    other = subprocess.Popen(
        [sys.executable, "-m", "statelab", "train", *toy(*options), "--json"],
        env={**os.environ, "RANK": "1", "LOCAL_RANK": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    result = train(toy_config(*options), progress=False)
    said = other.communicate(timeout=60)
    assert (other.returncode, *said) == (0, "", "")
    assert result.status == "FINISHED"
    assert [*run_dir.glob("default/*")] == [result.folder]
    assert (started, [*run_dir.glob(".launch*")]) == ([], [])


def test_a_launcher_and_the_configuration_name_as_many_processes(toy_config, torchrun):
    with pytest.raises(ConfigError, match=r"^torchrun has started 2 processes, .* are 4\. Make"):
        check_devices(toy_config("trainer.devices=4").trainer)


def test_a_process_that_meets_no_first_one_gives_up(torchrun, monkeypatch, tmp_path):
    monkeypatch.setattr("statelab.runs.processes._MEETING_SECONDS", 0)
    with pytest.raises(RunError, match=r"^process 0 of 2 has found no .*a_b_.* within 0 s"):
        Launch.find().meet(tmp_path)


def test_srun_is_a_launcher_where_it_starts_several(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert Launch.find() is None
    for name, value in {
        "STEP_NUM_TASKS": "4",
        "PROCID": "3",
        "JOB_ID": "7",
        "STEP_ID": "0",
    }.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert Launch.find() == Launch(launcher="srun", rank=3, world=4, job="7_0_0")
