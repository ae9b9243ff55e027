"""However trials end, exactly so many are finished as were asked for."""

import os
import random
import threading
from collections import Counter
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from statelab.errors import ConfigError
from statelab.search.objective import Objective
from statelab.search.plan import plan_search
from statelab.search.study import open_study
from statelab.search.tickets import (
    INTERRUPTED,
    REASON,
    SKIPPED,
    WORKER,
    drop_surplus,
    fail_lost,
    finished,
    has_open,
    queue_cells,
    queue_trials,
    requeue,
)
from statelab.search.worker import Worker
from statelab.signals import Stopped

WAITING, RUNNING, FAIL = TrialState.WAITING, TrialState.RUNNING, TrialState.FAIL


@pytest.fixture
def study(empty_study_database, tmp_path):
    """A study whose trials may die: nothing beats for them here."""
    file = tmp_path / "optuna.db"
    file.write_bytes(empty_study_database.read_bytes())
    return optuna.create_study(storage=f"sqlite:///{file}")


def states(study):
    return dict(Counter(each.state.name for each in study.trials))


def begin(study, **attributes):
    """Take a ticket as a worker does."""
    trial = study.ask()
    for key, value in {WORKER: "here:1", **attributes}.items():
        trial.set_user_attr(key, value)
    return trial


def test_the_queue_is_filled_up_to_the_total_and_begins_with_the_points(study):
    queue_trials(study, 3, [{"x": 1}, {"x": 2}])
    queue_trials(study, 3, [{"x": 1}, {"x": 2}])
    assert states(study) == {"WAITING": 3}
    assert [begin(study).suggest_int("x", 0, 9) for _ in range(2)] == [1, 2]
    queue_trials(study, 3)
    assert states(study) == {"WAITING": 1, "RUNNING": 2}
    assert has_open(study, RUNNING)
    assert not has_open(study, TrialState.COMPLETE)


def test_complete_pruned_and_failed_trials_count_and_no_others(study):
    queue_trials(study, 3)
    study.tell(begin(study), 1.0)
    study.tell(begin(study), state=TrialState.PRUNED)
    study.tell(begin(study, **{REASON: "no luck"}), state=FAIL)
    assert len(finished(study)) == 3
    for attribute, state in ((SKIPPED, TrialState.PRUNED), (INTERRUPTED, FAIL)):
        study.enqueue_trial({})
        study.tell(begin(study, **{attribute: "so"}), state=state)
    assert len(finished(study)) == 3
    queue_trials(study, 3)
    assert not has_open(study, WAITING)
    queue_trials(study, 4)
    assert has_open(study, WAITING)


def test_an_interrupted_trial_is_queued_again_with_its_values(study):
    study.enqueue_trial({}, user_attrs={"cell": {"seed": "1"}})
    trial = begin(study)
    drawn = trial.suggest_float("x", 0, 1)
    requeue(study, study.trials[0])
    trial.set_user_attr(INTERRUPTED, "SIGTERM")
    study.tell(trial, state=FAIL)
    again = begin(study)
    assert again.suggest_float("x", 0, 1) == drawn
    assert again.user_attrs["cell"] == {"seed": "1"}


def test_a_lost_trial_is_repeated_with_its_values_so_often_and_counts_then(study):
    queue_trials(study, 1)
    ended = []
    for attempt in range(3):
        trial = begin(study)
        drawn = trial.suggest_float("x", 0, 1)
        # What Optuna does when a heartbeat is over.
        study.tell(trial, state=FAIL)
        fail_lost(study, 2, lambda: ended.append(1))
        assert len(finished(study)) == (attempt == 2)
        queue_trials(study, 1)
        assert has_open(study, WAITING) == (attempt < 2)
        assert drawn == study.trials[0].params["x"]
    assert len(ended) == 2
    assert states(study) == {"FAIL": 3}


def test_a_trial_whose_process_died_as_it_began_is_repeated(study):
    queue_trials(study, 1)
    study.ask()
    fail_lost(study, 2, lambda: None)
    assert states(study) == {"FAIL": 1, "WAITING": 1}
    begin(study)
    fail_lost(study, 2, lambda: None)
    assert states(study) == {"FAIL": 1, "RUNNING": 1}


