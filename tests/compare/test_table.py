"""The table: what is put together, what is kept apart, and what is said of it."""

import pytest

from statelab.compare.equal_size import split_by_size
from statelab.compare.notes import notes
from statelab.compare.table import compare
from statelab.errors import ConfigError


@pytest.fixture
def table(entry, asked):
    """Compare runs given as (write, read, value, seed, options)."""

    def table(*runs, **given):
        entries = [entry(*each[:4], **(each[4] if len(each) > 4 else {})) for each in runs]
        return compare(entries, asked(**given))

    return table


def seeds(write, read, *values, **options):
    return [(write, read, value, seed, options) for seed, value in enumerate(values)]


def row(found, name):
    (only,) = (each for each in found.rows if each.name == name)
    return only


def said(found):
    return "\n".join(notes(found))


def test_seeds_are_put_together_and_the_best_row_comes_first(table):
    found = table(*seeds("gla", "plain", 0.5, 0.6, 0.7), *seeds("gla", "ccq", 0.8, 0.9, 1.0))
    assert [each.name for each in found.rows] == ["gla+ccq", "gla+plain"]
    assert row(found, "gla+plain").summary.center == pytest.approx(0.6)
    assert row(found, "gla+plain").summary.count == 3
    assert "val/accuracy: the last value of each run; the greatest is best" in said(found)
    assert "95% interval by Student's t" in said(found)


def test_of_a_loss_the_least_is_best(table):
    runs = [*seeds("gla", "plain", 2.0, 2.1), *seeds("gla", "ccq", 1.0, 1.1)]
    assert table(*runs, metric="val/loss").rows[0].name == "gla+ccq"
    turned = table(*runs, metric="val/loss", direction="maximize")
    assert turned.rows[0].name == "gla+plain"


def test_one_seed_has_no_interval_which_is_said(table):
    found = table(*seeds("gla", "plain", 0.5), *seeds("gla", "ccq", 0.8, 0.9))
    assert row(found, "gla+plain").summary.half is None
    assert "One seed gives no interval: gla+plain." in said(found)


def test_seeds_that_end_alike_are_told_of(table):
    found = table(*seeds("gla", "plain", 0.0, 0.0), *seeds("gla", "ccq", 0.8, 0.9))
    assert "that their interval says little: gla+plain." in said(found)


def test_a_missing_seed_is_named(table):
    found = table(*seeds("gla", "plain", 0.5, 0.6, 0.7), *seeds("gla", "ccq", 0.8, 0.9))
    assert row(found, "gla+ccq").missing == ("2",)
    assert "gla+ccq lacks seed 2, which other rows have." in said(found)


@pytest.mark.parametrize(
    ("value", "status", "why"),
    [
        (float("nan"), "FINISHED", "FINISHED with NaN"),
        (1.797e308, "FINISHED", "FINISHED with an infinite value"),
        (None, "FINISHED", "FINISHED without that metric"),
        (0.1, "FAILED", "FAILED: loss was no number"),
        (0.1, "KILLED", "KILLED: loss was no number"),
    ],
)
def test_a_failed_run_is_shown_and_in_no_mean(table, value, status, why):
    reason = "" if status == "FINISHED" else "loss was no number"
    found = table(
        *seeds("gla", "plain", 0.5, 0.7),
        ("gla", "plain", value, 2, {"status": status, "reason": reason}),
    )
    (only,) = found.rows
    assert only.summary.center == pytest.approx(0.6)
    assert only.missing == ()
    assert f"Failed, and in no mean: gla+plain seed 2 (00000000: {why})." in said(found)


def test_a_row_of_failures_stands_last(table):
    found = table(
        *seeds("gla", "plain", float("nan"), float("nan")), *seeds("gla", "ccq", 0.1, 0.2)
    )
    assert [each.name for each in found.rows] == ["gla+ccq", "gla+plain"]
    assert found.rows[1].summary is None


def test_an_unfinished_run_is_named(table):
    found = table(*seeds("gla", "plain", 0.5, 0.7), ("gla", "plain", 0.9, 2, {"status": "RUNNING"}))
    assert found.rows[0].summary.count == 2
    assert "Unfinished, and in no mean: gla+plain seed 2 (00000000)." in said(found)


def test_a_run_that_was_repeated_counts_once(table):
    found = table(
        ("gla", "plain", 0.5, 0),
        ("gla", "plain", 0.9, 0),
        ("gla", "plain", None, 0, {"status": "FAILED"}),
    )
    assert found.rows[0].best.values == {"0": 0.9}
    assert len(found.repeated) == 2
    assert "the last one counts: 00000000, 00000000." in said(found)


def grid(write, read, **by_rate):
    return [
        each
        for rate, values in by_rate.items()
        for each in seeds(
            write, read, *values, optim__lr=rate.removeprefix("lr_").replace("_", ".")
        )
    ]


