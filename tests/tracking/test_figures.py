"""Figures: each is written, says what it shows, and shows something."""

import json

import matplotlib.image
import numpy as np
import pytest
import torch

from statelab import train as training
from statelab.callbacks.diagnostics import DISTRIBUTIONS, QUANTILES
from statelab.errors import DataError
from statelab.examination import examine
from statelab.figures import report, weights
from statelab.figures.report import draw
from statelab.figures.style import Subject
from statelab.inspection import inspect
from statelab.probe import Weights
from statelab.runs.metric_history import metric_history
from statelab.runs.stored import StoredRun
from statelab_mlflow.store import connect

FIGURES = {
    "gla+ccq": {"weights_against_plain", "states", "half_life", "lambda", "removed"},
    "deltanet+interdomain": {"weights_against_plain", "states", "beta"},
    "kv+softmax": set(),
}
ALWAYS = {"training", "slices", "weights", "keys"}
SUBJECT = Subject(pair="gla+ccq", parameters=134_105_856, moment="step 1,000")


@pytest.fixture
def run(tmp_path):
    """The folder of a run of two validations: metrics, and distributions of two layers."""
    names = ("train/loss", "val/loss", "val/ppl", "val/accuracy", "lr", "grad_norm")
    slices = ("val/accuracy/kv_2", "val/accuracy/kv_3", "perf/tokens_per_second")
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for step in (1, 2):
            for i, name in enumerate(names + slices):
                row = {"key": name, "value": 0.1 * i / step, "timestamp": 0, "step": step}
                file.write(json.dumps(row) + "\n")
    with (tmp_path / DISTRIBUTIONS).open("w") as file:
        for step in (1, 2):
            for layer in (0, 1):
                for name in ("read/lambda", "write/decay", "write/beta", "write/state_norm"):
                    row = {"step": step, "layer": layer, "name": name, "quantiles": QUANTILES}
                    file.write(json.dumps(row) + "\n")
    return tmp_path


@pytest.mark.parametrize("pair", FIGURES)
def test_every_figure_says_what_it_shows_and_shows_something(
    pair, run, toy_config, stirred, monkeypatch
):
    write, _, read = pair.partition("+")
    config = toy_config(f"write={write}", f"read={read}")
    tokens = torch.randint(32, (2, 8), generator=torch.Generator().manual_seed(0))
    seen = examine(stirred(config).float(), config, tokens)
    drawn, save = {}, report.save

    def keep(figure, file):
        drawn[file.stem] = figure
        save(figure, file)

    monkeypatch.setattr(report, "save", keep)
    subject = Subject(pair=pair, parameters=seen.parameters, moment="step 2")
    files = draw(seen, subject, run, run / "figures")
    assert {file.stem for file in files} == ALWAYS | FIGURES[pair]
    for file in files:
        title = drawn[file.stem].get_suptitle()
        assert title.startswith(f"{write} + {read}, ")
        assert " parameters, step 2\n" in title
        panels = [axes for axes in drawn[file.stem].axes if axes.get_label() != "<colorbar>"]
        assert panels
        for axes in panels:
            assert axes.get_xlabel()
            assert axes.get_ylabel()
            assert axes.has_data()
        pixels = matplotlib.image.imread(file)
        height, width, _ = pixels.shape
        assert (width, height) == tuple(map(int, drawn[file.stem].get_size_inches() * 150))
        few = pixels[::9, ::9, :3].reshape(-1, 3)
        assert len(np.unique(few, axis=0)) > 20


def test_the_title_is_short():
    assert SUBJECT.title() == "gla + ccq, 134M parameters, step 1,000"


