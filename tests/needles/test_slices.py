"""What is shown of a grid: exact match by cell, its map, and the same of any checkpoint."""

import json

import numpy as np
import pytest
import torch

from statelab.compare.config import CompareConfig
from statelab.data.lightning_data import build_data
from statelab.evaluate import evaluate, load_checkpoint
from statelab.figures.chart import is_share
from statelab.figures.curves import slice_accuracy
from statelab.figures.grid import find_grid, slice_map
from statelab.figures.style import Subject
from statelab.loading import load_config
from statelab.runs.stored import find_run
from statelab.train import train

SUBJECT = Subject(pair="gla+ccq", parameters=1000, moment="step 2")
TASK = {
    "write": "deltanet",
    "read": "plain",
    "model.d_model": 16,
    "model.num_layers": 1,
    "model.num_heads": 2,
    "data.name": "needle_tokens",
    "data.vocab_size": 24,
    "data.lengths": "[16]",
    "data.val_lengths": "[16,24]",
    "data.depths": "[0,100]",
    "data.num_val": 5,
    "data.batch_size": 4,
    "optim.lr": 1e-2,
    "trainer.max_steps": 20,
    "trainer.accelerator": "cpu",
    "tracking.enabled": "false",
    "tracking.figures": "false",
}


@pytest.fixture(scope="module", params=["false", "true"], ids=["rows", "packed"])
def run(request, tmp_path_factory):
    values = TASK | {"run_dir": tmp_path_factory.mktemp("runs"), "data.packing": request.param}
    config = load_config(None, [f"{key}={value}" for key, value in values.items()])
    return find_run(train(config, progress=False).run_id, run_dir=config.run_dir)


def test_exact_match_is_what_greedy_decoding_gets_right(run):
    config = run.config()
    model = load_checkpoint(run.checkpoint("last"))
    data, n = build_data(config).data, config.data.value_tokens
    right = []
    for i in range(20):
        text = data.val().batch(np.array([i]))["tokens"][0]
        tokens = text[:-n]
        for _ in range(n):
            with torch.no_grad():
                logits, _ = model(tokens[None])
            tokens = torch.cat([tokens, logits[0, -1:].argmax(-1)])
        right.append(bool(tokens.equal(text)))
    found = evaluate(run).metrics
    assert found["val/exact"] == pytest.approx(np.mean(right))
    for cell, name in enumerate(data.slices):
        mine = np.mean(right[5 * cell : 5 * cell + 5])
        assert found[f"val/exact/{name}"] == pytest.approx(mine)


def test_other_cells_than_the_run_s_own_are_recorded_and_drawn(run):
    overrides = ("data.seq_len=40", "data.val_lengths=[16,40]", "data.depths=[0,50]")
    found = evaluate(run, task="slices", overrides=overrides)
    cells = {f"len_{length}_depth_{depth}" for length in (16, 40) for depth in (0, 50)}
    (rows,) = found.report.tables.values()
    assert {row["slice"] for row in rows} == {*cells, "mean"}
    assert {f"slices/exact/{each}" for each in cells} <= set(found.metrics)
    report = json.loads((run.folder / "eval/slices/report.json").read_text())
    assert report["metrics"] == found.metrics
    assert (run.folder / "eval/slices/slice_map.png").stat().st_size > 5000


def history(*slices, metric="val/exact"):
    names = [f"{metric}/{each}" for each in slices]
    return {metric: {1: 0.0, 2: 0.5}} | {n: {1: 0.0, 2: i / 10} for i, n in enumerate(names)}


def test_a_map_has_a_cell_for_each_slice_and_leaves_out_what_there_is_not():
    cells = ("len_64_depth_0", "len_64_depth_50", "len_256_depth_0", "mean")
    figure = slice_map(history(*cells), SUBJECT)
    axes, bar = figure.axes
    assert [each.get_text() for each in axes.get_xticklabels()] == ["64", "256"]
    assert [each.get_text() for each in axes.get_yticklabels()] == ["0", "50"]
    shown = axes.images[0].get_array()
    assert shown.tolist()[0] == [0.0, 0.2]
    assert shown[1, 0] == 0.1
    assert np.isnan(shown[1, 1]) or shown.mask[1, 1]
    assert axes.images[0].get_clim() == (0, 1)
    assert axes.get_xlabel() == "length (tokens)"
    assert bar.get_ylabel() == "exact match (share of examples)"


@pytest.mark.parametrize(
    "slices", [("kv_4", "kv_8"), ("kv_4", "kv_8_len_64", "kv_8_len_128"), ("len_4_depth_0",), ()]
)
def test_other_slices_make_no_map(slices):
    assert find_grid(history(*slices)) is None
    assert slice_map(history(*slices), SUBJECT) is None


def test_tokens_are_shown_where_there_is_no_exact_match():
    grid = find_grid(history("kv_4_len_64", "kv_4_len_128", metric="val/accuracy"))
    assert (grid.metric, grid.x, grid.y) == ("val/accuracy", "kv", "len")


def test_the_curves_of_a_grid_are_the_means_over_its_second_number():
    figure = slice_accuracy(
        history("len_64_depth_0", "len_64_depth_50", "len_256_depth_0"), SUBJECT
    )
    left, right = figure.axes
    assert [each.get_label() for each in left.lines] == ["len_64", "len_256"]
    assert left.lines[0].get_ydata()[-1] == pytest.approx(0.05)
    assert left.get_ylabel() == "exact match (share of examples)"
    assert [each.get_width() for each in right.patches] == pytest.approx([0.05, 0.2])


def test_exact_match_is_a_share_and_the_greatest_is_best():
    assert is_share("val/exact/len_64_depth_0")
    assert CompareConfig(metric="val/exact").sense == "maximize"
