"""Real commands with real workers: killed, interrupted, and without their database for a while."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import optuna
import pytest
import yaml
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from statelab_mlflow.store import connect

#: A trial takes seconds, so that it can be met in the middle.
LONG = {"trainer.max_steps": 120, "trainer.val_every": 20, "data.num_train": 400}
SPACE = {
    "parameters": {"optim.lr": {"low": 1e-3, "high": 1e-1, "log": True}},
    "search": {"sampler": "random", "pruner": "none", "heartbeat": 1},
}


@pytest.fixture
def start(toy, away):
    """Start a search on the toy model; each is gone at the end of the test."""
    values = {key: yaml.safe_load(each) for key, each in (a.split("=", 1) for a in toy())}
    (away / "toy.yaml").write_text(yaml.safe_dump(values | LONG))
    (away / "space.yaml").write_text(yaml.safe_dump(SPACE))
    started = []

    def start(*arguments):
        given = ("experiment=toy.yaml", "search=space.yaml", *arguments)
        with (away / f"command_{len(started)}.log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "statelab", "search", *given, "--json"],
                    stdout=subprocess.PIPE,
                    stderr=log,
                )
            )
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


def outcome(process, seconds=300):
    out, _ = process.communicate(timeout=seconds)
    return json.loads(out.splitlines()[-1])


def until(condition, what, seconds=180):
    """The first thing that is true."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if found := condition():
                return found
        except (KeyError, SQLAlchemyError, StorageInternalError):
            # There is no study yet, or half a table.
            pass
        assert time.monotonic() < deadline, f"in {seconds} s there was no {what}"
        time.sleep(0.2)


def trials(url, *states):
    # No connection stays open, least of all to a server that is stopped.
    storage = optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})
    study = optuna.load_study(study_name="toy-space", storage=storage)
    return study.get_trials(states=states or None)


def training(url):
    """The trials that are at work on their runs."""
    return [each for each in trials(url, TrialState.RUNNING) if "run_id" in each.user_attrs]


def process_of(trial):
    return int(trial.user_attrs["worker"].rpartition(":")[2])


def is_alive(process):
    return Path(f"/proc/{process}").exists()


def children_of(process):
    file = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(each) for each in file.read_text().split()]


def runs_now(trial):
    return is_alive(process_of(trial))


def runs(uri):
    """Status of the study's run, and how many of its trials' runs have which."""
    client = connect(uri)
    found = client.search_runs([each.experiment_id for each in client.search_experiments()])
    (parent,) = [each for each in found if "trial" not in each.data.tags]
    return parent.info.status, Counter(each.info.status for each in found if each is not parent)


@pytest.mark.slow
# MLflow, which is asked at the end, keeps its connections for good.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_whatever_dies_the_search_ends_with_all_trials_and_nothing_running(postgres, start):
    study, store = postgres.make("optuna"), postgres.make("mlflow")
    given = ("n_trials=6", f"search.storage={study}", f"tracking.uri={store}")

    first = start(*given, "workers=4")
    met = until(lambda: training(study), "trial at work")[0]
    workers = children_of(first)
    os.kill(process_of(met), signal.SIGKILL)
    first.kill()
    until(lambda: not any(map(is_alive, workers)), "end of the workers")
    assert len(trials(study, TrialState.COMPLETE)) < 6

    second = start(*given, "workers=2")
    # Not one that the first's workers have left behind.
    until(lambda: any(map(runs_now, training(study))), "trial at work")
    postgres.stop()
    time.sleep(10)
    postgres.start()
    assert outcome(second)["counts"] == {"complete": 6}
    assert second.returncode == 0

    ended = Counter(each.state.name for each in trials(study))
    assert ended["COMPLETE"] == 6
    assert ended["FAIL"] >= 1
    assert set(ended) == {"COMPLETE", "FAIL"}
    parent, children = runs(store)
    assert parent == "FINISHED"
    assert children["FINISHED"] >= 6
    assert children["KILLED"] >= 1
    assert children["RUNNING"] == 0


@pytest.mark.slow
def test_ctrl_c_ends_the_workers_puts_their_trials_back_and_a_rerun_goes_on(start, away):
    study, store = f"sqlite:///{away}/runs/optuna.db", f"sqlite:///{away}/runs/mlflow.db"
    first = start("n_trials=2", "workers=1")
    until((away / "runs/optuna.db").exists, "database")
    met = until(lambda: training(study), "trial at work")[0]
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
    assert not runs_now(met)
    assert trials(study, TrialState.RUNNING) == []
    (stopped,) = [each for each in trials(study) if each.number == met.number]
    assert stopped.user_attrs["interrupted"] == "SIGTERM"
    (again,) = [
        each
        for each in trials(study, TrialState.WAITING)
        if each.system_attrs.get("fixed_params") == met.params
    ]
    assert again.number != met.number
    parent, children = runs(store)
    assert (parent, children["RUNNING"], children["KILLED"]) == ("KILLED", 0, 1)

    second = start("n_trials=2", "workers=1")
    assert outcome(second)["counts"] == {"complete": 2}
    assert runs(store) == ("FINISHED", Counter(FINISHED=2, KILLED=1))


@pytest.mark.slow
def test_eight_processes_record_their_runs_in_one_file(away):
    (away / "record.py").write_text(
        textwrap.dedent("""
        import os, sys
        from statelab.config import Config, DataConfig, ModelConfig, RuleConfig
        from statelab_mlflow import MLflowTracker

        rule = RuleConfig(name="any", options=None)
        model, data = ModelConfig(write=rule, read=rule), DataConfig(name="any")
        config = Config(experiment="toy", run_dir="runs", model=model, data=data)

        def record():
            for number in range(2):
                run = MLflowTracker().start(
                    config, name="a run", params={"n": number}, tags={}, description=""
                )
                for step in range(50):
                    run.logger.log_metrics({"loss": 1.0, "lr": 0.1}, step)
                run.finish("FINISHED")

        import mlflow
        children = []
        for _ in range(8):
            child = os.fork()
            if not child:
                record()
                os._exit(0)
            children.append(child)
        sys.exit(any(os.waitpid(child, 0)[1] for child in children))
        """)
    )
    done = subprocess.run(
        [sys.executable, "record.py"], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, "locked" in done.stderr) == (0, False), done.stderr
    client = connect(f"sqlite:///{away}/runs/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'toy'")
    found = client.search_runs([experiment.experiment_id])
    assert Counter(each.info.status for each in found) == {"FINISHED": 16}
    assert all(len(client.get_metric_history(r.info.run_id, "loss")) == 50 for r in found)


@pytest.mark.slow
def test_the_dashboard_opens_a_study(here, arguments, trained, away):
    import urllib.request

    here(arguments("n_trials=2"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(sys.executable).with_name("optuna-dashboard")
    url = f"sqlite:///{away}/runs/optuna.db"
    server = subprocess.Popen(
        [program, url, "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def answer(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as page:
                return page.status, page.read().decode()
        except OSError:
            assert server.poll() is None
            return None

    try:
        status, _ = until(lambda: answer("/dashboard/"), "answer", 60)
        assert status == 200
        assert "toy-space" in answer("/api/studies")[1]
    finally:
        server.kill()
        server.wait()
