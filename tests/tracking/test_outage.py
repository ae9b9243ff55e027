"""A store that is away, without one: what a run does then, and `statelab runs sync` afterwards.

`test_server_outage.py` does the same to a real server.
"""

import json
import os
import signal
import threading
import time

import pytest

import statelab_mlflow.run
import statelab_mlflow.sender
from statelab.__main__ import main
from statelab.errors import RunError
from statelab.runs.status import RunStatus
from statelab.signals import Stopped, unwinding
from statelab_mlflow import MLflowTracker
from statelab_mlflow.outbox import Outbox
from statelab_mlflow.store import connect, recorded_uri, store_uri

CALLS = ("log_batch", "set_tag", "set_terminated", "log_artifact")


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch):
    monkeypatch.setattr(statelab_mlflow.run, "_LAST_SEND_SECONDS", 0.5)
    monkeypatch.setattr(statelab_mlflow.run, "_HASTY_SEND_SECONDS", 0.1)
    monkeypatch.setattr(statelab_mlflow.sender, "_RETRY_SECONDS", 0.1)


@pytest.fixture
def away_store(monkeypatch):
    """Let every call of a client fail, or hang, until the patch is undone."""

    def leave(answer=None):
        def refuse(*args, **kwargs):
            if answer is not None:
                answer.wait(30)
            raise ConnectionError("the store is away")

        patch = pytest.MonkeyPatch()
        undone.append(patch)
        for name in CALLS:
            patch.setattr(f"mlflow.MlflowClient.{name}", refuse)
        return patch

    undone = []
    yield leave
    for patch in undone:
        patch.undo()


def finish(run, status, reason=None):
    """End a run, and wait until its thread has given up too."""
    run.finish(status, reason)
    run._sender.join()


def history(run_dir, run, key):
    rows = connect(store_uri(None, run_dir)).get_metric_history(run.id, key)
    return [(row.step, row.value) for row in rows]


def sync(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["runs", "sync", *arguments])
    return ended.value.code


def test_all_of_a_run_is_kept_and_sent_later_and_twice_is_safe(
    start, run_dir, away_store, caplog, capsys
):
    run = start()
    patch = away_store()
    (run.folder / "figure.png").write_text("a picture")
    for step in range(200):
        run.logger.log_metrics({"loss": float(step), "lr": 0.1}, step)
    run.log_artifact(run.folder / "figure.png", "figures")
    finish(run, "KILLED", "requeued: SIGUSR1")
    (message,) = caplog.messages
    assert message == (
        f"the tracking store lacks 400 metric values, 1 file, the run's end; all is kept in "
        f"{run.folder}. the store is away. Send it later with: "
        f"statelab runs sync run={run.id} run_dir={run_dir}"
    )
    caplog.clear()
    assert sync(f"run_dir={run_dir}") == 2
    patch.undo()
    client = connect(store_uri(None, run_dir))
    assert client.get_run(run.id).info.status == "RUNNING"

    assert sync(f"run={run.id[:8]}", f"run_dir={run_dir}") == 0
    sent = f"{run.id}: sent 400 metric values, 1 file, the run's end.\n"
    assert capsys.readouterr().out == sent
    for words in ((), ("--json",)):
        assert sync(f"run_dir={run_dir}", *words) == 0
    nothing, as_json = capsys.readouterr().out.splitlines()
    assert nothing == "Nothing is unsent."
    assert json.loads(as_json)["sent"] == {run.id: {"metrics": 0, "files": 0, "end": False}}
    (run.folder / "sent.json").unlink()  # so that all goes a second time
    assert sync(f"run_dir={run_dir}") == 0

    assert history(run_dir, run, "loss") == [(i, float(i)) for i in range(200)]
    assert [each.path for each in client.list_artifacts(run.id, "figures")] == [
        "figures/figure.png"
    ]
    kept = client.get_run(run.id)
    assert (kept.info.status, kept.data.tags["requeued"]) == ("KILLED", "true")
    assert kept.data.tags["statelab.reason"] == "requeued: SIGUSR1"
    assert kept.info.end_time == RunStatus.read(run.folder).written // 1_000_000


def test_an_outage_during_the_run_is_made_up_for(start, run_dir, monkeypatch, away_store, caplog):
    monkeypatch.setattr(statelab_mlflow.sender, "_SEND_SECONDS", 0.02)
    run = start()
    patch = away_store()
    run.logger.log_metrics({"loss": 1.0}, 1)
    deadline = time.monotonic() + 20
    while not caplog.messages:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    patch.undo()
    run.logger.log_metrics({"loss": 2.0}, 2)
    run.finish("FINISHED")
    assert history(run_dir, run, "loss") == [(1, 1.0), (2, 2.0)]
    (message,) = caplog.messages
    assert message == (
        "the tracking store doesn't take what the run sends: the store is away. It waits in "
        f"{run.folder}."
    )


def test_a_store_that_never_answers_is_left_at_the_deadline(start, away_store, caplog):
    run = start()
    answer = threading.Event()
    patch = away_store(answer)
    run.logger.log_metrics({"loss": 1.0}, 1)
    run.finish("FINISHED")  # it would hang for half a minute
    answer.set()
    run._sender.join()
    patch.undo()
    assert "1 metric value, the run's end; all is kept in" in caplog.messages[0]
    assert "The store doesn't answer. Send it later" in caplog.messages[0]
    MLflowTracker().sync(run.folder, uri=None)


