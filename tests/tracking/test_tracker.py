from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient

from statelab.config import TrackingConfig
from statelab.errors import RunError
from statelab.registries import trackers
from statelab.runs.records import RunQuery, list_runs
from statelab.runs.status import RunStatus
from statelab.signals import Stopped, unwinding
from statelab_mlflow import MLflowTracker
from statelab_mlflow.store import connect, store_uri


def client_of(run_dir):
    return connect(store_uri(None, run_dir))


def test_the_registry_knows_the_tracker():
    assert trackers.get("mlflow").cls is MLflowTracker


def test_a_run_starts_running_with_its_name_and_what_it_was_given(start, run_dir):
    params = {"optim.lr": 1e-3, "model.tie": True, "model.layers": None, "model.note": "x" * 4000}
    params |= {f"many.{i}": i for i in range(250)}
    run = start(name="gla + ccq", params=params, tags={"team": "blue"}, description="*why*")
    kept = client_of(run_dir).get_run(run.id)
    assert (kept.info.run_name, kept.info.status) == ("gla + ccq", "RUNNING")
    assert len(kept.data.params) == 254
    assert kept.data.params["model.note"] == "x" * 4000
    assert kept.data.params["optim.lr"] == "0.001"
    assert (kept.data.params["model.tie"], kept.data.params["model.layers"]) == ("true", "null")
    assert run.folder == run_dir / "toy" / run.id
    assert run.folder.is_dir()
    tags = kept.data.tags
    assert tags["team"] == "blue"
    assert tags["mlflow.note.content"] == "*why*"
    assert tags["statelab.folder"] == str(run.folder)
    assert tags["statelab.pid"] == str(os.getpid())
    assert tags["mlflow.user"]
    assert tags["statelab.host"]
    run.finish("FINISHED")


@pytest.mark.parametrize("has_folder", [False, True])
def test_a_run_whose_store_goes_as_it_opens_is_marked_by_whoever_lists_it(
    start, run_dir, monkeypatch, has_folder
):
    """The store has it as RUNNING, and nobody has it in hand."""

    def away(self, *given, **named):
        raise ConnectionError("the store is gone")

    with monkeypatch.context() as patch:
        for name in ("log_batch", "set_terminated"):
            patch.setattr(MlflowClient, name, away)
        with pytest.raises(RunError, match="the store is gone"):
            start()
    if not has_folder:
        (folder,) = (run_dir / "toy").iterdir()
        shutil.rmtree(folder)

    def listed():
        (run,) = list_runs(RunQuery(), run_dir=run_dir, uri=None)
        return run.status, run.experiment

    assert listed() == ("RUNNING", "toy")
    monkeypatch.setattr("statelab.runs.lost.is_gone", lambda host, process: process == os.getpid())
    assert listed() == ("KILLED", "toy")


@pytest.mark.parametrize("status", ["FINISHED", "FAILED", "KILLED"])
def test_a_run_ends_with_its_status_and_reason(start, run_dir, status):
    run = start()
    run.finish(status, "because")
    kept = client_of(run_dir).get_run(run.id)
    assert kept.info.status == status
    assert kept.info.end_time is not None
    assert kept.data.tags["statelab.reason"] == "because"


def test_artifacts_lie_in_the_folder_of_the_run_also_under_an_odd_path(
    make_config, start, run_dir, tmp_path
):
    odd = tmp_path / "my runs #1, 50%"
    (tmp_path / "report.txt").write_text("done")
    store = store_uri(None, run_dir)
    run = start(make_config(run_dir=odd, uri=store))
    run.log_artifact(tmp_path / "report.txt")
    run.finish("FINISHED")
    assert (run.folder / "artifacts" / "report.txt").read_text() == "done"
    assert [each.path for each in connect(store).list_artifacts(run.id)] == ["report.txt"]


def test_an_artifact_that_cannot_be_kept_is_a_warning(start, tmp_path, caplog):
    run = start()
    run.log_artifact(tmp_path / "absent.txt")
    run.finish("FINISHED")
    (message,) = caplog.messages
    assert "absent.txt is not in the tracking store: " in message
    assert message.endswith("it is gone.")


