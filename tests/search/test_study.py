"""A study from its plan to its outcome, worked on in this process; nothing is trained."""

import math
import signal

import optuna
import pytest
from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import OperationalError

from statelab.errors import ConfigError, NonFiniteError, RunError, UnknownNameError
from statelab.search import launch, objective, patient, worker
from statelab.search.plan import plan_search
from statelab.search.study import open_study
from statelab.search.tickets import REASON, SKIPPED, finished
from statelab.signals import Pruned, Stopped


@pytest.fixture
def study():
    """The trials of a study."""

    def study(arguments):
        return open_study(plan_search(arguments))

    return study


@pytest.fixture
def fails(monkeypatch, trained):
    """Have some trainings end otherwise: by number, from 1 on."""
    works = objective.train

    def fails(**ends):
        def train(config, *, progress, trial):
            if error := ends.get(f"_{len(trained) + 1}", ends.get("all")):
                trained.append(config)
                raise error
            return works(config, progress=progress, trial=trial)

        monkeypatch.setattr(objective, "train", train)

    return fails


def test_a_search_ends_with_as_many_trials_as_were_asked_for(here, arguments, trained, study):
    outcome = here(arguments("n_trials=4"))
    assert (outcome.counts, outcome.exit_status) == ({"complete": 4}, 0)
    trials = study(arguments("n_trials=4")).trials
    best = min(trials, key=lambda each: each.value)
    assert outcome.best == [
        {
            "trial": best.number,
            "values": {"val/loss": best.value},
            "run_id": f"{best.number + 1:032x}",
            "sets": best.params,
        }
    ]
    assert [each.optim.lr for each in trained] == [each.params["optim.lr"] for each in trials]

    assert here(arguments("n_trials=4")).counts == {"complete": 4}
    assert here(arguments("n_trials=2")).exit_status == 0
    assert len(trained) == 4
    assert here(arguments("n_trials=6")).counts == {"complete": 6}
    assert len(trained) == 6


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_no_two_trials_draw_the_same_however_often_a_study_goes_on(
    here, arguments, trained, sampler
):
    space = {"search": {"pruner": "none", "sampler": sampler}}
    for total in (2, 3, 5):
        here(arguments(f"n_trials={total}", **space))
    assert len({each.optim.lr for each in trained}) == 5


def test_one_seed_gives_one_sequence(here, arguments, trained, away):
    for seed, name in ((1, "a"), (1, "b"), (2, "c")):
        here(arguments("n_trials=2", f"search.seed={seed}", f"search.study={name}"))
    rates = [each.optim.lr for each in trained]
    assert rates[:2] == rates[2:4]
    assert set(rates[4:]).isdisjoint(rates[:4])


def test_points_come_first_and_values_are_set_in_all(here, arguments, trained):
    points = [{"optim.lr": 0.02, "model.mlp_hidden": 24}, {"optim.lr": 0.03}]
    outcome = here(arguments("n_trials=3", enqueue=points, values={"optim.warmup_steps": 1}))
    assert [each.optim.lr for each in trained][:2] == [0.02, 0.03]
    assert trained[0].model.mlp_hidden == 24
    assert {each.optim.warmup_steps for each in trained} == {1}
    assert set(outcome.best[0]["sets"]) == {"optim.lr", "model.mlp_hidden"}


def test_sizes_that_a_constraint_forbids_are_not_trained_and_don_t_count(
    here, arguments, trained, study
):
    points = [{"model.mlp_hidden": 24}, {"model.mlp_hidden": 16}]
    given = arguments("n_trials=3", constraints=["model.mlp_hidden <= 16"], enqueue=points)
    assert here(given).counts == {"complete": 3}
    assert {each.model.mlp_hidden for each in trained} <= {8, 16}
    skipped = [each for each in study(given).trials if SKIPPED in each.user_attrs]
    assert {each.params["model.mlp_hidden"] for each in skipped} == {24}
    assert skipped[0].user_attrs[SKIPPED] == "model.mlp_hidden <= 16"