def test_the_map_shows_shares_of_a_row_and_no_future():
    given = torch.tensor([[[2.0, 0.0, 0.0], [1.0, -3.0, 0.0], [1.0, 1.0, 2.0]]])
    figure = weights.effective_weights(
        {4: Weights(read=given, plain=None)}, {4: "memory"}, ["a", "$", "\\n"], SUBJECT
    )
    axes = figure.axes[0]
    assert axes.get_title() == "layer 4 (memory), head 0"
    assert [each.get_text() for each in axes.get_xticklabels()] == ["a", "$", "\\n"]
    shown = axes.images[0].get_array()
    assert shown.mask.tolist() == [[False, True, True], [False, False, True], [False] * 3]
    assert shown.data.tolist() == [[1, 0, 0], [0.25, -0.75, 0], [0.25, 0.25, 0.5]]


def test_a_figure_that_fails_leaves_the_others(run, toy_config, stirred, monkeypatch, caplog):
    config = toy_config()
    seen = examine(stirred(config).float(), config, torch.ones(1, 4, dtype=torch.int64))

    def fail(*_):
        raise ZeroDivisionError("no luck")

    monkeypatch.setattr(report.weights, "effective_weights", fail)
    files = draw(seen, SUBJECT, run, run / "figures")
    assert {file.stem for file in files} == (ALWAYS | {"states", "half_life"}) - {"weights"}
    (record,) = caplog.records
    assert record.getMessage() == "no figure weights: ZeroDivisionError: no luck"


def test_a_step_done_twice_has_its_last_value(tmp_path):
    rows = [("a", 1, 5.0), ("a", 2, 6.0), ("a", 1, 7.0)]
    (tmp_path / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"key": key, "value": value, "timestamp": 0, "step": step}) + "\n"
            for key, step, value in rows
        )
        + '{"key": "cut o'
    )
    assert metric_history(tmp_path) == {"a": {1: 7.0, 2: 6.0}}
    assert metric_history(tmp_path / "nowhere") == {}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, toy_config):
    """A tracked run on bytes, with figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        folder = tmp_path_factory.mktemp("runs")
        (folder / "some.txt").write_text("the cat sat on the mat. " * 40)
        text = ("data.name=text", f"data.files={folder}/*.txt", "data.val_fraction=0.2")
        options = ("read=ccq", f"run_dir={folder}", "tracking.figures=true", *text)
        yield training.train(toy_config(*options), progress=False), folder


def test_a_run_ends_with_its_figures_in_its_folder_and_in_the_store(trained):
    result, folder = trained
    expected = {f"{each}.png" for each in (ALWAYS | FIGURES["gla+ccq"]) - {"slices"}}
    assert {file.name for file in (result.folder / "figures").iterdir()} == expected
    store = connect(f"sqlite:///{folder}/mlflow.db")
    kept = {each.path for each in store.list_artifacts(result.run_id, "figures")}
    assert kept == {f"figures/{name}" for name in expected}
    steps = [
        each.step for each in store.get_metric_history(result.run_id, "read/sigma_max/layer_1")
    ]
    assert steps == [2, 4]


def test_a_text_is_drawn_with_its_characters(trained, tmp_path, monkeypatch):
    result, _ = trained
    labels = []
    given = weights.effective_weights

    def spy(each, kinds, text, subject):
        labels.append((text, subject.moment))
        return given(each, kinds, text, subject)

    monkeypatch.setattr(weights, "effective_weights", spy)
    run = StoredRun(id=result.run_id, folder=result.folder)
    files = inspect(run, checkpoint="best", text="a $é\n", out=tmp_path / "out")
    assert {file.parent for file in files} == {tmp_path / "out"}
    assert labels == [(["a", "␣", "$", "c3", "a9", "\\n"], "best checkpoint")]


@pytest.mark.parametrize("text", ["", "a", "a" * 257])
def test_a_text_too_short_or_long_is_refused(text, trained):
    run = StoredRun(id=trained[0].run_id, folder=trained[0].folder)
    with pytest.raises(DataError, match=rf"^text has {len(text)} tokens; give from 2 to 256\.$"):
        inspect(run, text=text)
