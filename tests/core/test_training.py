"""Training end to end at toy size: what a run leaves, how it ends, and that it can be repeated."""

import csv
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from lightning import Trainer
from torch import Tensor

from statelab.callbacks.checkpoints import AtomicCheckpointIO
from statelab.errors import ConfigError, RunError
from statelab.evaluate import evaluate, load_checkpoint
from statelab.language_model import LanguageModel
from statelab.optim import learning_rate
from statelab.runs.stored import StoredRun, find_run
from statelab.train import train
from statelab_mlflow.store import connect


@pytest.fixture(scope="module")
def trained(tmp_path_factory, toy_config):
    """A tracked run of four steps, validated after two and four."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        run_dir = tmp_path_factory.mktemp("runs")
        options = ("optim.lr=0.01", "optim.warmup_steps=2", "tags.who=me")
        config = toy_config(f"run_dir={run_dir}", *options)
        yield train(config, progress=False), config


@pytest.fixture
def store(trained):
    return connect(f"sqlite:///{trained[1].run_dir}/mlflow.db")


@pytest.fixture
def untracked(toy_config, tmp_path):
    """Train without a store, and return the result with the rows of its metrics file."""

    def run(*overrides):
        config = toy_config("tracking.enabled=false", f"run_dir={tmp_path}", *overrides)
        result = train(config, progress=False)
        with (result.folder / "metrics.csv").open() as file:
            rows = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
        return result, rows

    return run


def column(rows, name):
    return {int(row["step"]): row[name] for row in rows if name in row}


# What a run leaves.


def test_a_run_leaves_what_it_takes_to_repeat_it(trained):
    result, config = trained
    assert result.status == "FINISHED"
    assert result.exit_status == 0
    assert result.folder.parent.name == config.experiment
    assert result.folder.name == result.run_id
    for name in ("config.yaml", "environment.json", "checkpoints/last.ckpt"):
        assert (result.folder / name).stat().st_size > 0
    assert result.checkpoint == result.folder / "checkpoints/last.ckpt"
    assert result.best_checkpoint == result.folder / "checkpoints/best.ckpt"
    assert StoredRun(id=result.run_id, folder=result.folder).config() == config
    facts = json.loads((result.folder / "environment.json").read_text())
    assert facts["packages"]["torch"] == torch.__version__
    assert facts["command"] == sys.argv
    assert {each.name for each in (result.folder / "checkpoints").iterdir()} == {
        "last.ckpt",
        "previous.ckpt",
        "best.ckpt",
    }


def test_metrics_are_recorded_by_optimizer_steps_done(trained, store):
    result, config = trained

    def history(name):
        found = store.get_metric_history(result.run_id, name)
        steps = [each.step for each in found]
        assert len(set(steps)) == len(steps), f"{name} has two values at a step"
        return {each.step: each.value for each in found}

    for name in ("train/loss", "grad_norm", "perf/tokens_per_second"):
        assert list(history(name)) == [1, 2, 3, 4]
    for name in ("val/loss", "val/ppl", "val/accuracy", "val/accuracy/kv_2", "val/accuracy/kv_3"):
        assert list(history(name)) == [2, 4]
    rates = [learning_rate(s, peak=0.01, total=4, optim=config.optim) for s in range(4)]
    assert list(history("lr").values()) == pytest.approx(rates)
    assert history("val/loss")[4] == result.metrics["val/loss"]
    assert history("train/loss")[4] == result.metrics["train/loss"]


def test_the_store_knows_how_the_run_was_made_and_ended(trained, store):
    result, _ = trained
    run = store.get_run(result.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["optim.lr"] == "0.01"
    assert run.data.params["model.write.name"] == "gla"
    wanted = {"write": "gla", "read": "plain", "data": "mqar", "seed": "0", "who": "me"}
    assert wanted.items() <= run.data.tags.items()
    assert {each.path for each in store.list_artifacts(result.run_id)} >= {
        "config.yaml",
        "environment.json",
    }


def test_a_checkpoint_holds_plain_values_only(trained):
    checkpoint = torch.load(trained[0].checkpoint, weights_only=True)

    def kinds(value):
        yield type(value)
        if isinstance(value, dict):
            for key, each in value.items():
                yield from (*kinds(key), *kinds(each))
        elif isinstance(value, (list, tuple)):
            for each in value:
                yield from kinds(each)

    plain = {dict, OrderedDict, list, tuple, str, int, float, bool, type(None), Tensor}
    assert set(kinds(checkpoint)) <= plain
    assert checkpoint["global_step"] == 4


def test_a_checkpoint_is_a_model_by_itself(trained, away):
    result, config = trained
    model = LanguageModel.load_from_checkpoint(result.checkpoint, weights_only=True)
    assert model.config == config
    saved = torch.load(result.checkpoint, weights_only=True)["state_dict"]
    assert model.state_dict().keys() == saved.keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, saved[name])
    logits, state = model(torch.zeros(1, 3, dtype=torch.int64))
    assert logits.shape == (1, 3, 32)
    assert state["position"].tolist() == [3]


# Evaluation.


def statelab(*arguments, cwd, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "statelab", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.slow
def test_evaluation_elsewhere_repeats_the_metrics_to_the_bit(trained, away):
    result, config = trained
    done = statelab("eval", f"run={result.run_id}", f"run_dir={config.run_dir}", "--json", cwd=away)
    out, err = done.communicate(timeout=120)
    assert done.returncode == 0, err
    found = json.loads(out)
    assert found["run_id"] == result.run_id
    logged = {name: each for name, each in result.metrics.items() if name.startswith("val/")}
    assert found["metrics"] == logged
    assert list(away.iterdir()) == []


def test_evaluation_of_the_best_gives_the_least_loss(trained, store):
    result, config = trained
    losses = [each.value for each in store.get_metric_history(result.run_id, "val/loss")]
    run = find_run(result.run_id, run_dir=config.run_dir)
    assert evaluate(run, checkpoint="best").metrics["val/loss"] == min(losses)


def test_evaluation_may_change_the_data_and_nothing_else(trained):
    run = StoredRun(id="it", folder=trained[0].folder)
    more = evaluate(run, overrides=["data.num_pairs=[4]"]).metrics
    assert "val/accuracy/kv_4" in more
    with pytest.raises(ConfigError, match=r"eval can change data\.\* and trainer\.\* only, got mo"):
        evaluate(run, overrides=["model.d_model=32"])


# Runs and checkpoints that can't be read.


def test_a_run_is_found_by_the_start_of_its_id_or_its_folder(trained, monkeypatch):
    result, config = trained
    for reference in (result.run_id, result.run_id[:6], str(result.folder)):
        found = find_run(reference, run_dir=config.run_dir)
        assert (found.id, found.folder) == (result.run_id, result.folder)
    monkeypatch.chdir(result.folder)
    assert find_run(".").id == result.run_id


def test_a_run_elsewhere_is_found_by_the_store(trained, away):
    result, config = trained
    uri = f"sqlite:///{config.run_dir}/mlflow.db"
    assert find_run(result.run_id, run_dir="nowhere", uri=uri).folder == result.folder


def test_a_run_that_there_is_not_is_named(trained, away):
    run_dir = trained[1].run_dir
    with pytest.raises(RunError, match=rf"there is no run 'zzz' under {run_dir}"):
        find_run("zzz", run_dir=run_dir)
    with pytest.raises(RunError, match=r"there is no run 'zzz' under .* Give its id, run_dir="):
        find_run("zzz")


def test_the_start_of_two_ids_is_refused(away):
    for name in ("abc1", "abc2"):
        (away / "runs/toy" / name).mkdir(parents=True)
        (away / "runs/toy" / name / "config.yaml").touch()
    with pytest.raises(RunError, match=r"run=abc begins 2 runs: abc1, abc2\."):
        find_run("abc")
    assert find_run("abc1").id == "abc1"


def test_a_run_without_the_checkpoint_lists_those_it_has(tmp_path):
    run = StoredRun(id="it", folder=tmp_path)
    with pytest.raises(RunError, match=r"run it has no checkpoint 'last'; it has: none"):
        run.checkpoint("last")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/last.ckpt").touch()
    with pytest.raises(RunError, match=r"run it has no checkpoint 'best'; it has: last"):
        run.checkpoint("best")


@pytest.mark.parametrize("text", [b"", b"model: [", b"\xff\xfe", b"- a list"])
def test_a_run_whose_configuration_is_damaged_is_named(tmp_path, text):
    (tmp_path / "config.yaml").write_bytes(text)
    with pytest.raises(RunError, match=r"run it: .*config\.yaml can't be read.*train it anew"):
        StoredRun(id="it", folder=tmp_path).config()


@pytest.mark.parametrize("left", [0, 1000, -1, -1000])
def test_a_truncated_checkpoint_is_named(trained, tmp_path, left):
    whole = trained[0].checkpoint.read_bytes()
    file = tmp_path / "last.ckpt"
    file.write_bytes(whole[:left])
    with pytest.raises(RunError, match=r"last\.ckpt can't be read: it is truncated, or not st"):
        load_checkpoint(file)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("boom",)


def test_a_file_that_would_run_code_is_refused_and_runs_nothing(away):
    torch.save({"state_dict": Bomb()}, "bomb.ckpt")
    with pytest.raises(RunError, match=r"bomb\.ckpt can't be read"):
        load_checkpoint(away / "bomb.ckpt")
    assert not (away / "boom").exists()


def test_a_checkpoint_of_something_else_is_refused(away):
    torch.save({"weights": torch.zeros(3)}, "other.ckpt")
    with pytest.raises(RunError, match=r"other\.ckpt can't be read"):
        load_checkpoint(away / "other.ckpt")


@contextmanager
def files_no_larger_than(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path):
    file, io = tmp_path / "last.ckpt", AtomicCheckpointIO()
    io.save_checkpoint({"step": torch.zeros(2)}, file)
    for size in (1_000, 100_000):
        with (
            files_no_larger_than(size),
            pytest.raises(RunError, match=r"last\.ckpt can't be written: .*Is the disk full\?"),
        ):
            io.save_checkpoint({"step": torch.ones(100_000)}, file)
        assert torch.equal(torch.load(file)["step"], torch.zeros(2))
        assert list(tmp_path.iterdir()) == [file]


def test_a_checkpoint_may_be_read_by_whom_the_other_files_of_the_run_may(tmp_path):
    AtomicCheckpointIO().save_checkpoint({}, tmp_path / "last.ckpt")
    (tmp_path / "status").touch()
    assert (tmp_path / "last.ckpt").stat().st_mode == (tmp_path / "status").stat().st_mode


def test_a_folder_that_is_none_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file/last\.ckpt can't be written: "):
        AtomicCheckpointIO().save_checkpoint({}, tmp_path / "file" / "last.ckpt")


# How a run ends.


def test_a_failure_is_recorded_and_raised(trained, store, toy_config, monkeypatch):
    step, calls = LanguageModel.training_step, []

    def failing(self, batch, batch_idx):
        calls.append(batch_idx)
        if len(calls) == 3:
            raise ZeroDivisionError("no luck")
        return step(self, batch, batch_idx)

    monkeypatch.setattr(LanguageModel, "training_step", failing)
    config = toy_config(f"run_dir={trained[1].run_dir}", "tags.test=failing")
    with pytest.raises(ZeroDivisionError, match="no luck"):
        train(config, progress=False)
    experiment = store.get_experiment_by_name(config.experiment)
    (run,) = store.search_runs([experiment.experiment_id], "tags.test = 'failing'")
    assert run.info.status == "FAILED"
    assert [each.step for each in store.get_metric_history(run.info.run_id, "train/loss")] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_saved_and_called_killed(trained, store, toy, away, number):
    run_dir = trained[1].run_dir
    arguments = toy(f"run_dir={run_dir}", "trainer.max_steps=100000", f"tags.test={number.name}")
    process = statelab("train", *arguments, "--json", cwd=away)
    try:
        folder = wait_for_steps(process, store, run_dir, number.name)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err
    result = json.loads(out)
    assert result["status"] == "KILLED"
    assert store.get_run(result["run_id"]).info.status == "KILLED"
    saved = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)
    steps = [each.step for each in store.get_metric_history(result["run_id"], "train/loss")]
    assert steps == list(range(1, saved["global_step"] + 1))


def wait_for_steps(process, store, run_dir, tag):
    """The run's folder, once its journal has a line."""
    deadline = time.monotonic() + 90
    experiment = store.get_experiment_by_name("default").experiment_id
    while time.monotonic() < deadline and process.poll() is None:
        for run in store.search_runs([experiment], f"tags.test = '{tag}'"):
            folder = Path(run_dir, "default", run.info.run_id)
            if (folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").stat().st_size:
                return folder
        time.sleep(0.2)
    raise AssertionError(f"no step in time: {process.communicate(timeout=5)}")


def test_an_unwritable_folder_is_refused_before_anything_starts(toy_config, tmp_path):
    (tmp_path / "file").touch()
    for tracked in ("true", "false"):
        config = toy_config(f"run_dir={tmp_path}/file", f"tracking.enabled={tracked}")
        with pytest.raises(RunError, match=r"run_dir=.*file can't be written: .*Choose another"):
            train(config, progress=False)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


# Repetition.


def test_a_run_without_a_store_writes_its_metrics_and_its_end(untracked):
    result, rows = untracked()
    assert list(column(rows, "train/loss")) == [1, 2, 3, 4]
    assert list(column(rows, "val/loss")) == [2, 4]
    assert (result.folder / "status").read_text() == "FINISHED\n"
    assert find_run(result.run_id, run_dir=str(result.folder.parents[1])).folder == result.folder


def test_a_run_shorter_than_its_epoch_or_longer_validates_at_its_end(untracked):
    # Five batches an epoch.
    for steps, validated in ((3, [2, 3]), (5, [2, 4, 5]), (7, [2, 4, 6, 7])):
        _, rows = untracked(f"trainer.max_steps={steps}")
        assert list(column(rows, "train/loss")) == list(range(1, steps + 1))
        assert list(column(rows, "val/loss")) == validated


@pytest.mark.parametrize(("write", "read"), [("gla", "ccq"), ("s4d", "interdomain")])
def test_the_same_seed_gives_the_same_losses_to_the_bit(untracked, write, read):
    pair = (f"write={write}", f"read={read}", "trainer.max_steps=6")
    results = [untracked(*pair)[1] for _ in range(2)]
    results.append(untracked(*pair, "seed=1")[1])
    for name in ("train/loss", "grad_norm", "val/loss"):
        first, second, other = (column(rows, name) for rows in results)
        assert first == second
        assert set(first.values()).isdisjoint(other.values())


def test_training_does_not_depend_on_how_it_is_looked_at(untracked):
    # Checkpoints, validations and workers leave the losses as they are.
    options = ((), ("trainer.val_every=1",), ("trainer.checkpoint_every=1",))
    plain, *others = (column(untracked(*each)[1], "train/loss") for each in options)
    assert others == [plain, plain]


def test_checkpoints_between_validations_are_of_the_last_step(untracked, monkeypatch):
    saved = []
    save = Trainer.save_checkpoint

    def spy(self, path, *arguments, **options):
        saved.append((self.global_step, path.name))
        save(self, path, *arguments, **options)

    monkeypatch.setattr(Trainer, "save_checkpoint", spy)
    untracked("trainer.checkpoint_every=1", "trainer.val_every=3", "trainer.max_steps=4")
    assert [step for step, name in saved if name == "last.ckpt"] == [1, 2, 3, 4]
    assert 3 in [step for step, name in saved if name == "best.ckpt"]


@pytest.mark.parametrize("steps", [2, 6])
def test_accumulated_batches_are_one_step_of_a_larger_batch(untracked, steps):
    # An epoch is ten small batches or five large ones, and six steps reach into the second one.
    common = (f"trainer.max_steps={steps}", "data.num_pairs=[3]", "trainer.val_every=2")
    large, small = (
        untracked(*common, *options)
        for options in ((), ("data.batch_size=2", "trainer.accumulate=2"))
    )
    for name in ("train/loss", "grad_norm", "val/loss"):
        expected = column(large[1], name)
        assert column(small[1], name) == pytest.approx(expected, rel=1e-4), name
    checkpoint = torch.load(small[0].checkpoint, weights_only=True)
    assert checkpoint["global_step"] == steps


def test_an_epoch_that_accumulation_does_not_divide_is_saved_at_steps_only(untracked, monkeypatch):
    # Five batches an epoch, two a step.
    saved = []
    save = Trainer.save_checkpoint

    def spy(self, *arguments, **options):
        saved.append((self.global_step, self.datamodule.batches_finished))
        save(self, *arguments, **options)

    monkeypatch.setattr(Trainer, "save_checkpoint", spy)
    _, rows = untracked("trainer.accumulate=2", "trainer.max_steps=7", "trainer.checkpoint_every=1")
    assert list(column(rows, "train/loss")) == list(range(1, 8))
    assert list(column(rows, "val/loss")) == [2, 4, 6, 7]
    assert sorted(set(saved)) == [(step, 2 * step) for step in range(1, 8)]


def test_a_double_precision_run_trains(untracked):
    result, rows = untracked("trainer.precision=64-true", "trainer.max_steps=2")
    saved = torch.load(result.checkpoint, weights_only=True)["state_dict"]
    assert {each.dtype for each in saved.values()} == {torch.float64}
    assert len(column(rows, "train/loss")) == 2


def test_text_reports_bits_per_byte(untracked, tmp_path):
    for i in range(8):
        (tmp_path / f"{i}.txt").write_text(f"{i} some text " * 30)
    text = ["data.name=text", f"data.files={tmp_path}/*.txt", "data.seq_len=16"]
    _, rows = untracked(*text)
    losses = column(rows, "val/loss")
    assert list(losses) == [2, 4]
    for step, bits in column(rows, "val/bpb").items():
        assert bits == pytest.approx(losses[step] / math.log(2), rel=1e-5)


def test_a_mixed_precision_run_trains(untracked):
    result, rows = untracked("trainer.precision=bf16-mixed", "trainer.max_steps=2", "read=ccq")
    assert len(column(rows, "train/loss")) == 2
    assert all(math.isfinite(each) for each in result.metrics.values())