def test_a_slow_store_is_asked_for_less_until_it_answers_in_time(start, run_dir, monkeypatch):
    from mlflow import MlflowClient

    log_batch, sizes = MlflowClient.log_batch, []

    def slow(self, run_id, metrics=(), **rest):
        sizes.append(len(metrics))
        if len(metrics) > 100:
            raise TimeoutError("timed out")
        log_batch(self, run_id, metrics=metrics, **rest)

    run = start()
    monkeypatch.setattr(MlflowClient, "log_batch", slow)
    monkeypatch.setattr(statelab_mlflow.run, "_LAST_SEND_SECONDS", 30)
    for step in range(200):
        run.logger.log_metrics({"loss": 1.0}, step)
    run.finish("FINISHED")
    assert sizes[:3] == [200, 200, 62]
    assert len(history(run_dir, run, "loss")) == 200


def test_a_second_ctrl_c_does_not_wait_and_the_end_is_known(start, run_dir, monkeypatch, caplog):
    run = start()
    send = Outbox.send

    def interrupted(self, client):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        send(self, client)

    monkeypatch.setattr(Outbox, "send", interrupted)
    monkeypatch.setattr(statelab_mlflow.run, "_HASTY_SEND_SECONDS", 30)
    with pytest.raises(Stopped), unwinding():
        run.finish("KILLED", "SIGINT")
    assert not caplog.messages
    assert connect(store_uri(None, run_dir)).get_run(run.id).info.status == "KILLED"


def test_a_file_that_the_store_refuses_holds_up_nothing_else(start, run_dir, monkeypatch, caplog):
    from mlflow import MlflowClient

    log_artifact = MlflowClient.log_artifact

    def refuse_one(self, run_id, file, place):
        if file.endswith("bad.txt"):
            raise PermissionError(13, "Permission denied")
        log_artifact(self, run_id, file, place)

    monkeypatch.setattr(MlflowClient, "log_artifact", refuse_one)
    run = start()
    for name in ("bad.txt", "good.txt"):
        (run.folder / name).touch()
        run.log_artifact(run.folder / name)
    run.finish("FINISHED")
    client = connect(store_uri(None, run_dir))
    assert client.get_run(run.id).info.status == "FINISHED"
    assert [each.path for each in client.list_artifacts(run.id)] == ["good.txt"]
    assert "the tracking store lacks 1 file; all is kept in" in caplog.messages[0]


def test_a_lost_run_is_marked_in_the_store_with_all_that_it_wrote(start, run_dir, monkeypatch):
    monkeypatch.setattr("statelab.runs.status._LOST_SECONDS", -1)
    monkeypatch.setattr("statelab_mlflow.run.Sender.start", lambda self: None)
    run = start()
    run.logger.log_metrics({"loss": 1.0}, 1)
    status = run.folder / "status"
    status.write_text(status.read_text().replace(f" {RunStatus.read(run.folder).birth}", " 1"))
    with pytest.raises(SystemExit):
        main(["runs", f"run_dir={run_dir}", "--json"])
    kept = connect(store_uri(None, run_dir)).get_run(run.id)
    assert (kept.info.status, kept.data.tags["lost"]) == ("KILLED", "true")
    assert history(run_dir, run, "loss") == [(1, 1.0)]
    run._journal.close()


def test_a_run_that_runs_sends_by_itself(start, run_dir, capsys):
    run = start()
    assert sync(f"run_dir={run_dir}", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"sent": {}}
    run.finish("FINISHED")


def test_a_run_that_the_store_does_not_know_is_named_and_the_others_are_sent(
    start, run_dir, away_store, capsys, caplog
):
    gone, stays = start(), start()
    patch = away_store()
    for run in (gone, stays):
        finish(run, "FINISHED")
    patch.undo()
    gone.folder.rename(gone.folder.with_name("0" * 32))
    caplog.clear()
    assert sync(f"run_dir={run_dir}") == 1
    (message,) = caplog.messages
    assert message.startswith("the tracking store sqlite:///")
    assert f"mlflow.db has no run {'0' * 32}. Name the one that has with " in message
    assert capsys.readouterr().out == f"{stays.id}: sent the run's end.\n"
    assert connect(store_uri(None, run_dir)).get_run(stays.id).info.status == "FINISHED"


def test_only_a_folder_with_a_journal_is_sent(tmp_path):
    with pytest.raises(RunError, match="is not the folder of a tracked run"):
        MLflowTracker().sync(tmp_path, uri=None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run=0123"], "run=0123 is none of the tracked runs of "),
        (["status=failed"], "runs sync takes run, run_dir and tracking.uri, got status."),
        (["tags.team=blue"], "runs sync takes run, run_dir and tracking.uri, got team."),
        (["--yes"], "--yes asks for nothing here"),
    ],
)
def test_a_wrong_command_is_refused(run_dir, capsys, words, message):
    assert sync(f"run_dir={run_dir}", *words) == 2
    assert message in capsys.readouterr().err


def test_the_store_that_a_folder_names_is_used_where_it_is_there(run_dir, tmp_path):
    default = store_uri(None, run_dir)
    assert recorded_uri("http://team:5000", run_dir) == "http://team:5000"
    assert recorded_uri(f"sqlite:///{tmp_path}/moved.db", run_dir) == default
    assert recorded_uri("postgresql://me:***@team/runs", run_dir) == default
    assert recorded_uri("", run_dir) == default
