"""A run that is broken off and goes on equals, to the bit, one that never was."""

import csv
import json
import os
import random
import shutil
import signal
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from statelab.__main__ import main
from statelab.callbacks.checkpoints import AtomicCheckpointIO
from statelab.config import Config
from statelab.data.hf import HfConfig
from statelab.errors import ConfigError, RunError
from statelab.language_model import LanguageModel
from statelab.optim import learning_rate
from statelab.options import keys_of
from statelab.runs.lock import locked
from statelab.runs.resume import FREE, load_resumable
from statelab.runs.stored import StoredRun
from statelab.train import train

STEPS = ("trainer.max_steps=12", "trainer.val_every=4", "trainer.checkpoint_every=1")


class Witness:
    """Sees each training batch as its contents' sum, and breaks runs off.

    A rule with random draws of all kinds is played by noise on the loss.
    """

    def __init__(self):
        self.batches = {}
        self.crash_at = self.signal_at = None
        self.signal_in_validation = False

    def patch(self, monkeypatch):
        train_step, val_step = LanguageModel.training_step, LanguageModel.validation_step

        def training_step(model, batch, batch_idx):
            finished = model.trainer.datamodule.batches_finished
            if finished == self.crash_at:
                raise ZeroDivisionError("no luck")
            if finished == self.signal_at:
                os.kill(os.getpid(), signal.SIGTERM)
            self.batches.setdefault(finished, set()).add(zlib.crc32(batch["tokens"].numpy()))
            noise = random.random() + np.random.random() + torch.rand(())
            return train_step(model, batch, batch_idx) * (1 + 0.01 * noise)

        def validation_step(model, batch, batch_idx):
            if self.signal_in_validation:
                os.kill(os.getpid(), signal.SIGTERM)
            random.random()
            return val_step(model, batch, batch_idx)

        monkeypatch.setattr(LanguageModel, "training_step", training_step)
        monkeypatch.setattr(LanguageModel, "validation_step", validation_step)

    def reset(self):
        self.crash_at = self.signal_at = None
        self.signal_in_validation = False

    def forget(self):
        batches, self.batches = self.batches, {}
        return batches

    def saw_the_same_batches(self):
        """Whether each batch had the same examples, whichever of the runs trained on it."""
        return self.batches and {len(sums) for sums in self.batches.values()} == {1}


@pytest.fixture
def witness(monkeypatch):
    witness = Witness()
    witness.patch(monkeypatch)
    return witness


@pytest.fixture
def configure(toy_config, tmp_path):
    def make(*overrides):
        return toy_config("tracking.enabled=false", f"run_dir={tmp_path}/runs", *STEPS, *overrides)

    return make


@pytest.fixture(scope="module")
def wholes():
    return {}


@pytest.fixture
def whole(wholes, configure, witness, tmp_path_factory):
    """The folder of a run that nothing breaks off; one that is known is not trained again."""

    def run(*overrides):
        if overrides not in wholes:
            config = configure(*overrides, f"run_dir={tmp_path_factory.mktemp('whole')}")
            before = witness.forget()
            wholes[overrides] = train(config, progress=False).folder, witness.batches
            witness.batches = before
        folder, batches = wholes[overrides]
        for finished, sums in batches.items():
            witness.batches.setdefault(finished, set()).update(sums)
        return folder

    return run


@pytest.fixture
def begin(configure, witness, tmp_path):
    """Train until it is broken off, and return the run."""

    def run(*overrides, crash_at=None, signal_at=None, in_validation=False):
        witness.crash_at, witness.signal_at = crash_at, signal_at
        witness.signal_in_validation = in_validation
        before = set(tmp_path.glob("runs/*/*"))
        if crash_at is None:
            train(configure(*overrides), progress=False)
        else:
            with pytest.raises(ZeroDivisionError):
                train(configure(*overrides), progress=False)
        witness.reset()
        (folder,) = set(tmp_path.glob("runs/*/*")) - before
        return StoredRun(id=folder.name, folder=folder)

    return run


@pytest.fixture(scope="module")
def remains():
    return []


@pytest.fixture
def broken(remains, begin, tmp_path, tmp_path_factory):
    """A run that crashed in its eighth step, made once and copied."""
    if not remains:
        remains.append(tmp_path_factory.mktemp("broken") / "run")
        run = begin(crash_at=7)
        shutil.copytree(run.folder, remains[0] / run.id)
        shutil.rmtree(run.folder)
    (source,) = remains[0].iterdir()
    folder = tmp_path / "runs" / "default" / source.name
    shutil.copytree(source, folder)
    return StoredRun(id=folder.name, folder=folder)