def test_conditions_see_what_the_space_sets(here, arguments, trained, study):
    parameters = {"read.gate": {"choices": ["fixed", "per_head"], "when": {"read": "ccq"}}}
    given = arguments("n_trials=2", parameters=parameters, values={"read": "ccq"})
    here(given)
    assert all(each.model.read.options.gate in ("fixed", "per_head") for each in trained)
    assert [[*each.params] for each in study(given).trials] == [["model.read.gate"]] * 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("no luck\nat all"), "RuntimeError: no luck"),
        (MemoryError("8 GiB"), "MemoryError: 8 GiB"),
        (NonFiniteError("step 3: the loss is infinite"), "NonFiniteError: step 3: the loss is inf"),
        (ConfigError("optim.lr is wrong"), "ConfigError: optim.lr is wrong"),
    ],
)
def test_a_trial_that_fails_is_recorded_with_its_reason_and_the_study_goes_on(
    here, arguments, fails, trained, error, reason
):
    fails(_2=error)
    outcome = here(arguments("n_trials=3"))
    assert (outcome.counts, outcome.exit_status) == ({"complete": 2, "fail": 1}, 0)
    (failed,) = outcome.failed
    assert failed["trial"] == 1
    assert failed["reason"].startswith(reason)
    assert "\n" not in failed["reason"]
    assert set(failed["sets"]) == {"optim.lr", "model.mlp_hidden"}


def test_a_value_that_is_no_number_fails_its_trial(here, arguments, trained, monkeypatch):
    monkeypatch.setattr(objective, "math", math)
    monkeypatch.setattr("math.log10", lambda rate: math.nan)
    outcome = here(arguments("n_trials=1"))
    assert outcome.failed[0]["reason"] == "ArithmeticError: val/loss is nan"


def test_a_pruned_trial_counts(here, arguments, fails):
    fails(_1=Pruned(40))
    assert here(arguments("n_trials=2")).counts == {"complete": 1, "pruned": 1}


def test_a_metric_that_no_run_logs_ends_the_search(here, arguments, trained, study):
    given = arguments("n_trials=3", "search.metric=val/los")
    with pytest.raises(UnknownNameError, match=r"^search\.metric=val/los: no run logs it\. Did"):
        here(given)
    assert len(trained) == 1
    assert finished(study(given)) == []


def test_a_size_may_be_looked_for(here, arguments, trained):
    outcome = here(arguments("n_trials=2", "search.metric=parameters"))
    assert outcome.best[0]["values"]["parameters"] > 1000


def test_a_signal_puts_the_trial_back_and_ends_the_worker(here, arguments, fails, trained, study):
    fails(_2=Stopped(15))
    given = arguments("n_trials=3")
    with pytest.raises(Stopped, match="SIGTERM") as stopped:
        here(given)
    assert stopped.value.code == 143
    assert len(finished(study(given))) == 1
    assert here(given).counts == {"complete": 3}
    # What was stopped is trained again, after what waited already.
    assert trained[1].optim.lr == trained[-1].optim.lr


def test_a_store_that_is_away_for_a_while_fails_no_trial(here, arguments, fails, trained, study):
    fails(_1=RunError("the tracking store can't be used"), _2=RunError("nor now"))
    outcome = here(arguments("n_trials=2"))
    assert outcome.counts == {"complete": 2}
    assert len(trained) == 4


def test_a_store_that_stays_away_ends_the_search(here, arguments, fails, monkeypatch):
    monkeypatch.setattr(worker, "_PATIENCE_SECONDS", -1)
    fails(all=RunError("the tracking store can't be used"))
    with pytest.raises(RunError, match="the tracking store can't be used"):
        here(arguments("n_trials=2"))


def test_a_database_that_is_away_loses_the_trial_which_is_repeated(here, arguments, fails, trained):
    fails(_1=StorageInternalError("the database is away"))
    outcome = here(arguments("n_trials=2"))
    assert (outcome.counts, outcome.failed) == ({"complete": 2}, [])
    assert trained[0].optim.lr == trained[-1].optim.lr


