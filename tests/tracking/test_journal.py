from __future__ import annotations

import json
import math
import time

import pytest

import statelab_mlflow.journal
import statelab_mlflow.run
from statelab.errors import ConfigError, RunError
from statelab_mlflow import resend
from statelab_mlflow.store import connect, store_uri


def history(run_dir, run, key):
    rows = connect(store_uri(None, run_dir)).get_metric_history(run.id, key)
    return [(row.step, row.value) for row in rows]


@pytest.fixture
def store_that_goes_away(monkeypatch):
    """Break the client of a run; the last send is given half a second."""
    monkeypatch.setattr(statelab_mlflow.run, "_LAST_SEND_SECONDS", 0.5)
    monkeypatch.setattr(statelab_mlflow.journal, "_RETRY_SECONDS", 0.1)

    def go_away(run):
        def refuse(*args, **kwargs):
            raise ConnectionError("the store is away")

        for method in ("log_batch", "set_tag", "set_terminated"):
            monkeypatch.setattr(run._client, method, refuse)

    return go_away


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
    monkeypatch.setattr(statelab_mlflow.journal, "_SEND_SECONDS", 0.05)
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
        patch.setattr(run._client, "log_batch", lambda *args, **kwargs: calls.append(args))
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
    assert run._journal.unsent() == 0
    run.finish("FAILED")


def test_every_name_that_passes_is_taken_by_mlflow(start, run_dir):
    names = ["val/accuracy/kv_8", "a b", "a:b", "σ.max", "-x", "x" * 250]
    run = start()
    run.logger.log_metrics(dict.fromkeys(names, 1.0), 1)
    run.finish("FINISHED")
    kept = connect(store_uri(None, run_dir)).get_run(run.id).data.metrics
    assert sorted(kept) == sorted(names)


def test_a_store_that_goes_away_costs_nothing_and_gets_all_later(
    start, run_dir, store_that_goes_away, caplog
):
    run = start()
    store_that_goes_away(run)
    for step in range(200):
        run.logger.log_metrics({"loss": float(step), "lr": 0.1}, step)
    run.finish("KILLED", "asked to stop")
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["value"] for row in rows if row["key"] == "loss"] == [float(i) for i in range(200)]
    metrics, end = caplog.messages
    assert f"400 metric values are not in the tracking store, but kept in {run.folder}" in metrics
    assert "the store is away. Send them later with statelab_mlflow.resend(" in metrics
    assert "is KILLED, unknown to the store: the store is away." in end

    for _ in range(2):
        resend(run.folder)
        assert history(run_dir, run, "loss") == [(i, float(i)) for i in range(200)]
    kept = connect(store_uri(None, run_dir)).get_run(run.id)
    assert kept.info.status == "KILLED"
    assert kept.data.tags["statelab.reason"] == "asked to stop"


def test_an_outage_during_the_run_is_made_up_for(start, run_dir, monkeypatch, caplog):
    monkeypatch.setattr(statelab_mlflow.journal, "_SEND_SECONDS", 0.02)
    run = start()
    with monkeypatch.context() as patch:

        def refuse(*args, **kwargs):
            raise ConnectionError("the store is away")

        patch.setattr(run._client, "log_batch", refuse)
        run.logger.log_metrics({"loss": 1.0}, 1)
        deadline = time.monotonic() + 20
        while not caplog.messages:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    run.logger.log_metrics({"loss": 2.0}, 2)
    run.finish("FINISHED")
    assert history(run_dir, run, "loss") == [(1, 1.0), (2, 2.0)]
    (message,) = caplog.messages
    assert "the tracking store doesn't take metrics: the store is away. They wait in" in message


def test_a_line_cut_off_by_a_crash_is_left_out(start, run_dir):
    run = start()
    run.logger.log_metrics({"loss": 1.0}, 1)
    run.finish("FINISHED")
    with (run.folder / "metrics.jsonl").open("a") as journal:
        journal.write('{"key": "lo')
    resend(run.folder)
    assert history(run_dir, run, "loss") == [(1, 1.0)]


def test_only_a_folder_with_a_journal_is_sent_again(tmp_path):
    with pytest.raises(RunError, match="is not the folder of a tracked run"):
        resend(tmp_path)


def test_lightning_puts_its_files_into_the_folder_of_the_run(start):
    run = start()
    logger = run.logger
    assert logger is run.logger
    assert "/".join((logger.save_dir, logger.name, logger.version)) == str(run.folder)
    assert logger.log_dir == str(run.folder)
    logger.log_hyperparams({"lr": 1.0})
    run.finish("FINISHED")