def test_the_folder_of_a_recorded_run_is_found(start, run_dir):
    run = start()
    run.finish("FINISHED")
    tracker = MLflowTracker()
    assert tracker.folder_of(run.id, uri=None, run_dir=run_dir) == run.folder
    assert tracker.folder_of("0" * 32, uri=None, run_dir=run_dir) is None
    assert tracker.folder_of("../no id", uri=None, run_dir=run_dir) is None


def test_asking_for_a_run_makes_no_store(tmp_path):
    assert MLflowTracker().folder_of("0" * 32, uri=None, run_dir=tmp_path / "runs") is None
    assert not list(tmp_path.iterdir())


def test_tracking_experiment_names_the_experiment_in_mlflow(make_config, start, run_dir):
    run = start(
        replace(make_config(experiment="mqar"), tracking=TrackingConfig(experiment="shared"))
    )
    run.finish("FINISHED")
    client = client_of(run_dir)
    found = client.get_experiment(client.get_run(run.id).info.experiment_id)
    assert found.name == "shared"
    assert run.folder.parent == run_dir / "mqar"


def test_a_deleted_experiment_is_refused(start, run_dir):
    start().finish("FINISHED")
    client = client_of(run_dir)
    client.delete_experiment(client.get_experiment_by_name("toy").experiment_id)
    with pytest.raises(RunError, match=r"'toy' was deleted\. Restore it with `mlflow experiments"):
        start()


def test_a_run_that_cannot_be_described_is_not_left_running(start, run_dir):
    with pytest.raises(RunError, match=r"can't be used: .*lr\[0\]"):
        start(params={"lr[0]": 1})
    client = client_of(run_dir)
    toy = client.get_experiment_by_name("toy").experiment_id
    assert [run.info.status for run in client.search_runs([toy])] == ["FAILED"]


def test_a_file_in_place_of_run_dir_is_refused(make_config, start, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"run_dir=.*file can't be written: Not a directory"):
        start(make_config(run_dir=tmp_path / "file"))


@pytest.mark.slow
def test_two_processes_start_at_once_on_a_fresh_store(tmp_path):
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from conftest import *
rule = RuleConfig(name="any", options=None)
config = Config(experiment="toy", run_dir={str(tmp_path / "runs")!r},
    model=ModelConfig(write=rule, read=rule), data=DataConfig(name="any"))
run = MLflowTracker().start(config, name="both", params={{"a": 1}}, tags={{}}, description="")
run.finish("FINISHED")
print(run.folder)
"""
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, text=True)
        for _ in range(2)
    ]
    ends = [(*process.communicate(timeout=120), process.returncode) for process in both]
    folders = {out.strip() for out, _, _ in ends}
    assert [(err, code) for _, err, code in ends] == [("", 0), ("", 0)]
    assert len(folders) == 2
    assert all(Path(folder).is_dir() for folder in folders)


def test_platform_and_mlflow_are_the_real_ones_at_the_root_and_tracking_imports_neither_early():
    code = """
import sys
import statelab_mlflow.tracker
assert not {"mlflow", "torch", "lightning"} & set(sys.modules), "imported early"
import platform, mlflow
print(platform.system(), mlflow.MlflowClient.__name__)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[1] == "MlflowClient"


def test_a_signal_while_a_run_is_made_leaves_none_running(start, run_dir, monkeypatch):
    from mlflow import MlflowClient

    create = MlflowClient.create_run

    def interrupted(self, *args, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return create(self, *args, **options)

    monkeypatch.setattr(MlflowClient, "create_run", interrupted)
    with pytest.raises(Stopped), unwinding():
        start()
    client = client_of(run_dir)
    toy = client.get_experiment_by_name("toy").experiment_id
    assert [run.info.status for run in client.search_runs([toy])] == ["KILLED"]


def test_a_signal_once_the_folder_says_running_is_told_to_it_too(start, run_dir, monkeypatch):
    def interrupted(*args, **options):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("statelab_mlflow.run.Journal", interrupted)
    with pytest.raises(Stopped), unwinding():
        start()
    client = client_of(run_dir)
    toy = client.get_experiment_by_name("toy").experiment_id
    (run,) = client.search_runs([toy])
    status = RunStatus.read(run_dir / "toy" / run.info.run_id)
    assert (run.info.status, status.name, status.reason) == ("KILLED", "KILLED", "SIGTERM")