def test_what_fewer_trials_leave_over_is_dropped(study):
    queue_trials(study, 5)
    study.tell(begin(study), 1.0)
    begin(study)
    drop_surplus(study, 3)
    assert states(study) == {"COMPLETE": 1, "RUNNING": 1, "WAITING": 1, "FAIL": 2}
    drop_surplus(study, 1)
    assert states(study) == {"COMPLETE": 1, "RUNNING": 1, "FAIL": 3}
    fail_lost(study, 2, lambda: pytest.fail("none was lost"))
    assert len(finished(study)) == 1
    queue_trials(study, 4)
    assert has_open(study, WAITING)


def test_a_cell_is_queued_unless_it_is_done_or_open(study):
    cells = [{"seed": "0"}, {"seed": "1"}, {"seed": "2"}]
    queue_cells(study, cells)
    study.tell(begin(study), 1.0)
    study.tell(begin(study, **{REASON: "no luck"}), state=FAIL)
    queue_cells(study, [{"seed": "1"}, {"seed": "0"}])
    assert states(study) == {"COMPLETE": 1, "FAIL": 2, "WAITING": 1}
    assert begin(study).user_attrs["cell"] == {"seed": "1"}


def test_constraints_that_leave_nothing_end_the_search(study):
    for _ in range(101):
        trial = optuna.create_trial(state=TrialState.PRUNED, user_attrs={SKIPPED: "a <= 1"})
        study.add_trial(trial)
    queue_trials(study, 2)
    with pytest.raises(
        ConfigError, match=r"^101 draws broke the constraint a <= 1: it leaves next"
    ):
        queue_trials(study, 1)


# Whole workers.


@pytest.fixture
def workers(arguments, monkeypatch, away: Path, empty_study_database):
    """Workers on one study, in threads; each trial does what is given."""
    monkeypatch.setattr("statelab.search.worker._POLL_SECONDS", 0.05)
    (away / "runs").mkdir()
    (away / "runs/optuna.db").write_bytes(empty_study_database.read_bytes())
    order = random.Random(0)

    def worker(plan, act):
        turn = plan.turn
        with turn.taken():
            study = open_study(plan)
            queue_trials(study, plan.total)

        class Acting(Objective):
            def _prepare(self, trial):
                self.space.suggest(trial, {})
                for step in range(3):
                    trial.report(order.random(), step)
                return None, None

            def _train(self, trial, config):
                return act(trial)

        monkeypatch.setattr("statelab.search.objective._value", lambda *given: order.random())
        return Worker(
            search=plan.search,
            study=study,
            objective=Acting(
                space=plan.space,
                base=(),
                metrics=("val/loss",),
                prunes=False,
                study=plan.study,
                parent=None,
                worker=f"{os.getpid()}-{threading.get_ident()}",
                turn=turn,
            ),
            refill=lambda study: queue_trials(study, plan.total),
            end_runs=lambda: None,
        )

    def run(number, total, act):
        plan = plan_search(arguments(f"n_trials={total}"))
        errors = []

        def work(each):
            try:
                each.work()
            except BaseException as error:
                errors.append(error)

        all_of_them = [worker(plan, act) for _ in range(number)]
        threads = [threading.Thread(target=work, args=(each,)) for each in all_of_them]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return all_of_them[0].study, errors

    return run


@pytest.mark.slow
def test_eight_workers_share_sixty_four_trials_without_a_lock_error(workers):
    done = []
    study, errors = workers(8, 64, lambda trial: done.append(trial.number))
    assert errors == []
    assert states(study) == {"COMPLETE": 64}
    assert sorted(done) == [*range(64)]


def test_a_search_that_is_interrupted_at_any_trial_ends_with_all_of_them(workers):
    fate = random.Random(1)

    def act(trial):
        if fate.random() < 0.4:
            raise Stopped(15)
        if fate.random() < 0.2:
            raise RuntimeError("no luck")

    calls, errors = 0, [None]
    while errors:
        study, errors = workers(1, 4, act)
        assert all(isinstance(each, Stopped) for each in errors)
        calls += 1
    assert calls > 2
    assert len(finished(study)) == 4
    assert not has_open(study, WAITING)
    assert not has_open(study, RUNNING)
    assert states(study)["FAIL"] >= calls - 1
