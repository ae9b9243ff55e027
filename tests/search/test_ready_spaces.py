"""The spaces that come with statelab, on the experiment that a CPU trains."""

import optuna
import pytest

from statelab.experiment import space_names
from statelab.loading import load_config, to_dict
from statelab.search.plan import plan_search
from statelab.search.study import as_overrides
from statelab.values import flatten

SPACES = ["ccq_gates", "pareto", "rules_and_lr", "state_sizes"]


def draws(arguments, number=12):
    """The plan, and what so many trials set."""
    plan = plan_search(["experiment=mqar", *arguments])
    base = flatten(to_dict(plan.config))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for point in plan.space.enqueue:
        study.enqueue_trial(dict(point))
    return plan, [plan.space.suggest(study.ask(), base) for _ in range(number)]


def test_there_are_four():
    assert set(space_names()) >= set(SPACES)


@pytest.mark.parametrize("name", SPACES)
def test_all_that_a_space_draws_can_be_built(name):
    plan, drawn = draws([f"search={name}"])
    configs = [load_config(None, [*plan.base, *as_overrides(each)]) for each in drawn]
    assert len({str(each.model) + str(each.optim) for each in configs}) > 6
    assert len(plan.search.metric) == (2 if name == "pareto" else 1)


def test_the_sizes_of_s4d_have_modes():
    _, drawn = draws(["search=state_sizes", "write=s4d"])
    assert {each["model.write.num_modes"] for each in drawn} == {16, 32, 64}
    _, drawn = draws(["search=state_sizes", "write=gla"])
    assert not any("model.write.num_modes" in each for each in drawn)


def test_the_gates_begin_as_published():
    _, (first, *_) = draws(["search=ccq_gates"])
    assert first == {
        "model.read.gate": "per_token",
        "model.read.lambda_init": 0.1,
        "model.read.lambda_scale": 1.0,
    }


def test_each_rule_has_the_keys_that_it_knows():
    _, drawn = draws(["search=rules_and_lr"], 30)
    for each in drawn:
        ccq, s4d = each["model.read.name"] == "ccq", each["model.write.name"] == "s4d"
        assert ("model.read.lambda_init" in each) == ccq
        assert ("model.write.num_modes" in each) == s4d
    assert {True, False} == {"model.read.lambda_init" in each for each in drawn}
    assert {True, False} == {"model.write.num_modes" in each for each in drawn}
