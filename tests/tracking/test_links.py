import json
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from statelab_mlflow.links import View, comparison, publish, run_page, runs_page
from statelab_mlflow.store import connect, store_uri

ROOT = "http://127.0.0.1:5000"


def split(address):
    """The route of a page and its values; all stand behind the #."""
    route = urlsplit(urlsplit(address).fragment)
    return route.path, {key: value[0] for key, value in parse_qs(route.query, True).items()}


@pytest.mark.parametrize("root", [ROOT, f"{ROOT}/"])
def test_runs_stand_by_age_with_trials_below_their_study(root):
    address = runs_page(root, "7", View())
    assert address.startswith(f"{ROOT}/#/experiments/7/runs?")
    assert split(address) == (
        "/experiments/7/runs",
        {"searchFilter": "", "orderByKey": "attributes.start_time", "orderByAsc": "false"},
    )


def test_sorted_by_a_metric_only_what_was_trained_is_shown():
    address = runs_page(ROOT, "7", View(sort="val/loss"))
    assert "metrics.%60val%2Floss%60" in address
    assert split(address)[1] == {
        "searchFilter": "tags.kind = 'train'",
        "orderByKey": "metrics.`val/loss`",
        "orderByAsc": "true",
    }
    descending = split(runs_page(ROOT, "7", View(sort="val/accuracy", descending=True)))[1]
    assert descending["orderByAsc"] == "false"


@pytest.mark.parametrize(
    ("study", "where"), [("mqar grid", "'mqar grid'"), ("don't & can't", "\"don't & can't\"")]
)
def test_the_curves_of_a_study(study, where):
    view = View(sort="val/loss", study=study, charts=True)
    values = split(runs_page(ROOT, "7", view))[1]
    assert values["searchFilter"] == f"tags.kind = 'train' AND tags.study = {where}"
    assert values["compareRunsMode"] == "CHART"
    assert split(runs_page(ROOT, "7", view, "k"))[1] == {
        "viewStateShareKey": "k",
        "compareRunsMode": "CHART",
    }


def test_one_run_and_several():
    assert run_page(ROOT, "7", "abc") == f"{ROOT}/#/experiments/7/runs/abc"
    address = comparison(ROOT, ["7"], ["abc", "def"])
    assert address.endswith("?runs=%5B%22abc%22%2C%20%22def%22%5D&experiments=%5B%227%22%5D")
    path, values = split(address)
    assert (path, json.loads(values["runs"])) == ("/compare-runs", ["abc", "def"])
    assert unquote(address).endswith('experiments=["7"]')


def test_a_view_is_kept_with_its_experiment_once(start, run_dir):
    run = start()
    run.finish("FINISHED")
    client = connect(store_uri(None, run_dir))
    experiment = client.get_run(run.id).info.experiment_id
    view = View(sort="val/loss")
    keys = [publish(client, experiment, each) for each in (view, view, View())]
    assert keys[0] == keys[1] != keys[2]
    tags = client.get_experiment(experiment).tags
    assert {each for each in tags if "View" in each} == {
        f"mlflow.sharedViewState.{key}" for key in keys
    }
    kept = json.loads(tags[f"mlflow.sharedViewState.{keys[0]}"])
    assert kept["orderByAsc"] is True
    assert "metrics.`val/loss`" in kept["selectedColumns"]
