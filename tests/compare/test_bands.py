"""`statelab eval experiment=NAME`: runs of a store beside the figures that are expected."""

import json

import pytest
import yaml

from statelab.errors import ConfigError
from statelab.expect import expectations
from statelab.experiment import experiment_names
from statelab.loading import load_config, to_dict
from statelab.values import flatten

METRIC, SOURCE = "val/accuracy", "a paper"


@pytest.fixture
def expect(away):
    """Write the experiment `toy` with such expectations."""

    def write(*entries, **values):
        file = away / "experiments/toy/config.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        toy = {
            "write": "gla",
            "read": "plain",
            "data": {"name": "mqar", "seq_len": 16},
            "optim": {"lr": 0.01},
            "trainer": {"max_steps": 100},
            "arms": {"a": {}, "wide": {"model": {"d_model": 64}}},
            **values,
        }
        file.write_text(yaml.safe_dump(toy | {"expect": [*entries]}))

    return write


@pytest.fixture
def ran(log):
    """Log a finished run of `toy` with its whole configuration."""

    def ran(accuracy, *overrides, status="FINISHED", metric=METRIC):
        config = load_config("toy", overrides)
        keys = {
            key.replace(".", "__"): value if isinstance(value, str) else json.dumps(value)
            for key, value in flatten(to_dict(config)).items()
            if key not in ("seed", "experiment", "model.write.name", "model.read.name")
        }
        rules = config.model.write.name, config.model.read.name
        return log(*rules, {metric: [accuracy]}, config.seed, status=status, **keys)

    return ran


def entry(low=0.9, high=1.0, published=0.95, metric=METRIC, source=SOURCE, **more):
    return {"metric": metric, "band": [low, high], "published": published, "source": source, **more}


def judged(statelab, *arguments):
    status, out, err = statelab("eval", "experiment=toy", *arguments, "--json")
    assert out, err
    return status, json.loads(out)


def test_the_best_learning_rate_is_judged_by_its_mean_over_seeds(statelab, expect, ran):
    expect(entry(where={"write": "gla"}))
    for seed, accuracy in enumerate((0.92, 0.96)):
        ran(accuracy, f"seed={seed}", "optim.lr=0.003")
        ran(accuracy - 0.5, f"seed={seed}", "optim.lr=0.01")
        ran(accuracy - 0.6, f"seed={seed}", "optim.lr=0.03")
    status, found = judged(statelab)
    [verdict] = found["verdicts"]
    assert (status, verdict["pass"]) == (0, True)
    assert verdict["measured"] == pytest.approx(0.94)
    assert verdict["how"] == "2 seeds, optim.lr=0.003"
    assert len(verdict["runs"]) == 2
    assert "the best optim.lr of gla+plain, 0.003, is at the edge" in found["notes"][0]


def test_a_table_ends_the_command(statelab, expect, ran):
    expect(entry(), entry(low=0.0, high=0.3, published=None, where={"write": "s4d"}))
    ran(0.93)
    ran(0.5, "write=s4d")
    status, out, _ = statelab("eval", "experiment=toy")
    lines = [line.split() for line in out.splitlines()]
    assert status == 1
    assert lines[0][:6] == ["metric", "where", "published", "measured", "band", "pass"]
    assert "0.95 0.9300 0.9 ... 1 yes 1 seed, optim.lr=0.01 a paper" in " ".join(lines[1])
    assert "write=s4d - 0.5000 0 ... 0.3 NO" in " ".join(lines[2])


def test_an_expectation_without_a_run_fails_and_names_the_command(statelab, expect, run_dir):
    expect(entry(where={"write": "deltanet", "arm": "wide", "optim.betas": [0.9, 0.99]}))
    status, out, _ = statelab("eval", "experiment=toy")
    assert status == 1
    assert "no run" in out
    command = out.splitlines()[-1]
    wanted = "statelab train experiment=toy arm=wide 'optim.betas=[0.9, 0.99]' write=deltanet"
    assert command == wanted


def test_only_finished_runs_of_the_published_setting_count(statelab, expect, ran):
    expect(entry())
    ran(0.99, status="FAILED")
    ran(0.99, "smoke=true")
    ran(0.97, "trainer.max_steps=50")
    status, found = judged(statelab)
    assert (status, found["verdicts"][0]["measured"]) == (1, None)
    assert found["notes"] == ["Left out 1 finished run of another setting: trainer.max_steps=50."]
    status, found = judged(statelab, "trainer.max_steps=50")
    assert (status, found["verdicts"][0]["measured"]) == (0, 0.97)
    assert found["notes"] == [
        "Judged are runs with trainer.max_steps=50, which is not the published setting."
    ]


def test_arguments_choose_expectations(statelab, expect, ran):
    expect(entry(where={"write": "gla"}), entry(where={"write": "deltanet", "read": "ccq"}))
    ran(0.95, "write=gla")
    assert judged(statelab)[0] == 1
    status, found = judged(statelab, "write=gla")
    assert (status, len(found["verdicts"]), found["notes"]) == (0, 1, [])
    status, _, err = statelab("eval", "experiment=toy", "write=s4d")
    assert status == 2
    assert "none of the 2 expectations of experiment 'toy' has write=s4d." in err