def test_a_worker_waits_for_a_database_that_is_away_as_it_starts(
    here, arguments, trained, monkeypatch
):
    monkeypatch.setattr(patient, "_PAUSE_SECONDS", 0)
    opened, refusals = launch.open_study, iter([None, 1, 1])

    def open_study(plan):
        if next(refusals, None):
            raise OperationalError("connect", {}, OSError("connection refused"))
        return opened(plan)

    monkeypatch.setattr(launch, "open_study", open_study)
    assert here(arguments("n_trials=1")).counts == {"complete": 1}


def test_a_database_that_is_away_as_a_search_starts_is_told_in_one_line(
    here, arguments, monkeypatch
):
    def open_study(plan):
        raise OperationalError("connect", {}, OSError("connection refused"))

    monkeypatch.setattr(launch, "open_study", open_study)
    with pytest.raises(RunError, match=r"^search\.storage=sqlite.* can't be used: .*refused") as e:
        here(arguments("n_trials=1"))
    assert "\n" not in str(e.value)


def test_what_ends_a_trial_as_its_end_is_written_ends_the_worker(
    here, arguments, trained, monkeypatch
):
    """Optuna loses the cause over a variable that isn't there yet."""

    def tell(**given):
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr("optuna.study._optimize._tell_with_warning", tell)
    with pytest.raises(Stopped):
        here(arguments("n_trials=1"))


def test_an_untracked_run_that_can_t_be_told_of_is_a_failure(here, arguments, fails, study):
    fails(all=OSError("no space"))
    given = arguments("n_trials=2")
    outcome = here(given)
    assert (outcome.counts, outcome.best, outcome.exit_status) == ({"fail": 2}, [], 0)
    assert {each.user_attrs[REASON] for each in study(given).trials} == {"OSError: no space"}


@pytest.mark.parametrize(
    ("overrides", "space", "match"),
    [
        (["trainer.max_steps=9"], {}, "trainer.max_steps 4, and now has 9"),
        (["optim.warmup_steps=9"], {}, r"optim.warmup_steps \d+, and now has 9"),
        (["search.metric=parameters"], {}, r'search.metric \["val/loss"\], and now has \["par'),
        (["search.direction=maximize"], {}, r'search.direction \["minimize"\], and'),
        ([], {"values": {"seed": 3}}, "seed 0, and now has 3"),
        ([], {"constraints": ["a <= 1"]}, r"search.space: constraints \[\], and now has \[\"a"),
        ([], {"parameters": {"optim.lr": [0.1]}}, r'search.space \["model.mlp_hidden", "optim.lr'),
        (
            [],
            {"parameters": {"optim.lr": [0.1], "model.mlp_hidden": [8, 16, 24]}},
            "search.space: optim.lr {.*low.*}, and now has {.*values.*}. Its trials would not com",
        ),
    ],
)
def test_a_study_goes_on_only_as_it_began(arguments, study, overrides, space, match):
    study(arguments())
    with pytest.raises(ConfigError, match=rf"^study 'toy-space' was begun with {match}"):
        study(arguments(*overrides, **space))


def test_what_doesn_t_change_a_trial_may_change(arguments, study):
    study(arguments())
    free = ("n_trials=9", "workers=3", "trainer.accelerator=auto", "tags.note=x")
    study(arguments(*free, "tracking.figures=true", "search.seed=9", enqueue=[{"optim.lr": 0.1}]))


def test_sqlite_keeps_studies_apart(here, arguments, trained, away):
    here(arguments("n_trials=1"))
    here(arguments("n_trials=2", "search.study=team/mine"))
    found = optuna.get_all_study_summaries(f"sqlite:///{away}/runs/optuna.db")
    assert {each.study_name: each.n_trials for each in found} == {"toy-space": 1, "team/mine": 2}
