"""What the arguments of a search say."""

import pytest

from statelab.errors import ConfigError, UnknownKeyError, UnknownNameError
from statelab.loading import load_config
from statelab.search.plan import plan_search


def test_short_keys_are_those_of_the_search(arguments, away):
    plan = plan_search(arguments("n_trials=3", "workers=2", "search.seed=7", "seed=5"))
    assert (plan.total, plan.search.workers, plan.search.seed, plan.config.seed) == (3, 2, 7, 5)
    assert (plan.study, plan.space.name) == ("toy-space", "space")
    assert plan.url == f"sqlite:///{away}/runs/optuna.db"
    assert plan.folder == away / "runs/studies/toy-space"


def test_the_command_line_stands_above_the_space_and_that_above_the_experiment(arguments):
    space = {
        "values": {"trainer": {"max_steps": 7}, "optim": {"schedule": "wsd"}, "read": "ccq"},
        "search": {"pruner": "none", "n_trials": 4, "sampler_options": {"n_startup_trials": 2}},
    }
    plan = plan_search(arguments("optim.schedule=constant", "search.pruner=hyperband", **space))
    assert (plan.config.trainer.max_steps, plan.config.optim.schedule) == (7, "constant")
    assert plan.config.model.read.name == "ccq"
    assert (plan.search.pruner, plan.total) == ("hyperband", 4)
    assert plan.search.sampler_options == {"n_startup_trials": "2"}


def test_an_experiment_may_have_a_space_of_its_own(away):
    folder = away / "experiments/mine"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("{write: gla, read: plain, data: {name: mqar}}")
    with pytest.raises(ConfigError, match=r"'mine' has no search\.yaml of its own: say"):
        plan_search(["experiment=mine"])
    (folder / "search.yaml").write_text("{parameters: {seed: [1, 2]}}")
    assert plan_search(["experiment=mine"]).study == "mine-mine"
    with pytest.raises(UnknownNameError, match=r"search=other\.yaml: no such file"):
        plan_search(["experiment=mine", "search=other.yaml"])


def test_several_metrics_have_a_direction_each(arguments):
    given = ("search.metric=val/accuracy,memory_bytes", "search.direction=maximize,minimize")
    plan = plan_search(arguments(*given))
    assert plan.search.metric == ("val/accuracy", "memory_bytes")
    assert plan.search.direction == ("maximize", "minimize")
    with pytest.raises(ConfigError, match=r"search\.metric=val/accuracy,memory_bytes and search"):
        plan_search(arguments(given[0]))
    with pytest.raises(ConfigError, match=r"search\.pruner=median can't compare .* several metr"):
        plan_search(arguments(*given, "search.pruner=median"))


@pytest.mark.parametrize(
    ("argument", "match"),
    [
        ("n_trials=0", r"search\.n_trials must be >= 1, got 0"),
        ("workers=many", r"search\.workers must be int, got 'many'"),
        ("search.sampeler=tpe", r"unknown key 'search\.sampeler'\. Did you mean 'search\.sampler'"),
        ("search.direction=down", r"search\.direction must be \[minimize | maximize\], got"),
        ("optim.lrr=1", r"unknown key 'optim\.lrr'"),
        ("optim.lr=0.1", r"optim\.lr=0\.1, but space 'space' varies it\. Leave it out"),
    ],
)
def test_an_argument_that_is_wrong_is_refused(arguments, argument, match):
    with pytest.raises(ConfigError, match=match):
        plan_search(arguments(argument))


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"optim.lrr": [1]}, r"space 'space': unknown key 'optim\.lrr'\. Did you mean 'optim\.lr'"),
        ({"write": ["gla", "gal"]}, r"space 'space': unknown write rule 'gal'. Did you mean 'gla'"),
        ({"read.gate": ["fixed"]}, r"space 'space': unknown key 'model\.read\.gate'"),
        (
            {"write.num_modes": {"choices": [16], "when": {"write": "s4d", "red": "ccq"}}},
            r"space 'space': unknown key 'red'\.",
        ),
    ],
)
def test_a_space_with_names_that_nobody_knows_is_refused(arguments, parameters, match):
    with pytest.raises(ConfigError, match=match):
        plan_search(arguments(parameters=parameters))


def test_a_space_may_hold_points_that_can_t_be_built(arguments):
    parameters = {
        "read": ["plain", "ccq", "softmax"],
        "read.gate": {"choices": ["fixed"], "when": {"read": "ccq"}},
        "model.num_heads": [3],
    }
    assert len(plan_search(arguments(parameters=parameters)).space.parameters) == 3


def test_an_unknown_key_is_an_error_of_its_own_kind(toy):
    with pytest.raises(UnknownKeyError, match="unknown key 'sed'"):
        load_config(None, toy("sed=1"))
