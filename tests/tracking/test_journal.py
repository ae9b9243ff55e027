from __future__ import annotations

import math
import time

import pytest

import statelab_mlflow.sender
from statelab.errors import ConfigError
from statelab_mlflow import MLflowTracker
from statelab_mlflow.journal import Journal, read_rows
from statelab_mlflow.store import connect, store_uri


def history(run_dir, run, key):
    rows = connect(store_uri(None, run_dir)).get_metric_history(run.id, key)
    return [(row.step, row.value) for row in rows]


def test_metrics_come_back_by_step(start, run_dir):
    run = start()
    for step in range(1500):
        run.logger.log_metrics({"train/loss": 1 / (step + 1), "val/accuracy/kv_8": 0.5}, step)
    run.finish("FINISHED")
    assert history(run_dir, run, "train/loss") == [(i, 1 / (i + 1)) for i in range(1500)]
    assert len(history(run_dir, run, "val/accuracy/kv_8")) == 1500


def test_values_that_are_no_numbers_are_kept(start, run_dir):
    run = start()
    run.logger.log_metrics({"nan": math.nan, "inf": math.inf}, 3)
    run.finish("FINISHED")
    ((step, value),) = history(run_dir, run, "nan")
    assert step == 3
    assert math.isnan(value)
    assert history(run_dir, run, "inf")[0][1] > 1e308


def test_one_name_twice_in_a_step_keeps_both_values(start, run_dir):
    run = start()
    run.logger.log_metrics({"loss": 1.0}, 1)
    run.logger.log_metrics({"loss": 2.0}, 1)
    run.finish("FINISHED")
    assert sorted(history(run_dir, run, "loss")) == [(1, 1.0), (1, 2.0)]


def test_the_sender_sends_while_the_run_goes_on(start, run_dir, monkeypatch):
    monkeypatch.setattr(statelab_mlflow.sender, "_SEND_SECONDS", 0.05)
    run = start()
    run.logger.log_metrics({"loss": 1.0}, 1)
    deadline = time.monotonic() + 20
    while not history(run_dir, run, "loss"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    run.finish("FINISHED")


def test_logging_asks_nothing_of_the_store(start, monkeypatch):
    run = start()
    calls = []
    with monkeypatch.context() as patch:
        patch.setattr("mlflow.MlflowClient.log_batch", lambda *args, **kwargs: calls.append(args))
        for step in range(100):
            run.logger.log_metrics({"loss": 1.0}, step)
        assert not calls
        run.finish("FINISHED")
        assert len(calls) == 1


@pytest.mark.parametrize("name", ["loss=1", "a@b", "a//b", "/a", "../a", "a/", ".", "", "x" * 251])
def test_a_name_that_mlflow_refuses_is_an_error_and_not_journalled(start, name):
    run = start()
    with pytest.raises(ConfigError, match="a metric can't be named"):
        run.logger.log_metrics({"good": 1.0, name: 1.0}, 1)
    assert (run.folder / "metrics.jsonl").read_text() == ""
    run.finish("FAILED")


def test_every_name_that_passes_is_taken_by_mlflow(start, run_dir):
    names = ["val/accuracy/kv_8", "a b", "a:b", "σ.max", "-x", "x" * 250]
    run = start()
    run.logger.log_metrics(dict.fromkeys(names, 1.0), 1)
    run.finish("FINISHED")
    kept = connect(store_uri(None, run_dir)).get_run(run.id).data.metrics
    assert sorted(kept) == sorted(names)


def test_a_line_cut_off_by_a_crash_is_left_out(start, run_dir):
    run = start()
    run.logger.log_metrics({"loss": 1.0}, 1)
    run.finish("FINISHED")
    with (run.folder / "metrics.jsonl").open("a") as journal:
        journal.write('{"key": "lo')
    assert not MLflowTracker().sync(run.folder, uri=None)
    assert history(run_dir, run, "loss") == [(1, 1.0)]


def test_what_follows_a_line_cut_off_stands_alone(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"key": "a"}\n{"key": "lo')
    journal = Journal(file)
    journal.append({"b": 1.0}, 2)
    journal.close()
    rows, read = read_rows(file, 0, 10)
    assert [row["key"] for row in rows] == ["a", "b"]
    assert read == file.stat().st_size


def test_lightning_puts_its_files_into_the_folder_of_the_run(start):
    run = start()
    logger = run.logger
    assert logger is run.logger
    assert "/".join((logger.save_dir, logger.name, logger.version)) == str(run.folder)
    assert logger.log_dir == str(run.folder)
    logger.log_hyperparams({"lr": 1.0})
    run.finish("FINISHED")