def go_on(run, *overrides, **options):
    place = f"run_dir={run.folder.parents[1]}"
    return train(load_resumable([f"resume={run.id}", place, *overrides]), progress=False, **options)


def history(folder):
    """Value by metric and step; a metric with two values at a step fails."""
    values = {}
    with (folder / "metrics.csv").open() as file:
        for row in csv.DictReader(file):
            step = int(row.pop("step"))
            for name, value in row.items():
                if value and not name.startswith("perf/"):
                    assert (name, step) not in values, "two values at a step"
                    values[name, step] = float(value)
    return values


def checkpoint(folder, name="last"):
    return torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)


def same(one, other):
    """Whether two nested values are equal to the bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def assert_same_runs(one, other):
    assert history(one) == history(other)
    for name in ("last", "best"):
        ours, theirs = checkpoint(one, name), checkpoint(other, name)
        for each in (ours, theirs):
            # Lightning's counters depend on the hook that saved.
            del each["loops"], each["hyper_parameters"]["config"]["run_dir"]
        assert same(ours, theirs)
    lines = [(folder / "distributions.jsonl").read_text() for folder in (one, other)]
    assert lines[0] == lines[1]


# Where it is broken off, and how.


@pytest.mark.parametrize(
    ("broken", "overrides"),
    [
        ({"crash_at": 2}, ()),
        ({"crash_at": 7}, ()),  # a later epoch: five batches each
        ({"crash_at": 5}, ()),  # behind the last batch of an epoch
        ({"crash_at": 4}, ()),  # behind a validation
        ({"crash_at": 7}, ("trainer.checkpoint_every=3",)),  # steps are done again
        ({"crash_at": 11}, ("trainer.checkpoint_every=5",)),
        ({"crash_at": 2}, ("trainer.checkpoint_every=null",)),  # no checkpoint: all again
        ({"signal_at": 6}, ()),
        ({"signal_at": 3}, ()),  # the fourth step's validation is still to come
        ({"signal_at": 11}, ()),  # so is the last one's
        ({"in_validation": True}, ()),
        ({"crash_at": 9}, ("trainer.accumulate=2",)),
        ({"signal_at": 8}, ("trainer.accumulate=2",)),  # in the middle of a step
        ({"crash_at": 17}, ("trainer.accumulate=3", "trainer.checkpoint_every=2")),
        ({"signal_at": 16}, ("trainer.accumulate=3",)),
        ({"signal_at": 7}, ("optim.schedule=wsd", "optim.warmup_steps=3", "read=ccq")),
    ],
)
def test_a_broken_run_goes_on_as_if_nothing_had_been(begin, whole, witness, broken, overrides):
    run = begin(*overrides, **broken)
    result = go_on(run)
    assert (result.status, result.exit_status, result.run_id) == ("FINISHED", 0, run.id)
    assert (run.folder / "status").read_text().startswith("FINISHED")
    assert_same_runs(run.folder, whole(*overrides))
    assert witness.saw_the_same_batches()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(1, 1), (2, 2), (0, 2), (2, 0)])
def test_the_number_of_workers_may_change(begin, whole, witness, workers):
    first, then = (f"data.num_workers={each}" for each in workers)
    run = begin(first, signal_at=6)
    go_on(run, then)
    assert history(run.folder) == history(whole())
    assert witness.saw_the_same_batches()


def test_a_schedule_that_asks_lightning_for_its_length_costs_no_batch(
    begin, whole, witness, monkeypatch
):
    configure = LanguageModel.configure_optimizers

    def asking(model):
        # Makes the loaders, before the position is loaded.
        assert model.trainer.estimated_stepping_batches == 12
        return configure(model)

    monkeypatch.setattr(LanguageModel, "configure_optimizers", asking)
    run = begin(signal_at=6)
    go_on(run)
    assert_same_runs(run.folder, whole())
    assert witness.saw_the_same_batches()


def test_a_run_goes_on_as_often_as_it_is_broken_off(begin, whole, witness):
    run = begin(crash_at=3)
    for at in (3, 5, 9):
        witness.crash_at = at
        with pytest.raises(ZeroDivisionError):
            go_on(run)
    witness.reset()
    go_on(run)
    assert_same_runs(run.folder, whole())
    parts = ["", "resumes/1", "resumes/2", "resumes/3", "resumes/4"]
    assert run.parts() == [run.folder / part for part in parts]


def test_a_run_killed_between_its_last_save_and_its_end_ends(begin):
    run = begin()
    (run.folder / "status").write_text("KILLED lost\n")
    before, weights = history(run.folder), checkpoint(run.folder)["state_dict"]
    result = go_on(run)
    assert result.status == "FINISHED"
    assert result.metrics["val/loss"] == before["val/loss", 12]
    assert history(run.folder) == before
    assert same(checkpoint(run.folder)["state_dict"], weights)


def test_a_run_killed_between_a_validation_and_its_save_validates_again(begin, whole):
    run = begin(crash_at=4)
    folder = run.folder / "checkpoints"
    (folder / "previous.ckpt").rename(folder / "last.ckpt")
    assert checkpoint(run.folder)["global_step"] == 3
    go_on(run)
    assert_same_runs(run.folder, whole())


def test_a_save_that_was_cut_off_leaves_the_one_before_and_nothing_else(begin, whole, monkeypatch):
    saves, save = [], AtomicCheckpointIO._replace

    def cut_off(self, target, saved):
        saves.append(target)
        if len(saves) == 4:
            target.with_name(f".{target.name}.x3f").write_bytes(b"half a checkpoint")
            raise ZeroDivisionError
        save(self, target, saved)

    with monkeypatch.context() as patch:
        patch.setattr(AtomicCheckpointIO, "_replace", cut_off)
        run = begin(crash_at=-1)
    assert checkpoint(run.folder)["global_step"] == 3
    go_on(run)
    assert_same_runs(run.folder, whole())
    assert sorted(each.name for each in (run.folder / "checkpoints").iterdir()) == [
        "best.ckpt",
        "last.ckpt",
        "previous.ckpt",
    ]


def test_lines_that_were_cut_off_are_written_whole(broken, whole):
    with (broken.folder / "metrics.csv").open("a") as file:
        file.write("9,0.")
    with (broken.folder / "distributions.jsonl").open("a") as file:
        file.write('{"step": 8, "la')
    go_on(broken)
    assert_same_runs(broken.folder, whole())


def test_the_bar_goes_on_where_the_run_does(begin, monkeypatch):
    from statelab.callbacks.progress import ProgressBar

    seen, end = [], ProgressBar.on_train_batch_end

    def spy(self, *args):
        end(self, *args)
        (task,) = [each for each in self.progress.tasks if each.id == self.train_progress_bar_id]
        seen.append((task.completed, task.total))

    run = begin("trainer.accumulate=2", crash_at=9)
    monkeypatch.setattr(ProgressBar, "on_train_batch_end", spy)
    place = f"run_dir={run.folder.parents[1]}"
    train(load_resumable([f"resume={run.id}", place]), progress=True)
    assert seen == [(done, 24) for done in range(9, 25)]


# Checkpoints.


def test_the_best_checkpoint_is_of_the_step_that_was_best(begin, witness):
    run = begin("optim.lr=0.05", crash_at=7)
    go_on(run)
    rows = history(run.folder).items()
    losses = {step: each for (name, step), each in rows if name == "val/loss"}
    best = checkpoint(run.folder, "best")
    assert best["callbacks"]["Checkpoints"]["best_value"] == min(losses.values())
    assert losses[best["global_step"]] == min(losses.values())


@pytest.mark.parametrize("left", [0, 1000, -1])
def test_a_truncated_checkpoint_is_named_and_the_one_before_goes_on(broken, whole, left):
    last = broken.folder / "checkpoints/last.ckpt"
    last.write_bytes(last.read_bytes()[:left])
    with pytest.raises(RunError, match=r"last\.ckpt can't be read: .*checkpoint=previous goes on "):
        go_on(broken)
    go_on(broken, checkpoint="previous")
    assert_same_runs(broken.folder, whole())


def test_without_a_whole_checkpoint_a_run_is_trained_anew(broken):
    for file in (broken.folder / "checkpoints").iterdir():
        file.write_bytes(b"")
    with pytest.raises(RunError, match=r"last\.ckpt can't be read: .*no other one: train it anew"):
        go_on(broken)
    with pytest.raises(RunError, match=r"has no checkpoint 'lats'; it has: best, last, previous"):
        go_on(broken, checkpoint="lats")


def test_the_previous_checkpoint_is_kept_where_there_are_no_links(begin, monkeypatch):
    def refuse(*args):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    run = begin(crash_at=7)
    assert checkpoint(run.folder)["global_step"] == 7
    assert checkpoint(run.folder, "previous")["global_step"] == 6


# What may be changed.


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("model.d_model=32", r"model\.d_model=32 \(the run has 16\)"),
        ("write=deltanet", r"model\.write\.name=deltanet \(the run has gla\)"),
        ("optim.lr=0.5", r"optim\.lr=0\.5 \(the run has 0\.001\)"),
        ("data.batch_size=2", r"data\.batch_size.*=2 \(the run has 4\)"),
        ("trainer.accumulate=2", r"trainer\.accumulate=2 \(the run has 1\)"),
        ("seed=1", r"seed=1 \(the run has 0\)"),
        ("tracking.enabled=true", r"tracking\.enabled=true \(the run has false\)"),
    ],
)
def test_what_would_make_another_run_of_it_is_refused(broken, changed, message):
    before = sorted(broken.folder.rglob("*"))
    with pytest.raises(ConfigError, match=f"run {broken.id} can't go on with .*{message}.*Free to"):
        go_on(broken, changed)
    assert sorted(broken.folder.rglob("*")) == before


def test_what_is_free_to_change_are_keys():
    keys = [*keys_of(Config), *keys_of(HfConfig, "data.")]
    assert set(FREE) <= {key.name for key in keys}


def test_changes_are_kept_beside_what_the_run_began_with(begin):
    run = begin(crash_at=5)
    began = {file: file.read_bytes() for file in run.folder.glob("*.*") if "env" in file.name}
    began[run.folder / "config.yaml"] = (run.folder / "config.yaml").read_bytes()
    go_on(run, "trainer.max_steps=14", "tags.who=me")
    assert {file: file.read_bytes() for file in began} == began
    assert json.loads((run.folder / "resumes/1/environment.json").read_text())["packages"]
    config = run.config()
    assert (config.trainer.max_steps, config.tags, config.resume) == (14, {"who": "me"}, None)
    assert ("train/loss", 14) in history(run.folder)


def test_a_longer_run_has_the_schedule_of_its_new_length(begin):
    run = begin("optim.warmup_steps=2", crash_at=7)
    go_on(run, "trainer.max_steps=20")
    config = run.config()
    for step in range(7, 20):
        expected = learning_rate(step, peak=1e-3, total=20, optim=config.optim)
        assert history(run.folder)["lr", step + 1] == pytest.approx(expected)


def test_a_finished_run_is_made_longer(begin):
    run = begin()
    result = go_on(run, "trainer.max_steps=14")
    assert result.status == "FINISHED"
    assert checkpoint(run.folder)["global_step"] == 14
    assert [step for name, step in history(run.folder) if name == "val/loss"] == [4, 8, 12, 14]


def test_fewer_steps_than_are_done_are_refused(broken):
    with pytest.raises(ConfigError, match=r"has done 7 steps, and trainer\.max_steps=5 is less"):
        go_on(broken, "trainer.max_steps=5")
    assert go_on(broken, "trainer.max_steps=7").status == "FINISHED"
    assert ("val/loss", 7) in history(broken.folder)


# Which broken.


def test_a_finished_run_gives_its_result_again(begin):
    run = begin()
    files = {file: file.stat().st_mtime_ns for file in run.folder.rglob("*")}
    result = go_on(run)
    assert (result.status, result.exit_status) == ("FINISHED", 0)
    assert result.metrics["val/loss"] == history(run.folder)["val/loss", 12]
    assert {file: file.stat().st_mtime_ns for file in run.folder.rglob("*")} == files | {
        run.folder / "lock": (run.folder / "lock").stat().st_mtime_ns
    }


def test_auto_takes_the_latest_run_like_this_one(begin, configure):
    auto = replace(configure(), resume="auto")
    new = train(auto, progress=False)
    assert new.status == "FINISHED"
    assert train(auto, progress=False).run_id == new.run_id

    broken = begin(crash_at=7)
    begin("optim.lr=0.5", crash_at=7)  # another configuration
    damaged = broken.folder.with_name("0" * 32)
    damaged.mkdir()
    (damaged / "config.yaml").write_text("{")
    longer = replace(configure("trainer.max_steps=14", "tags.a=b"), resume="auto")
    assert train(longer, progress=False).run_id == broken.id
    assert broken.config().trainer.max_steps == 14


def test_auto_without_any_run_is_a_new_one(configure, witness, tmp_path):
    first = train(replace(configure(), resume="auto"), progress=False)
    assert len(list(tmp_path.glob("runs/*/*"))) == 1
    other = train(replace(configure("seed=1"), resume="auto"), progress=False)
    assert other.run_id != first.run_id
    assert StoredRun(id=first.run_id, folder=first.folder).config().resume is None


def test_a_run_that_is_not_there_is_named(configure, away):
    with pytest.raises(RunError, match=r"there is no run 'zzz' under"):
        load_resumable(["resume=zzz"])
    with pytest.raises(RunError, match=r"there is no run 'zzz' under"):
        train(replace(configure(), resume="zzz"), progress=False)


def test_a_run_goes_on_from_another_folder_and_after_a_move(broken, whole, away):
    moved = away / "moved" / "default" / broken.id
    shutil.move(broken.folder, moved)
    (away / "here").mkdir()
    os.chdir(away / "here")
    train(load_resumable([f"resume={moved}"]), progress=False)
    assert not list((away / "here").iterdir())
    assert history(moved) == history(whole())


# One process a broken.


def test_a_run_is_not_trained_twice_at_once(broken, configure):
    with locked(broken.folder):
        for reference in (broken.id, "auto"):
            config = replace(configure(), resume=reference)
            with pytest.raises(RunError, match=rf"is running, as process {os.getpid()} on "):
                train(config, progress=False)
    assert go_on(broken).status == "FINISHED"


def test_a_run_holds_its_lock_while_it_trains(begin, witness, monkeypatch, tmp_path):
    step, held = LanguageModel.training_step, []

    def check(model, batch, batch_idx):
        (folder,) = tmp_path.glob("runs/*/*")
        with pytest.raises(RunError, match="is running"), locked(folder):
            pass
        held.append(batch_idx)
        return step(model, batch, batch_idx)

    monkeypatch.setattr(LanguageModel, "training_step", check)
    run = begin(signal_at=2)
    go_on(run)
    assert len(held) == 12


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, caplog):
    def refuse(*args):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    with locked(tmp_path):
        pass
    assert "no lock (Function not implemented): don't continue this run twice" in caplog.text


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(RunError, match=r"can't be continued: .*lock can't be written: No such"):  # noqa: SIM117
        with locked(tmp_path / "gone"):
            pass


# The command line.


@pytest.fixture
def statelab(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["train", *arguments])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def test_the_command_goes_on_and_says_so(statelab, toy, witness, away):
    witness.signal_at = 5
    arguments = toy("tracking.enabled=false", *STEPS)
    status, out, _ = statelab(*arguments)
    assert status == 143
    (command,) = [line for line in out.splitlines() if "resume=" in line]
    witness.reset()
    (folder,) = Path("runs/default").iterdir()
    assert command == f"statelab train resume={folder.name}"
    status, out, _ = statelab(f"resume={folder.name[:6]}", "--json")
    result = json.loads(out.splitlines()[-1])
    assert (status, result["run_id"], result["status"]) == (0, folder.name, "FINISHED")
    assert "resume=" not in statelab(*arguments, "resume=auto")[1]


def test_the_command_refuses_in_one_line(statelab, toy, witness, away):
    statelab(*toy("tracking.enabled=false", *STEPS))
    (folder,) = Path("runs/default").iterdir()
    status, out, err = statelab(f"resume={folder.name}", "model.d_model=32")
    assert (status, out) == (2, "")
    assert err.startswith(f"statelab: run {folder.name} can't go on with model.d_model=32 (the run")
    assert statelab(*toy(), "checkpoint=previous")[2] == (
        "statelab: checkpoint=previous needs a run to go on with: resume=ID.\n"
    )


def test_a_failure_says_how_to_go_on(begin, caplog):
    run = begin(crash_at=7)
    place = f"run_dir={run.folder.parents[1]}"
    assert f"run {run.id} has a checkpoint: statelab train resume={run.id} {place}" in caplog.text
