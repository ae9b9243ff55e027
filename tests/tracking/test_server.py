from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import ErrorCode

from statelab.errors import RunError
from statelab_mlflow import MLflowTracker
from statelab_mlflow.search import find_experiment
from statelab_mlflow.server import pages_of, show_pages
from statelab_mlflow.store import connect, store_uri


def get(address, path):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{address}{path}", timeout=30) as answer:
        return answer.read().decode()


def serve(run_dir, uri=None, host="127.0.0.1", port=5000, experiment=None):
    options = {"experiment": experiment, "study": None, "browser": False}
    MLflowTracker().serve(uri=uri, run_dir=run_dir, host=host, port=port, **options)


def children_of(pid):
    return [
        int(child)
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_ui_answers_shows_the_run_and_leaves_no_process_behind(
    start, run_dir, tmp_path, number
):
    (tmp_path / "report.txt").write_text("done")
    run = start(name="shown")
    run.log_artifact(tmp_path / "report.txt")
    run.finish("FINISHED")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-u", "-m", "statelab", "ui", f"run_dir={run_dir}", f"port={port}"]
    ui = subprocess.Popen(command, stdout=-1, stderr=-1, text=True)
    address = f"http://127.0.0.1:{port}"
    assert ui.stdout.readline() == f"statelab UI at {address}  (Ctrl-C stops it)\n"
    experiment = connect(store_uri(None, run_dir)).get_run(run.id).info.experiment_id
    page = f"{address}/#/experiments/{experiment}/runs?viewStateShareKey=statelab-"
    assert ui.stdout.readline().startswith(f"toy: {page}")
    assert ui.stdout.readline().startswith(f"best first: {page}")
    assert get(address, "/health") == "OK"
    found = json.loads(get(address, f"/api/2.0/mlflow/runs/get?run_id={run.id}"))
    assert found["run"]["info"]["run_name"] == "shown"
    assert get(address, f"/get-artifact?path=report.txt&run_uuid={run.id}") == "done"

    (server,) = children_of(ui.pid)
    assert os.getpgid(server) == server
    with pytest.raises(RunError, match=f"port {port} of 127.0.0.1 can't be used: it is taken"):
        serve(run_dir, port=port)
    ui.send_signal(number)
    out, err = ui.communicate(timeout=30)
    assert (ui.returncode, out, err.count("\n")) == (128 + number, "", 1)
    with pytest.raises(ProcessLookupError):
        os.killpg(server, 0)


def test_a_taken_port_is_refused(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(RunError, match="it is taken"):
            serve(tmp_path, port=port)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("no.such.host.invalid", 5000)])
def test_an_address_that_is_none_is_refused(tmp_path, host, port):
    with pytest.raises(RunError, match=f"port {port} of {host} can't be used: "):
        serve(tmp_path, host=host, port=port)


def test_of_a_server_that_runs_elsewhere_the_address_is_shown_and_whether_it_answers(
    tmp_path, capsys
):
    with pytest.raises(RunError, match=r"the tracking store http://127\.0\.0\.1:9 can't be used: "):
        serve(tmp_path, uri="http://127.0.0.1:9")
    assert capsys.readouterr().out == "statelab UI at http://127.0.0.1:9\n"


def test_the_pages_are_printed_and_the_first_is_opened_where_there_is_a_screen(capsys, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    monkeypatch.setattr(os, "environ", {})
    pages = {"toy": "http://team/1", "best first": "http://team/2"}
    show_pages("http://team", pages, browser=True)
    out, err = capsys.readouterr()
    assert out == "toy: http://team/1\nbest first: http://team/2\n"
    assert err == "No browser can be opened here: open the address yourself.\n"
    monkeypatch.setattr(os, "environ", {"DISPLAY": ":0"})
    show_pages("http://team", pages, browser=True)
    show_pages("http://team", {}, browser=True)
    show_pages("http://team", pages, browser=False)
    assert opened == ["http://team/1", "http://team"]


def test_the_pages_are_the_experiments_its_best_and_the_curves_of_its_newest_study(start, run_dir):
    client = connect(store_uri(None, run_dir))
    assert pages_of(client, "http://team", None) == {}
    for study in ("old", "new"):
        start(tags={"study": study, "kind": "study"}).finish("FINISHED")
        start(tags={"study": study, "kind": "train"}).finish("FINISHED")
    start(tags={"kind": "train"}).finish("FINISHED")
    pages = pages_of(client, "http://team", None)
    assert list(pages) == ["toy", "best first", "curves of new"]
    assert pages["curves of new"].endswith("&compareRunsMode=CHART")
    assert all("viewStateShareKey=statelab-" in each for each in pages.values())
    assert list(pages_of(client, "http://team", None, "old")) == [
        "toy",
        "best first",
        "curves of old",
    ]
    with pytest.raises(RunError, match=r"study=odd: the tracking store has no run of that study"):
        pages_of(client, "http://team", None, "odd")


@pytest.mark.parametrize(("code", "refused"), [("PERMISSION_DENIED", False), ("INTERNAL", True)])
def test_who_may_only_read_gets_pages_without_columns(start, run_dir, monkeypatch, code, refused):
    start().finish("FINISHED")
    client = connect(store_uri(None, run_dir))

    def refuse(*args):
        raise MlflowException("no", error_code=ErrorCode.Value(code + "_ERROR" * refused))

    monkeypatch.setattr(client, "set_experiment_tag", refuse)
    if refused:
        with pytest.raises(MlflowException, match="no"):
            pages_of(client, "http://team", None)
    else:
        assert "orderByKey=metrics" in pages_of(client, "http://team", None)["best first"]


def test_the_experiment_is_that_of_the_newest_run_or_the_named_one(make_config, start, run_dir):
    client = connect(store_uri(None, run_dir))
    assert find_experiment(client, None) is None
    for name in ("mqar", "text"):
        start(make_config(experiment=name)).finish("FINISHED")
    assert find_experiment(client, None).name == "text"
    assert find_experiment(client, "mqar").name == "mqar"
    with pytest.raises(
        RunError, match=r"experiment=mqr: .*Did you mean 'mqar'\? It has: Default, "
    ):
        find_experiment(client, "mqr")


def test_a_server_that_does_not_start_says_why(run_dir, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RunError, match=r"the MLflow server doesn't start: it says nothing\."):
        serve(run_dir, port=5999)
