"""A tracked run that is broken off and goes on: one run of the store, one value a step."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from statelab.errors import RunError, UnknownNameError
from statelab.language_model import LanguageModel
from statelab.runs.resume import load_resumable
from statelab.train import train
from statelab_mlflow import MLflowTracker
from statelab_mlflow.store import connect, store_uri

STEPS = ("trainer.max_steps=8", "trainer.val_every=4", "trainer.checkpoint_every=3")
KILLER = Path(__file__).parent / "kill_ten_times.py"


@pytest.fixture
def broken(toy_config, run_dir, monkeypatch):
    """The folder of a run that failed in its sixth step; its last checkpoint is of the fourth."""
    step = LanguageModel.training_step

    def failing(model, batch, batch_idx):
        if batch_idx == 5:
            raise ZeroDivisionError("no luck")
        return step(model, batch, batch_idx)

    config = toy_config(f"run_dir={run_dir}", *STEPS)
    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "training_step", failing)
        with pytest.raises(ZeroDivisionError):
            train(config, progress=False)
    (folder,) = [file.parent for file in run_dir.glob("*/*/config.yaml")]
    return folder


@pytest.fixture
def client(run_dir):
    return connect(store_uri(None, run_dir))


def go_on(folder, *overrides):
    place = f"run_dir={folder.parents[1]}"
    config = load_resumable([f"resume={folder.name}", place, *overrides])
    return train(config, progress=False)


def history(client, run_id, name):
    return [(row.step, row.value) for row in client.get_metric_history(run_id, name)]


def test_it_is_the_same_run_running_again_and_then_finished(broken, client, monkeypatch):
    seen, resume = [], MLflowTracker.resume

    def spy(*args, **options):
        run = resume(*args, **options)
        seen.append(client.get_run(run.id))
        return run

    failed = client.get_run(broken.name)
    assert (failed.info.status, failed.data.tags["statelab.reason"]) == (
        "FAILED",
        "ZeroDivisionError: no luck",
    )
    monkeypatch.setattr(MLflowTracker, "resume", spy)
    result = go_on(broken)
    assert [run.info.status for run in seen] == ["RUNNING"]
    assert "statelab.reason" not in seen[0].data.tags
    assert (result.run_id, result.folder) == (broken.name, broken)
    ended = client.get_run(broken.name)
    assert ended.info.status == "FINISHED"
    assert ended.info.end_time > failed.info.end_time
    assert [run.info.run_id for run in client.search_runs([ended.info.experiment_id])] == [
        broken.name
    ]
    for name in ("train/loss", "lr", "grad_norm", "perf/tokens_per_second"):
        assert [step for step, _ in history(client, broken.name, name)] == [*range(1, 9)]
    assert [step for step, _ in history(client, broken.name, "val/loss")] == [4, 8]
    artifacts = {each.path for each in client.list_artifacts(broken.name, "resumes/1")}
    assert {f"resumes/1/{name}" for name in ("config.yaml", "environment.json")} <= artifacts


def test_changes_become_tags_and_params_stay(broken, client):
    go_on(broken, "trainer.max_steps=9", "tags.who=me")
    go_on(broken, "trainer.max_steps=10")
    kept = client.get_run(broken.name).data
    assert kept.params["trainer.max_steps"] == "8"
    assert kept.tags["resume.1.trainer.max_steps"] == "9"
    assert (kept.tags["resume.1.tags.who"], kept.tags["who"]) == ("me", "me")
    assert kept.tags["resume.2.trainer.max_steps"] == "10"
    assert [name for name in kept.tags if name.startswith("resume.")] == [
        "resume.1.tags.who",
        "resume.1.trainer.max_steps",
        "resume.2.trainer.max_steps",
    ]
    assert [step for step, _ in history(client, broken.name, "train/loss")] == [*range(1, 11)]


def test_a_run_that_was_lost_is_so_no_more(broken, client):
    client.set_tag(broken.name, "lost", "true")
    go_on(broken)
    assert "lost" not in client.get_run(broken.name).data.tags


def test_the_tags_name_who_trains_it_now(broken, client):
    client.set_tag(broken.name, "statelab.pid", "1")
    go_on(broken)
    assert client.get_run(broken.name).data.tags["statelab.pid"] == str(os.getpid())


def test_a_store_that_does_not_know_the_run_is_named(broken, tmp_path, client):
    elsewhere = f"sqlite:///{tmp_path}/other.db"
    with pytest.raises(UnknownNameError, match=rf"store {elsewhere} has no run {broken.name}\."):
        go_on(broken, f"tracking.uri={elsewhere}")
    assert not (tmp_path / "other.db").exists()
    connect(elsewhere)
    with pytest.raises(UnknownNameError, match=r"has no run .*\. Name the one that has with"):
        go_on(broken, f"tracking.uri={elsewhere}")
    assert client.get_run(broken.name).info.status == "FAILED"


def test_a_run_that_was_removed_from_the_store_says_how_to_restore_it(broken, client):
    client.delete_run(broken.name)
    with pytest.raises(RunError, match=rf"run {broken.name} was removed .*`mlflow runs restore "):
        go_on(broken)
    client.restore_run(broken.name)
    assert go_on(broken).status == "FINISHED"


@pytest.mark.slow
def test_killed_three_times_at_random_it_equals_an_unbroken_run(tmp_path):
    done = subprocess.run(
        [sys.executable, KILLER, "3", str(tmp_path)], capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["kills"], report["in_a_save"]) == (3, 1)
