"""A grid: its axes, its cells, and that each is trained once."""

import pytest

from statelab.errors import ConfigError, RuleError
from statelab.loading import load_config
from statelab.search import launch, objective
from statelab.search.grid import cells_of, split_axes
from statelab.search.plan import plan_grid

PAIR = ["write=gla", "read=plain", "data.name=mqar"]


@pytest.fixture
def armed(away):
    (away / "armed.yaml").write_text(
        "{write: gla, read: plain, data: {name: mqar}, arms: {a: {seed: 1}, b: {seed: 2}}}"
    )
    (away / "alone.yaml").write_text("{write: gla, arms: {a: {seed: 1}}}")


def test_commas_outside_of_brackets_part_the_values(armed):
    given = [
        "write=gla, deltanet",
        "model.layers=[memory x 3, attention(window=512)] x 2",
        "data.num_pairs=[4],[4,8]",
        "optim.betas=0.9,0.95",
        "tags.note=one, two",
        "seed=0",
    ]
    base, axes = split_axes(given)
    assert base == [given[1], *given[3:]]
    assert axes == {"write": ["gla", "deltanet"], "data.num_pairs": ["[4]", "[4,8]"]}


def test_all_arms_are_an_axis(armed):
    base, axes = split_axes(["experiment=armed.yaml", "arm=all"])
    assert (base, axes) == (["experiment=armed.yaml"], {"arm": ["a", "b"]})


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["seed=0"], "a grid needs a key with several values, such as seed=0,1,2"),
        (["seed=0,,1"], "seed=0,,1: a grid takes each value once, and none that is empty"),
        (["seed=0,1,0"], "seed=0,1,0: a grid takes each value once"),
        (["arm=all"], "arm=all needs an experiment: experiment=NAME"),
        (["arm=all", "experiment=alone.yaml"], "alone.yaml has no several arms to run"),
    ],
)
def test_axes_that_make_no_grid_are_refused(armed, arguments, match):
    with pytest.raises(ConfigError, match=match):
        split_axes(arguments)


def test_the_last_axis_changes_first_and_pairs_without_a_meaning_are_left_out(caplog):
    axes = {"write": ["gla", "kv"], "read": ["plain", "softmax"], "seed": ["0", "1"]}
    cells = cells_of(["data.name=mqar"], axes)
    assert [" ".join(cell.values()) for cell, _ in cells] == [
        "gla plain 0",
        "gla plain 1",
        "kv softmax 0",
        "kv softmax 1",
    ]
    assert [each.seed for _, each in cells] == [0, 1, 0, 1]
    assert "left out write=gla read=softmax seed=0" in caplog.text


def test_a_cell_that_can_t_be_built_is_refused_before_anything_is_trained():
    with pytest.raises(ConfigError, match=r"optim\.lr must be > 0"):
        cells_of(PAIR, {"optim.lr": ["0.1", "0"]})
    with pytest.raises(RuleError, match="softmax"):
        cells_of(PAIR, {"read": ["softmax"]})


@pytest.mark.parametrize("key", ["search", "n_trials", "search.sampler", "search.pruner"])
def test_what_only_a_search_has_is_refused(key):
    with pytest.raises(ConfigError, match=r"a grid has no search\.\w+: it runs every cell once"):
        plan_grid([*PAIR, "seed=0,1", f"{key}=3"])


def test_a_grid_needs_no_experiment_and_its_base_no_rules(here, toy, trained):
    base = [each for each in toy("tracking.enabled=false") if not each.startswith("write=")]
    outcome = here([*base, "seed=0,1", "write=gla,deltanet"], "grid")
    assert [each["sets"] for each in outcome.cells] == [
        {"seed": seed, "write": write} for seed in "01" for write in ("gla", "deltanet")
    ]
    assert (outcome.counts, outcome.exit_status) == ({"complete": 4}, 0)
    assert [(each.seed, each.model.write.name) for each in trained] == [
        (0, "gla"),
        (0, "deltanet"),
        (1, "gla"),
        (1, "deltanet"),
    ]


def grid(arguments, *axes):
    return [each for each in arguments(*axes) if not each.startswith("search=")]


def test_a_rerun_trains_what_is_new_and_what_failed(here, arguments, trained, monkeypatch):
    works = objective.train

    def breaks(config, *, progress, trial):
        if config.seed == 1:
            trained.append(config)
            raise RuntimeError("no luck\nat all")
        return works(config, progress=progress, trial=trial)

    monkeypatch.setattr(objective, "train", breaks)
    outcome = here(grid(arguments, "seed=0,1"), "grid")
    assert (outcome.counts, outcome.exit_status) == ({"complete": 1}, 1)
    (failed,) = outcome.failed
    assert (failed["sets"], failed["reason"]) == ({"seed": "1"}, "RuntimeError: no luck")

    monkeypatch.setattr(objective, "train", works)
    outcome = here(grid(arguments, "seed=2,1,0"), "grid")
    assert (outcome.counts, outcome.exit_status) == ({"complete": 3}, 0)
    assert [each["sets"]["seed"] for each in outcome.cells] == ["2", "1", "0"]
    assert sorted(each.seed for each in trained) == [0, 1, 1, 2]
    assert here(grid(arguments, "seed=2,1,0"), "grid").counts == {"complete": 3}
    assert len(trained) == 4


def test_cells_that_are_not_asked_for_any_more_are_dropped(here, arguments, trained, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(launch, "work", lambda plan: None)
        assert here(grid(arguments, "seed=0,1,2"), "grid").counts == {}
    assert here(grid(arguments, "seed=1,2"), "grid").counts == {"complete": 2}
    assert [each.seed for each in trained] == [1, 2]


def test_cells_compare_only_on_one_base(here, arguments, trained):
    here(grid(arguments, "seed=0,1"), "grid")
    here(grid(arguments, "seed=0,1,2", "tags.note=x", "tracking.figures=true"), "grid")
    with pytest.raises(ConfigError, match=r"'toy-grid' was begun with optim.lr 0\.\d+, and no"):
        here(grid(arguments, "seed=0,1", "optim.lr=0.5"), "grid")
    with pytest.raises(ConfigError, match=r'begun with search.space \["grid", "seed"\], and now'):
        here(grid(arguments, "seed=0,1", "write=gla,deltanet"), "grid")


def test_a_base_is_a_configuration_of_its_own(toy):
    plan = plan_grid(toy("write=gla,deltanet", "seed=0,1"))
    assert plan.config == load_config(None, toy())
    assert plan.total == 4
