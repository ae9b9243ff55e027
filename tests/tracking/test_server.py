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

from statelab.errors import RunError
from statelab_mlflow import MLflowTracker


def get(address, path):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{address}{path}", timeout=30) as answer:
        return answer.read().decode()


def children_of(pid):
    return [
        int(child)
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]


@pytest.mark.slow
def test_the_ui_answers_shows_the_run_and_leaves_no_process_behind(start, run_dir, tmp_path):
    (tmp_path / "report.txt").write_text("done")
    run = start(name="shown")
    run.log_artifact(tmp_path / "report.txt")
    run.finish("FINISHED")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = (
        "from pathlib import Path; from statelab_mlflow import MLflowTracker;"
        f"MLflowTracker().serve(uri=None, run_dir=Path({str(run_dir)!r}),"
        f" host='127.0.0.1', port={port})"
    )
    ui = subprocess.Popen([sys.executable, "-u", "-c", code], stdout=-1, stderr=-1, text=True)
    address = f"http://127.0.0.1:{port}"
    assert ui.stdout.readline() == f"statelab UI at {address}  (Ctrl-C stops it)\n"
    assert get(address, "/health") == "OK"
    found = json.loads(get(address, f"/api/2.0/mlflow/runs/get?run_id={run.id}"))
    assert found["run"]["info"]["run_name"] == "shown"
    assert get(address, f"/get-artifact?path=report.txt&run_uuid={run.id}") == "done"

    (server,) = children_of(ui.pid)
    assert os.getpgid(server) == server
    with pytest.raises(RunError, match=f"port {port} of 127.0.0.1 can't be used: it is taken"):
        MLflowTracker().serve(uri=None, run_dir=run_dir, host="127.0.0.1", port=port)
    ui.send_signal(signal.SIGTERM)
    out, err = ui.communicate(timeout=30)
    assert (ui.returncode, out, err.count("\n")) == (0, "", 1)
    with pytest.raises(ProcessLookupError):
        os.killpg(server, 0)


def test_a_taken_port_is_refused(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(RunError, match="it is taken"):
            MLflowTracker().serve(uri=None, run_dir=tmp_path, host="127.0.0.1", port=port)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("no.such.host.invalid", 5000)])
def test_an_address_that_is_none_is_refused(tmp_path, host, port):
    with pytest.raises(RunError, match=f"port {port} of {host} can't be used: "):
        MLflowTracker().serve(uri=None, run_dir=tmp_path, host=host, port=port)


def test_of_a_server_that_runs_elsewhere_the_address_is_shown(tmp_path, capsys):
    MLflowTracker().serve(uri="http://team:5000", run_dir=tmp_path, host="127.0.0.1", port=5000)
    assert capsys.readouterr().out == "statelab UI at http://team:5000\n"


def test_a_server_that_does_not_start_says_why(run_dir, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RunError, match=r"the MLflow server doesn't start: it says nothing\."):
        MLflowTracker().serve(uri=None, run_dir=run_dir, host="127.0.0.1", port=5999)