def test_an_order_is_a_difference_in_a_band(statelab, expect, ran):
    order = entry(0.0, 1.0, 0.1, where={"write": "deltanet"}, minus={"write": "gla"})
    expect(order)
    ran(0.9, "write=deltanet")
    status, found = judged(statelab)
    assert status == 1
    assert "write=gla" in found["verdicts"][0]["command"]
    ran(0.7, "write=gla")
    status, found = judged(statelab)
    assert (status, found["verdicts"][0]["measured"]) == (0, pytest.approx(0.2))
    ran(0.95, "write=gla", "optim.lr=0.02")
    assert judged(statelab)[0] == 1


def test_a_metric_of_another_kind_says_which_is_best(statelab, expect, ran):
    name = "length/far"
    expect(entry(0, 2, 1, metric=name))
    ran(1.5, metric=name)
    status, _, err = statelab("eval", "experiment=toy")
    assert status == 2
    assert "direction=minimize or direction=maximize" in err
    expect(entry(0, 2, 1, metric=name, direction="minimize"))
    ran(9.0, "optim.lr=0.1", metric=name)
    assert judged(statelab)[0] == 0


def test_an_expectation_is_no_part_of_the_configuration(expect):
    expect(entry())
    assert "expect" not in to_dict(load_config("toy"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("val/accuracy", "it must be a mapping, got 'val/accuracy'"),
        (entry(bnd=[0, 1]), "unknown part 'bnd'. Did you mean 'band'?"),
        ({"metric": METRIC, "band": [0, 1]}, "source is lacking. Each has metric, band, source"),
        (entry(metric="accuracy"), "metric must be a name such as val/accuracy, got 'accuracy'"),
        (entry(metric="val//accuracy"), "metric must be a name such as val/accuracy"),
        (entry() | {"band": 0.9}, r"band must be [LEAST, GREATEST], got 0.9"),
        (entry() | {"band": [0, True]}, r"band must be [LEAST, GREATEST]"),
        (entry(low=1, high=0.9), "band=[1, 0.9] is empty"),
        (entry(published="96 %"), "published must be a number, got '96 %'"),
        (entry(source=" "), "source must say where the figure is from"),
        (entry(direction="up"), "direction must be minimize or maximize, got 'up'"),
        (entry(where="write=gla"), "where must map keys to values, got 'write=gla'"),
        (entry(where={"optim.lrr": 1}), "unknown key 'optim.lrr'. Did you mean 'optim.lr'?"),
        (entry(where={"write": "gal"}), "unknown write rule 'gal'. Did you mean 'gla'?"),
        (entry(where={"arm": "b"}), "experiment 'toy' has no arm 'b'"),
        (entry(minus={"optim.lr": -1}), "optim.lr must be > 0, got -1"),
    ],
    ids=str,
)
def test_a_wrong_expectation_is_said_in_one_line(statelab, expect, wrong, message):
    expect(entry(), wrong)
    status, out, err = statelab("eval", "experiment=toy")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "experiment 'toy', expectation 2: " in err
    assert message in err


def test_mistakes_of_the_command_are_named(statelab, expect):
    expect(expect=3)
    for arguments, message in (
        (("experiment=demo",), "experiment 'demo' expects nothing: its file has no list `expect:`"),
        (("experiment=toy", "run=3f"), "judges what runs logged; leave run= out"),
        (("experiment=toi",), "unknown experiment 'toi'"),
    ):
        status, _, err = statelab("eval", *arguments)
        assert status == 2
        assert message in err


def test_a_list_is_wanted(away):
    file = away / "mine.yaml"
    file.write_text("expect: 3")
    with pytest.raises(ConfigError, match="expect must be a list, got 3"):
        expectations(str(file))


@pytest.mark.parametrize("name", experiment_names())
def test_what_the_experiments_expect_can_be_read(name):
    for each in expectations(name):
        assert each.low <= each.high
        assert each.source


@pytest.mark.slow
def test_the_evaluation_of_a_run_ends_with_what_is_expected_of_it(statelab, expect, toy):
    values = dict(word.split("=", 1) for word in toy())
    expect(
        entry(0.0, 1.0, where={"write": "gla"}),
        entry(where={"write": "s4d"}),
        **{key: yaml.safe_load(value) for key, value in values.items() if key[:4] != "data"},
        data={key[5:]: yaml.safe_load(v) for key, v in values.items() if key[:4] == "data"},
        arms={},
    )
    _, out, _ = statelab("train", "experiment=toy", "--json")
    run = json.loads(out.splitlines()[-1])["run_id"]
    status, out, _ = statelab("eval", f"run={run}", "--json")
    [verdict] = json.loads(out)["expected"]
    assert (status, verdict["pass"]) == (0, True)
    assert verdict["measured"] == json.loads(out)["metrics"]["val/accuracy"]
    status, out, _ = statelab("eval", f"run={run}")
    assert out.splitlines()[-1].split()[:3] == ["val/accuracy", "write=gla", "0.95"]
    assert (
        json.loads(statelab("eval", f"run={run}", "data.num_val=4", "--json")[1])["expected"] == []
    )
    assert judged(statelab, "write=gla")[0] == 0