def test_each_row_has_its_own_best_rate(table):
    found = table(
        *grid("gla", "plain", lr_0_001=[0.2, 0.3], lr_0_01=[0.8, 0.9], lr_0_1=[0.5, 0.6]),
        *grid("gla", "ccq", lr_0_001=[0.7, 0.9], lr_0_01=[0.1, 0.2], lr_0_1=[0.1, 0.1]),
    )
    assert row(found, "gla+plain").best.setting == ("0.01",)
    assert row(found, "gla+plain").tried(0) == ["0.001", "0.01", "0.1"]
    assert row(found, "gla+plain").edges == ()
    assert row(found, "gla+ccq").edges == ("optim.lr",)
    assert (
        "Warning: the best optim.lr of gla+ccq, 0.001, is at the edge of what was tried "
        "(0.001, 0.01, 0.1)." in said(found)
    )


def test_a_rate_that_failed_is_tried_too(table):
    """So the best one below it is at no edge."""
    nan = float("nan")
    runs = grid("gla", "plain", lr_0_001=[0.2, 0.3], lr_0_01=[0.8, 0.9], lr_0_1=[nan, 0.99])
    (only,) = table(*runs).rows
    assert (only.best.setting, only.edges) == (("0.01",), ())


def test_rows_with_other_rates_are_warned_of(table):
    found = table(
        *grid("gla", "plain", lr_0_001=[0.2], lr_0_01=[0.8]), *grid("gla", "ccq", lr_0_01=[0.5])
    )
    assert "Warning: rows were tried with other values of optim.lr." in said(found)


def test_a_rate_that_was_not_varied_is_said(table):
    found = table(*seeds("gla", "plain", 0.5, 0.6))
    assert "optim.lr was not varied: 0.01." in said(found)


def test_a_row_is_paired_with_its_baseline_seed_by_seed(table):
    found = table(
        *seeds("gla", "plain", 0.1, 0.5, 0.9),
        *seeds("gla", "ccq", 0.2, 0.6, 1.0),
        *seeds("deltanet", "plain", 0.3, 0.3, 0.3),
        *seeds("deltanet", "ccq", 0.4, 0.5),
        baseline="read:plain",
    )
    ccq = row(found, "gla+ccq")
    assert ccq.baseline == ("gla", "plain")
    assert ccq.difference.center == pytest.approx(0.1)
    assert ccq.difference.half == pytest.approx(0, abs=1e-12)
    assert ccq.summary.half > 0.9
    assert row(found, "gla+plain").difference is None
    delta = row(found, "deltanet+ccq")
    assert (delta.baseline, delta.difference.count) == (("deltanet", "plain"), 2)
    assert "deltanet+ccq is compared with the baseline without seed 2." in said(found)


def test_one_row_may_be_the_baseline_of_all(table):
    found = table(
        *seeds("gla", "plain", 0.1, 0.2),
        *seeds("deltanet", "ccq", 0.4, 0.5),
        baseline="write:gla+read:plain",
    )
    assert row(found, "deltanet+ccq").difference.center == pytest.approx(0.3)


def test_a_row_without_a_baseline_is_named(table):
    found = table(
        *seeds("gla", "plain", 0.1, 0.2),
        *seeds("deltanet", "ccq", 0.4, 0.5),
        baseline="read:plain",
    )
    assert row(found, "deltanet+ccq").difference is None
    assert "deltanet+ccq shares no seed with deltanet+plain, its baseline." in said(found)


def test_equal_size_leaves_out_what_is_larger_and_says_so(table):
    found = table(
        *seeds("gla", "plain", 0.1, 0.2),
        *seeds("deltanet", "plain", 0.4, 0.5),
        *seeds("s4d", "plain", 0.6, 0.7),
        at="memory_bytes",
    )
    assert {each.name for each in found.rows} == {"gla+plain", "deltanet+plain"}
    assert "Compared are runs whose memory_bytes differ by 0.05 at most." in said(found)
    assert "with nothing of their size to compare: s4d+plain (131,072)." in said(found)


def test_rows_of_several_sizes_are_compared_at_each(table):
    small, large = {"memory": 1000, "model__head_dim": 8}, {"memory": 2000, "model__head_dim": 16}
    found = table(
        *seeds("gla", "plain", 0.1, 0.2, **small),
        *seeds("deltanet", "plain", 0.3, 0.4, **small),
        *seeds("gla", "plain", 0.5, 0.6, **large),
        *seeds("deltanet", "plain", 0.7, 0.8, **large),
        at="memory_bytes",
        baseline="write:gla",
    )
    assert [(each.sizes[0], each.name) for each in found.rows] == [
        (1000, "deltanet+plain"),
        (1000, "gla+plain"),
        (2000, "deltanet+plain"),
        (2000, "gla+plain"),
    ]
    assert found.rows[2].difference.center == pytest.approx(0.2)


