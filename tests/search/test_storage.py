"""Where a study is kept, its lock, its sampler and its pruner."""

import sqlite3
import threading

import optuna
import pytest
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from statelab.errors import ConfigError, RunError
from statelab.search import patient
from statelab.search.storage import (
    make_pruner,
    make_sampler,
    open_storage,
    public_url,
    storage_url,
    turn_of,
)


def test_a_url_is_of_sqlite_or_postgresql(tmp_path):
    assert storage_url(None, str(tmp_path)) == f"sqlite:///{tmp_path}/optuna.db"
    assert storage_url("sqlite:///a.db", "runs") == "sqlite:///a.db"
    for given in ("postgresql://lab@db/optuna", "postgres://lab@db/optuna"):
        assert storage_url(given, "runs") == "postgresql+psycopg://lab@db/optuna"
    assert storage_url("postgresql+psycopg2://db/o", "runs") == "postgresql+psycopg2://db/o"


@pytest.mark.parametrize(
    "given",
    ["optuna.db", "mysql://me:secret@db/x", "sqlite://", "sqlite:///", "sqlite:///:memory:"],
)
def test_any_other_url_is_refused_without_its_password(given):
    with pytest.raises(
        ConfigError, match=r"^search\.storage=.* must be sqlite:///FILE, or po"
    ) as e:
        storage_url(given, "runs")
    assert "secret" not in str(e.value)
    assert public_url("postgresql://me:secret@db:5432/x") == "postgresql://me@db:5432/x"


def test_a_storage_that_can_t_be_used_is_refused(tmp_path):
    (tmp_path / "text.db").write_text("no database at all, but a text of some length" * 30)
    with pytest.raises(
        RunError, match=r"search\.storage=sqlite:.* can't be used: .*not a database"
    ):
        open_storage(f"sqlite:///{tmp_path}/text.db", heartbeat=1)
    with pytest.raises(RunError, match=r"search\.storage=postgresql\+psycopg://lab@127.* can't be"):
        open_storage("postgresql+psycopg://lab:secret@127.0.0.1:9/x", heartbeat=1)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"^search\.storage=.* can't be written: .*Choose another"):
        turn_of(f"sqlite:///{tmp_path}/file/optuna.db", "mine")


def test_a_storage_of_another_optuna_is_refused(empty_study_database, tmp_path):
    file = tmp_path / "optuna.db"
    file.write_bytes(empty_study_database.read_bytes())
    with sqlite3.connect(file) as database:
        database.execute("UPDATE alembic_version SET version_num = 'v99.0.0'")
        database.execute("UPDATE version_info SET library_version = '99.0.0', schema_version = 99")
    with pytest.raises(RunError, match=r"search\.storage=.* can't be used: .*[Oo]ptuna"):
        open_storage(f"sqlite:///{file}", heartbeat=1)


def test_samplers_are_known_by_short_names_and_by_those_of_optuna():
    tpe = make_sampler("tpe", {"n_startup_trials": "3"}, seed=1)
    assert isinstance(tpe, optuna.samplers.TPESampler)
    assert (tpe._multivariate, tpe._group, tpe._n_startup_trials) == (True, True, 3)
    assert isinstance(make_sampler("random", {}, 1), optuna.samplers.RandomSampler)
    assert isinstance(make_sampler("CmaEsSampler", {}, 1), optuna.samplers.CmaEsSampler)
    assert isinstance(make_sampler("BruteForceSampler", {}, 1), optuna.samplers.BruteForceSampler)


def test_pruners_are_known_by_short_names_and_by_those_of_optuna():
    median = make_pruner("median", {"n_startup_trials": "2"})
    assert isinstance(median, optuna.pruners.MedianPruner)
    assert isinstance(make_pruner("hyperband", {}), optuna.pruners.HyperbandPruner)
    assert isinstance(make_pruner("none", {}), optuna.pruners.NopPruner)
    threshold = make_pruner("ThresholdPruner", {"upper": "10.5"})
    assert isinstance(threshold, optuna.pruners.ThresholdPruner)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda: make_sampler("tpee", {}, 0),
            r"unknown search\.sampler 'tpee'\. Did you mean 'tp",
        ),
        (lambda: make_sampler("MedianPruner", {}, 0), r"unknown search\.sampler 'MedianPruner'\."),
        (lambda: make_pruner("medien", {}), r"unknown search\.pruner 'medien'\. Did you mean 'med"),
        (
            lambda: make_sampler("tpe", {"startup": "3"}, 0),
            r"search\.sampler=tpe doesn't take .*'startup': '3'.*It knows: .*n_startup_trials",
        ),
        (
            lambda: make_pruner("median", {"n_startup_trials": "-1"}),
            r"search\.pruner=median doesn't take search\.pruner_options=.*-1.*It knows: n_startup",
        ),
    ],
)
def test_what_optuna_doesn_t_have_is_refused(make, match):
    with pytest.raises(ConfigError, match=match):
        make()


@pytest.fixture
def running(empty_study_database, tmp_path):
    """A patient storage, and the id of a trial that runs in it."""
    file = tmp_path / "optuna.db"
    file.write_bytes(empty_study_database.read_bytes())
    storage = open_storage(f"sqlite:///{file}", heartbeat=1)
    study = optuna.create_study(storage=storage)
    with pytest.warns(UserWarning, match=r"Study\.optimize"):
        return storage, study.ask()._trial_id


@pytest.fixture
def outage(monkeypatch):
    """The database is away for the next calls of every method."""

    def outage(calls):
        left = [calls]
        monkeypatch.setattr(patient, "_PAUSE_SECONDS", 0)

        def guard(name):
            real = getattr(RDBStorage, name)

            def call(*arguments):
                if left[0]:
                    left[0] -= 1
                    raise StorageInternalError("the database is away")
                return real(*arguments)

            monkeypatch.setattr(RDBStorage, name, call)

        for name in (
            "record_heartbeat",
            "set_trial_state_values",
            "set_trial_user_attr",
            "set_trial_intermediate_value",
            "get_trial",
        ):
            guard(name)

    return outage


@pytest.mark.parametrize(
    "ask",
    [
        lambda storage, trial: storage.set_trial_user_attr(trial, "key", 1),
        lambda storage, trial: storage.set_trial_intermediate_value(trial, 1, 0.5),
        lambda storage, trial: storage.get_trial(trial),
        lambda storage, trial: storage.set_trial_state_values(trial, TrialState.FAIL),
    ],
)
def test_a_running_trial_waits_for_its_database(running, outage, monkeypatch, ask):
    outage(3)
    ask(*running)
    outage(1)
    monkeypatch.setattr(patient, "_PATIENCE_SECONDS", -1)
    with pytest.raises(StorageInternalError, match="away"):
        ask(*running)


def test_a_heartbeat_may_be_missed(running, outage):
    outage(1)
    storage, trial = running
    storage.record_heartbeat(trial)
    storage.record_heartbeat(trial)


def test_one_has_the_turn_until_it_is_given_or_its_holder_is_gone(tmp_path):
    first, second = (turn_of(f"sqlite:///{tmp_path}/optuna.db", "mine") for _ in range(2))
    other = turn_of(f"sqlite:///{tmp_path}/optuna.db", "other")
    order = []

    def take():
        with second.taken():
            order.append("second")

    first.take()
    with other.taken():
        order.append("other")
    thread = threading.Thread(target=take)
    thread.start()
    order.append("first")
    first.give()
    thread.join()
    first.give()
    assert order == ["other", "first", "second"]
