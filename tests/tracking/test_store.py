from __future__ import annotations

import socket
import sqlite3

import pytest

from statelab.errors import RunError
from statelab_mlflow.store import connect, is_absent, store_uri


def test_the_store_is_the_given_one_then_the_environment_s_then_a_database_in_run_dir(
    tmp_path, monkeypatch
):
    assert store_uri(None, tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://team:5000")
    assert store_uri(None, tmp_path) == "http://team:5000"
    assert store_uri("http://mine:5000", tmp_path) == "http://mine:5000"


def test_a_server_that_is_away_at_the_start_is_refused_without_its_password(make_config, start):
    away = "http://me:secret@127.0.0.1:9"
    with pytest.raises(
        RunError, match=r"store http://me:\*\*\*@127.0.0.1:9 can't be used: .*"
    ) as e:
        start(make_config(uri=away))
    assert "Connection refused. Choose another with tracking.uri=URI" in str(e.value)
    assert "secret" not in str(e.value)
    assert "\n" not in str(e.value)


def test_a_server_that_takes_calls_and_never_answers_is_refused(make_config, start, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as mute:
        uri = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(RunError, match=f"{uri} can't be used: .*timed out"):
            start(make_config(uri=uri))


def test_offline_a_run_is_recorded_in_run_dir_and_says_so(make_config, start, run_dir, caplog):
    away = "http://me:secret@127.0.0.1:9"
    run = start(make_config(uri=away, offline=True))
    run.finish("FINISHED")
    kept = connect(store_uri(None, run_dir)).get_run(run.id)
    assert (kept.info.status, kept.data.tags["offline"]) == (
        "FINISHED",
        "http://me:***@127.0.0.1:9",
    )
    (message,) = caplog.messages
    assert message.startswith("the tracking store http://me:***@127.0.0.1:9 can't be used: ")
    assert message.endswith(
        f"The run is recorded in sqlite:///{run_dir}/mlflow.db and stays there."
    )


def test_offline_a_store_that_answers_is_used(make_config, start, run_dir, tmp_path, caplog):
    uri = f"sqlite:///{tmp_path}/team.db"
    run = start(make_config(uri=uri, offline=True))
    run.finish("FINISHED")
    assert "offline" not in connect(uri).get_run(run.id).data.tags
    assert not caplog.messages


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("sqlite:///{tmp}/text.db", "file is not a database"),
        ("sqlite:///{tmp}/text.db/below.db", "File exists"),
        ("{tmp}/mlruns", "maintenance mode"),
        ("nope://host", "unsupported URI 'nope://host'"),
    ],
)
def test_a_store_that_is_none_is_refused(make_config, start, tmp_path, uri, reason):
    (tmp_path / "text.db").write_text("not a database, but long enough to be read as one" * 40)
    with pytest.raises(RunError, match=f"can't be used: .*{reason}.*Choose another with"):
        start(make_config(uri=uri.format(tmp=tmp_path)))


def test_a_store_whose_making_was_broken_off_is_made_anew(make_config, start, tmp_path):
    import mlflow.store.db.utils as making

    def stop(engine: object) -> None:
        raise KeyboardInterrupt

    uri = f"sqlite:///{tmp_path}/new.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(making, "_upgrade_db", stop)
        with pytest.raises(KeyboardInterrupt):
            connect(uri)
    assert is_absent(uri)
    start(make_config(uri=uri)).finish("FINISHED")
    assert {each.name for each in tmp_path.glob("new.db*")} == {"new.db", "new.db.lock"}


@pytest.mark.parametrize(
    ("revision", "message"),
    [
        ("ffffffffffff", "newer MLflow than the installed .*Upgrade with `pip install -U mlflow`"),
        ("0584bdc529eb", "out-of-date .*run 'mlflow db upgrade"),
    ],
)
def test_a_database_of_another_mlflow_is_refused(run_dir, revision, message):
    with sqlite3.connect(run_dir / "mlflow.db") as database:
        database.execute("update alembic_version set version_num = ?", [revision])
    database.close()
    with pytest.raises(RunError, match=message):
        connect(store_uri(None, run_dir))
