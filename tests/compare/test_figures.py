"""Which figures are drawn, what is in them, and that each is drawn both ways."""

import pytest

from statelab.compare.figures import charts, curve_runs
from statelab.compare.table import compare


@pytest.fixture
def drawn(entry, asked):
    def drawn(*runs, histories=None, **given):
        table = compare([entry(*each[:4], **each[4]) for each in runs], asked(**given))
        curves = {run: (histories or {}) for run in curve_runs(table)}
        return charts(table, curves)

    return drawn


def runs(write, read, *values, **options):
    return [(write, read, value, seed, options) for seed, value in enumerate(values)]


def points(chart):
    return {
        " ".join(name): [(each.x, round(each.y, 6)) for each in each_one]
        for name, each_one in chart.series.items()
    }


def test_without_data_there_is_no_figure(drawn):
    assert drawn(*runs("gla", "plain", 0.5, 0.6)) == {}


def test_state_size_makes_a_figure_where_it_varies(drawn):
    found = drawn(*runs("gla", "plain", 0.4, 0.6), *runs("s4d", "plain", 0.2, 0.2))
    assert list(found) == ["against_state"]
    assert points(found["against_state"]) == {
        "gla plain": [(16_392, 0.5)],
        "s4d plain": [(131_080, 0.2)],
    }


def test_rows_of_several_sizes_make_one_line(drawn):
    found = drawn(
        *runs("gla", "plain", 0.4, memory=1000, model__head_dim=8),
        *runs("gla", "plain", 0.6, memory=2000, model__head_dim=16),
        by=("write", "read", "model.head_dim"),
    )
    assert points(found["against_state"]) == {"gla plain": [(1008, 0.4), (2008, 0.6)]}


def test_slices_make_a_figure_by_their_number(drawn):
    slices = {"val/accuracy/kv_16": 0.4, "val/accuracy/kv_4": 0.8, "val/accuracy/all": 0.6}
    found = drawn(*runs("gla", "plain", 0.6, 0.6, metrics=slices))
    assert points(found["against_length"]) == {"gla plain": [(4, 0.8), (16, 0.4)]}


def test_the_loss_against_parameters_has_its_slope(drawn):
    sized = [
        each
        for size in (1000, 10_000, 100_000)
        for each in runs(
            "gla",
            "plain",
            0.5,
            0.5,
            parameters=size,
            model__d_model=size,
            metrics={"val/loss": 8 * size**-0.25},
        )
    ]
    found = drawn(*sized, by=("write", "read", "model.d_model"))
    (name,) = found["loss_against_parameters"].series
    assert name == ("gla", "plain", "slope -0.250 ± 0.000")


def test_learning_curves_have_the_seeds_as_a_band(entry, asked):
    table = compare([entry("gla", "plain", 0.9, seed) for seed in (0, 1)], asked())
    first, second = curve_runs(table)
    nan = float("nan")
    found = charts(table, {first: {1: 0.2, 2: 0.8}, second: {1: 0.4, 2: 1.0, 3: nan}})
    (band,) = found["learning_curves"].series.values()
    assert [(p.x, round(p.y, 6), p.low, p.high) for p in band] == [
        (1, 0.3, 0.2, 0.4),
        (2, 0.9, 0.8, 1.0),
    ]


def test_a_failed_run_has_no_curve(entry, asked):
    done, failed = entry("gla", "plain", 0.9), entry("gla", "plain", 0.1, 1, status="FAILED")
    assert curve_runs(compare([done, failed], asked())) == [done.id]


def test_writes_and_reads_make_a_heat_map(drawn):
    pairs = [("gla", "plain"), ("gla", "ccq"), ("deltanet", "plain")]
    found = drawn(*(each for pair in pairs for each in runs(*pair, 0.4, 0.6)))
    heat = found["write_x_read"]
    assert (heat.rows, heat.columns) == (["deltanet", "gla"], ["ccq", "plain"])
    assert heat.values == [[None, 0.5], [0.5, 0.5]]
    assert heat.texts[0] == ["none", "0.500\n± 1.271"]


def test_learning_rates_make_a_figure_where_they_vary(drawn):
    found = drawn(
        *runs("gla", "plain", 0.4, 0.6, optim__lr=0.1), *runs("gla", "plain", 0.7, optim__lr=0.01)
    )
    assert points(found["lr_sensitivity"]) == {"gla plain": [(0.01, 0.7), (0.1, 0.5)]}


def test_every_figure_is_drawn_both_ways(drawn):
    slices = {"val/accuracy/kv_4": 0.4, "val/accuracy/kv_8": 0.2}
    found = drawn(
        *(
            each
            for pair in (("gla", "plain"), ("gla", "ccq"), ("s4d", "plain"), ("s4d", "ccq"))
            for rate in (0.01, 0.1)
            for each in runs(*pair, 0.4, 0.6, optim__lr=rate, metrics=slices)
        ),
        histories={1: 0.2, 2: 0.4},
    )
    assert set(found) == {
        "against_state",
        "against_length",
        "learning_curves",
        "write_x_read",
        "lr_sensitivity",
    }
    for chart in found.values():
        picture, page = chart.picture(), chart.page()
        picture.canvas.draw()
        assert picture.get_suptitle() == page.layout.title.text == chart.title
        assert picture.axes[0].get_xlabel() == page.layout.xaxis.title.text == chart.x