@pytest.mark.parametrize("tolerance", [0.0, 0.05, 0.3, 1.0])
def test_no_group_holds_sizes_further_apart_than_the_tolerance(entry, tolerance):
    sizes = [1000, 1049, 1050, 1051, 1099, 1100, 1300, 1301, 1999, 2000, 2001, 9000]
    runs = [
        entry(write, "plain", 0.5, memory=size)
        for size in sizes
        for write in (("gla", "s4d") if size != 9000 else ("gla",))
    ]
    groups, left = split_by_size(
        runs, "memory_bytes", tolerance, lambda run: run.params["model.write.name"]
    )
    assert sum(map(len, groups)) + len(left) == len(runs)
    assert 9000 in {run.sizes["memory_bytes"] for run in left}
    for group in groups:
        found = [run.sizes["memory_bytes"] for run in group]
        assert max(found) <= min(found) * (1 + tolerance)
        assert len({run.params["model.write.name"] for run in group}) == 2


def test_sizes_that_differ_are_warned_of(table):
    found = table(*seeds("gla", "plain", 0.1, 0.2), *seeds("s4d", "plain", 0.6, 0.7))
    assert "memory_bytes differ, from 16,384 to 131,072" in said(found)


def test_keys_beside_the_rules_that_differ_between_rows_are_warned_of(table):
    found = table(
        *seeds("gla", "plain", 0.1, 0.2, trainer__max_steps=100, trainer__val_every=10),
        *seeds("gla", "ccq", 0.6, 0.7, trainer__max_steps=300, trainer__val_every=50),
    )
    assert "Warning: rows also differ in trainer.max_steps: 100, 300." in said(found)
    assert "val_every" not in said(found)


def test_runs_of_a_row_that_differ_are_refused(table):
    runs = [
        *seeds("gla", "plain", 0.1, trainer__max_steps=100),
        *seeds("gla", "plain", 0.2, trainer__max_steps=300),
    ]
    with pytest.raises(ConfigError, match=r"gla\+plain differ in trainer.max_steps: 100, 300"):
        table(*runs)
    assert len(table(*runs, by=("write", "read", "trainer.max_steps")).rows) == 2
    assert len(table(*runs, over=("trainer.max_steps",)).rows) == 1


def test_the_best_read_rule_may_be_looked_for_with_its_own_options(table):
    runs = [
        *seeds("gla", "plain", 0.1, 0.2, model__mixer__conv=0),
        *seeds("gla", "ccq", 0.3, 0.4, model__read__order=1, model__mixer__conv=4),
    ]
    (only,) = table(*runs, by=("write",), over=("read",)).rows
    assert (only.best.setting, only.edges) == (("ccq",), ())
    with pytest.raises(ConfigError, match=r"gla differ in model.read.name: ccq, plain \(and in"):
        table(*runs, by=("write",))
    mixed = seeds("gla", "ccq", 0.5, model__read__order=2, model__mixer__conv=4)
    with pytest.raises(ConfigError, match=r"gla differ in model.read.order: 1, 2"):
        table(*runs, *mixed, by=("write",), over=("read",))


def test_nothing_of_equal_size_is_refused(table):
    runs = [*seeds("gla", "plain", 0.1), *seeds("s4d", "plain", 0.2)]
    with pytest.raises(ConfigError, match=r"at=memory_bytes tolerance=0.05: no two rows"):
        table(*runs, at="memory_bytes")


def test_a_baseline_that_is_not_there_is_refused(table):
    with pytest.raises(ConfigError, match=r"baseline=read:plian: there is no such row"):
        table(*seeds("gla", "plain", 0.1), baseline="read:plian")


@pytest.mark.parametrize("baseline", ["plain", "data:mqar", "read:", "read:plain+gla"])
def test_a_baseline_that_can_not_be_read_is_refused(table, baseline):
    with pytest.raises(ConfigError, match="must be KEY:VALUE, or several joined by"):
        table(*seeds("gla", "plain", 0.1), baseline=baseline)


def test_a_metric_of_unknown_sense_asks_for_it(table):
    with pytest.raises(ConfigError, match="is the least best, or the greatest"):
        table(*seeds("gla", "plain", 0.1), metric="perf/tokens_per_second")


def test_rows_need_keys_other_than_the_seed(asked):
    with pytest.raises(ConfigError, match="by= is empty"):
        asked(by=())
    with pytest.raises(ConfigError, match="by=write,seed can't have seed"):
        asked(by=("write", "seed"))
    with pytest.raises(ConfigError, match=r"runs=3f,\.\./x: an id is made of letters and digits"):
        asked(runs=("3f", "../x"))
