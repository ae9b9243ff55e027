"""A real server that hangs, dies and comes back while runs go on: nothing is lost or held up."""

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

import statelab_mlflow.sender
from statelab.config import TrackingConfig
from statelab_mlflow.store import connect

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory, empty_database, new_server):
    folder = tmp_path_factory.mktemp("server")
    (folder / "server.db").write_bytes(empty_database.read_bytes())
    server = new_server(folder, f"sqlite:///{folder}/server.db")
    server.start()
    yield server
    server.die()


def values(server, run_id, name):
    found = connect(server.uri).get_metric_history(run_id, name)
    return sorted((each.step, each.value) for each in found)


def lines(run_dir):
    return sum(len(file.read_bytes().splitlines()) for file in run_dir.glob("*/*/metrics.jsonl"))


def test_a_server_that_hangs_and_dies_and_comes_back_has_all_of_a_run(
    server, start, make_config, toy, tmp_path, monkeypatch
):
    monkeypatch.setattr(statelab_mlflow.sender, "_SEND_SECONDS", 0.2)
    run = start(replace(make_config(), tracking=TrackingConfig(uri=server.uri)))
    logger, steps = run.logger, 0

    def log_until(condition):
        nonlocal steps
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline
            steps += 1
            logger.log_metrics({"loss": 1 / steps, "lr": 0.1}, steps)
            time.sleep(0.05)

    # The server takes calls and never answers: the first attempt is given up, and another one.
    log_until(lambda: steps > 20)
    server.send(signal.SIGSTOP)
    log_until(lambda: run._sender.refusal is not None)
    server.send(signal.SIGCONT)
    log_until(lambda: run._sender.refusal is None)

    # It is gone, while this run goes on and another one ends.
    run_dir = tmp_path / "trained"
    command = toy(
        f"run_dir={run_dir}",
        "trainer.max_steps=200",
        "trainer.val_every=100",
        f"tracking.uri={server.uri}",
    )
    training = subprocess.Popen(
        [sys.executable, "-m", "statelab", "train", *command, "--json"],
        stdout=-1,
        stderr=-1,
        text=True,
    )
    log_until(lambda: lines(run_dir) > 100)
    server.die()
    log_until(lambda: training.poll() is not None)
    out, err = training.communicate()
    result = json.loads(out)
    assert (training.returncode, result["status"]) == (0, "FINISHED"), err
    (unsent,) = re.findall(r"the tracking store lacks (\S+) metric values, .*the run's end;", err)
    (sync,) = re.findall(r"Send it later with: statelab (.+)", err)

    server.start()
    log_until(lambda: run._sender.refusal is None)
    run.finish("FINISHED")
    expected = [(step, 1 / step) for step in range(1, steps + 1)]
    assert values(server, run.id, "loss") == expected

    trained = result["run_id"]
    client = connect(server.uri)
    assert client.get_run(trained).info.status == "RUNNING"
    for sent in (f"sent {unsent} metric values, ", "Nothing is unsent."):
        done = subprocess.run(
            [sys.executable, "-m", "statelab", *sync.split()],
            capture_output=True,
            text=True,
            check=True,
        )
        assert sent in done.stdout
    assert client.get_run(trained).info.status == "FINISHED"
    assert [step for step, _ in values(server, trained, "train/loss")] == [*range(1, 201)]
    assert [step for step, _ in values(server, trained, "val/loss")] == [100, 200]
    files = {each.path for each in client.list_artifacts(trained)}
    assert files >= {"config.yaml", "environment.json"}
