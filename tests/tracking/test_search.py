from __future__ import annotations

import os

import pytest

from statelab.errors import RunError
from statelab.runs.records import RunQuery, list_runs
from statelab.runs.removal import remove_run, runs_to_remove
from statelab_mlflow.store import connect, store_uri


@pytest.fixture
def ended(make_config, start):
    """Record a run with its end."""

    def ended(loss, status="FINISHED", *, write="gla", experiment="toy", **tags):
        run = start(
            make_config(experiment=experiment),
            params={"experiment": experiment},
            tags={"write": write, "read": "ccq", **tags},
        )
        (run.folder / "config.yaml").write_text("{}")
        run.logger.log_metrics({"val/loss": loss, "lr": 0.1}, 3)
        run.finish(status)
        return run

    return ended


def test_a_recorded_run_is_what_it_was_given(ended, run_dir):
    run = ended(1.5, "KILLED")
    (found,) = list_runs(RunQuery(), run_dir=run_dir, uri=None)
    assert (found.id, found.experiment, found.pair) == (run.id, "toy", "gla+ccq")
    assert (found.status, found.step) == ("KILLED", 3)
    assert found.metrics == {"val/loss": 1.5, "lr": 0.1}
    assert (found.folder, found.process, found.tracked) == (run.folder, os.getpid(), True)
    assert not found.lost


def test_the_run_of_a_study_is_called_one(ended, run_dir):
    ended(1.5, kind="study")
    (found,) = list_runs(RunQuery(), run_dir=run_dir, uri=None)
    assert found.pair == "study"


def test_the_store_filters_sorts_and_cuts(ended, run_dir):
    runs = {
        "a": ended(3.0),
        "b": ended(1.0, "FAILED", write="/it's/leaky.py:Leaky"),
        "c": ended(2.0, experiment="other", team="blue"),
        "d": ended(float("nan")),
    }

    def names(**query):
        found = list_runs(RunQuery(**query), run_dir=run_dir, uri=None)
        return "".join(name for run in found for name in runs if runs[name].id == run.id)

    assert names() == "dcba"
    assert names(limit=2) == "dc"
    assert names(sort="val/loss") == "bcad"
    assert names(sort="val/loss", descending=True) == "acbd"
    assert names(status="FAILED") == "b"
    assert names(write="/it's/leaky.py:Leaky") == "b"
    assert names(experiment="other") == "c"
    assert names(tags={"team": "blue"}) == "c"
    assert names(tags={"team": "blue"}, read="plain") == ""
    assert names(id=runs["a"].id[:12]) == "a"


def test_a_folder_that_was_moved_is_found_where_it_is_now(ended, run_dir):
    run = ended(1.0)
    moved = run_dir.rename(run_dir.with_name("moved"))
    (found,) = list_runs(RunQuery(), run_dir=moved, uri=None)
    assert found.folder == moved / "toy" / run.id


def test_a_removed_run_is_gone_from_disk_and_store(ended, run_dir):
    gone, stays = ended(1.0), ended(2.0)
    (run,) = runs_to_remove(RunQuery(id=gone.id[:12]), run_dir=run_dir, uri=None)
    remove_run(run, run_dir=run_dir, uri=None)
    assert not gone.folder.exists()
    assert [each.id for each in list_runs(RunQuery(), run_dir=run_dir, uri=None)] == [stays.id]


def test_a_running_run_is_not_removed(start, run_dir):
    run = start()
    with pytest.raises(RunError, match=f"run {run.id} is running here, as process {os.getpid()}"):
        runs_to_remove(RunQuery(id=run.id), run_dir=run_dir, uri=None)
    run.finish("FINISHED")


def test_a_folder_that_is_no_run_is_left_alone(ended, run_dir, tmp_path):
    run = ended(1.0)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/config.yaml").write_text("{}")
    client = connect(store_uri(None, run_dir))
    client.set_tag(run.id, "statelab.folder", str(tmp_path / "precious"))
    (found,) = list_runs(RunQuery(), run_dir=run_dir, uri=None)
    remove_run(found, run_dir=run_dir, uri=None)
    assert (tmp_path / "precious/config.yaml").exists()
