"""Studies whose trials are trained, in this process: pruning, and what MLflow has at the end."""

import json

import pytest
from optuna.trial import TrialState

from statelab.loading import load_config
from statelab.search.figures import draw
from statelab.search.plan import plan_search
from statelab.search.study import open_study
from statelab.train import train
from statelab_mlflow.store import connect

#: One epoch of twenty steps, ten validations.
EPOCH = ("data.num_train=80", "trainer.max_steps=20", "trainer.val_every=2")
#: Two that learn, one that doesn't, one whose weights burst.
SPACE = {
    "parameters": {
        "optim.lr": {"low": 1e-9, "high": 1e30, "log": True},
        "optim.betas": [[0.9, 0.95], [0.9, 0.99]],
    },
    "enqueue": [
        {"optim.lr": 0.02, "optim.betas": [0.9, 0.95]},
        {"optim.lr": 0.05, "optim.betas": [0.9, 0.99]},
        {"optim.lr": 1e-9, "optim.betas": [0.9, 0.95]},
        {"optim.lr": 1e30, "optim.betas": [0.9, 0.95]},
    ],
    "search": {"pruner": "median", "pruner_options": {"n_startup_trials": 2}},
}


@pytest.mark.slow
def test_a_study_has_a_run_with_all_trials_below_it(here, arguments, away, monkeypatch):
    monkeypatch.setattr("statelab.search.record.draw", draw)
    given = [*arguments(*EPOCH, "n_trials=4", **SPACE), "tracking.enabled=true"]
    outcome = here(given)
    assert outcome.counts == {"complete": 2, "fail": 1, "pruned": 1}
    assert "NonFiniteError" in outcome.failed[0]["reason"]

    good, better, bad, _ = open_study(plan_search(given)).trials
    assert [each.state for each in (good, better)] == [TrialState.COMPLETE] * 2
    assert [*good.intermediate_values] == [*range(2, 21, 2)]
    assert bad.state == TrialState.PRUNED
    assert max(bad.intermediate_values) < 10, "it was pruned after the half"

    client = connect(f"sqlite:///{away}/runs/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'toy'")
    runs = client.search_runs([experiment.experiment_id])
    parent = next(run for run in runs if run.info.run_id == outcome.run_id)
    assert (parent.info.run_name, parent.info.status) == ("toy-space", "FINISHED")
    assert parent.data.params["search.pruner"] == "median"
    assert "search.storage" not in parent.data.params
    children = {run.data.tags["trial"]: run for run in runs if run is not parent}
    assert {run.data.tags["mlflow.parentRunId"] for run in children.values()} == {outcome.run_id}
    ends = {name: (run.info.status, "pruned" in run.data.tags) for name, run in children.items()}
    assert ends == {
        "0": ("FINISHED", False),
        "1": ("FINISHED", False),
        "2": ("KILLED", True),
        "3": ("FAILED", False),
    }
    assert children["0"].info.run_name == "betas=[0.9, 0.95] lr=0.02 gla+plain s0"
    assert json.loads(children["0"].data.params["optim.lr"]) == 0.02
    assert len(client.get_metric_history(children["0"].info.run_id, "val/loss")) == 10

    figures = {each.path for each in client.list_artifacts(outcome.run_id, "figures")}
    names = {"history", "slice", "parallel_coordinates", "intermediate_values", "lr_sensitivity"}
    assert figures >= {f"figures/{name}.{kind}" for name in names for kind in ("html", "png")}
    assert [each.path for each in client.list_artifacts(outcome.run_id) if not each.is_dir] == [
        "best.yaml"
    ]

    best = load_config(str(away / "runs/studies/toy-space/best.yaml"))
    assert best.optim.lr == good.params["optim.lr"] if good.value < better.value else 0.05
    again = train(best, progress=False)
    assert again.metrics["val/loss"] == min(good.value, better.value)


@pytest.mark.slow
def test_two_objectives_have_a_front_and_no_pruning(here, arguments, away, monkeypatch):
    monkeypatch.setattr("statelab.search.record.draw", draw)
    space = {
        "parameters": {"model.head_dim": [4, 8]},
        "enqueue": [{"model.head_dim": 4}, {"model.head_dim": 8}],
        "search": {
            "metric": ["val/loss", "memory_bytes"],
            "direction": ["minimize", "minimize"],
            "pruner": "none",
        },
    }
    outcome = here(arguments("n_trials=2", **space))
    assert outcome.counts == {"complete": 2}
    sizes = [each["values"]["memory_bytes"] for each in outcome.best]
    assert sorted(sizes) == sizes or len(sizes) == 1
    assert {"pareto_front.html", "pareto_front.png", "best.yaml"} <= {
        each.name for each in outcome.files
    }
    assert not any(each.name.startswith("intermediate") for each in outcome.files)
