"""search.yaml: what it may say, and what is drawn from it."""

import json

import pytest
from optuna.trial import FixedTrial

from statelab.errors import ConfigError, UnknownNameError
from statelab.search.space import Choices, Range, parse_space, read_space
from statelab.search.study import as_overrides

RATES = {"optim.lr": {"low": 1e-4, "high": 1e-1, "log": True}}


@pytest.fixture
def parse(tmp_path):
    def parse(parameters=RATES, **parts):
        return parse_space("mine", {"parameters": parameters, **parts}, tmp_path / "search.yaml")

    return parse


def domains(space):
    return {each.key: each.domain for each in space.parameters}


def test_a_parameter_is_a_list_or_a_range(parse):
    space = parse(
        {
            "write": ["gla", "s4d"],
            "read.gate": {"choices": ["fixed", None, True]},
            "model.head_dim": {"low": 16, "high": 64, "step": 16},
            "optim.lr": {"low": "1e-4", "high": "1e-1", "log": True},
            "model.init_std": {"low": 1, "high": 2, "step": 0.5},
            "data.num_pairs": [[4], [4, 8]],
        }
    )
    assert domains(space) == {
        "model.write.name": Choices(values=("gla", "s4d")),
        "model.read.gate": Choices(values=("fixed", None, True)),
        "model.head_dim": Range(low=16, high=64, step=16),
        "optim.lr": Range(low=1e-4, high=1e-1, log=True),
        "model.init_std": Range(low=1, high=2, step=0.5),
        "data.num_pairs": Choices(values=("[4]", "[4, 8]")),
    }


def test_ranges_of_integers_give_integers_and_all_others_floats(parse):
    space = parse({"a": {"low": 1, "high": 4}, "b": {"low": 1, "high": 4, "step": 0.5}})
    trial = FixedTrial({"a": 3, "b": 3.5})
    assert space.suggest(trial, {}) == {"a": 3, "b": 3.5}
    assert [type(each).__name__ for each in trial.distributions.values()] == [
        "IntDistribution",
        "FloatDistribution",
    ]


def test_a_condition_holds_for_drawn_values_and_for_those_of_the_experiment(parse):
    space = parse(
        {
            "write": ["gla", "s4d"],
            "write.num_modes": {"choices": [16, 32], "when": {"write": "s4d"}},
            "read.gate": {"choices": ["fixed", "per_head"], "when": {"read": ["ccq", "other"]}},
            "read.lambda_init": {"low": 0.1, "high": 0.9, "when": {"read.gate": "fixed"}},
        }
    )

    def drawn(read, **values):
        point = {"model.write.num_modes": 16, "model.read.gate": "fixed"}
        trial = FixedTrial(point | {"model.read.lambda_init": 0.2} | values)
        return [*space.suggest(trial, {"model.read.name": read, "model.write.name": "s4d"})]

    assert drawn("plain", **{"model.write.name": "gla"}) == ["model.write.name"]
    assert drawn("plain", **{"model.write.name": "s4d"}) == [
        "model.write.name",
        "model.write.num_modes",
    ]
    assert drawn("ccq", **{"model.write.name": "gla"}) == [
        "model.write.name",
        "model.read.gate",
        "model.read.lambda_init",
    ]
    per_head = {"model.write.name": "gla", "model.read.gate": "per_head"}
    assert drawn("ccq", **per_head) == ["model.write.name", "model.read.gate"]


def test_examples_have_what_their_conditions_need(parse):
    space = parse(
        {
            "write": ["gla", "s4d"],
            "read": ["plain", "ccq"],
            "read.gate": {"choices": ["fixed", "per_head"], "when": {"read": "ccq"}},
            "read.lambda_init": {"low": 0.1, "high": 0.9, "when": {"read.gate": "fixed"}},
        }
    )
    gate = {"model.read.name": "ccq", "model.read.gate": "fixed"}
    assert space.examples()[4:] == [
        gate,
        gate | {"model.read.gate": "per_head"},
        gate | {"model.read.lambda_init": 0.1},
    ]


def test_values_are_written_as_the_command_line_takes_them():
    values = {"a": None, "b": True, "c": False, "d": 1e-4, "e": "[4, 8]", "f": 2}
    assert as_overrides(values) == ["a=null", "b=true", "c=false", "d=0.0001", "e=[4, 8]", "f=2"]


def test_constraints_compare_sizes_and_keys(parse):
    (bytes_, depth) = parse(
        constraints=["state_bytes <= 65536", " model.num_layers>1 "]
    ).constraints
    assert (str(bytes_), str(depth)) == ("state_bytes <= 65536", "model.num_layers > 1")
    assert bytes_.holds({"state_bytes": 65536})
    assert not bytes_.holds({"state_bytes": 65537})
    assert not depth.holds({"model.num_layers": 1})
    for values in ({"state_bytes_": 1}, {"state_bytes": True}, {"state_bytes": "many"}):
        with pytest.raises(ConfigError, match=r"state_bytes <= 65536: state_bytes is no number"):
            bytes_.holds(values)
    with pytest.raises(ConfigError, match="Did you mean 'state_byte'"):
        bytes_.holds({"state_byte": 1})


def test_points_to_begin_with_are_of_the_space(parse):
    lists = {"data.num_pairs": [[4], [4, 8]], "write": ["gla", "s4d"]}
    space = parse(
        RATES | lists,
        enqueue=[{"optim.lr": "1e-3", "write": "s4d"}, {"data.num_pairs": [4, 8]}],
    )
    assert space.enqueue == (
        {"optim.lr": 1e-3, "model.write.name": "s4d"},
        {"data.num_pairs": "[4, 8]"},
    )


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ([], "must hold a mapping with `parameters"),
        ({"parameters": {}}, "must hold a mapping with `parameters"),
        ({"parameters": []}, "must hold a mapping with `parameters"),
        ({"parameters": ["optim.lr"]}, r"parameters must be a mapping, got \['optim.lr'\]"),
        ({"parameters": RATES, "enque": []}, "unknown part 'enque'. Did you mean 'enqueue'"),
        ({"parameters": RATES, "enqueue": {"optim.lr": 1}}, "enqueue must be a list, got {"),
        ({"parameters": RATES, "enqueue": [3]}, "must be a list of mappings, got 3"),
        ({"parameters": RATES, "enqueue": [{"seed": 3}]}, "enqueue names seed, which is no"),
        ({"parameters": RATES, "enqueue": [{"optim.lr": 1}]}, "has optim.lr=1, which the param"),
        ({"parameters": RATES, "enqueue": [{"optim.lr": "x"}]}, "has optim.lr=x, which the param"),
        ({"parameters": RATES, "constraints": "a <= 1"}, "constraints must be a list, got 'a"),
        ({"parameters": RATES, "constraints": ["a = 1"]}, "'a = 1' must be NAME <= NUMBER"),
        ({"parameters": RATES, "constraints": ["a <= b"]}, "'a <= b' must be NAME <= NUMBER"),
        ({"parameters": RATES, "values": [1]}, r"values must be a mapping, got \[1\]"),
        ({"parameters": RATES, "search": 3}, "search must be a mapping, got 3"),
        (
            {"parameters": {"write": ["a"], "model.write": ["b"]}},
            "model.write is varied twice, as model.write.name too",
        ),
        (
            {"parameters": {"read.gate": {"choices": [1], "when": {"read": "ccq"}}, "read": [1]}},
            "model.read.gate depends on model.read.name, which is drawn later. Put",
        ),
    ],
)
def test_a_space_that_is_wrong_is_refused(tmp_path, given, match):
    with pytest.raises(ConfigError, match=match):
        parse_space("mine", given, tmp_path / "search.yaml")


@pytest.mark.parametrize(
    "given",
    [
        [],
        [1, 1],
        3,
        None,
        {"low": 1},
        {"low": 1, "high": 1},
        {"low": 0, "high": 1, "log": True},
        {"low": 1, "high": 2, "log": True, "step": 0.5},
        {"low": 1, "high": 2, "step": 0},
        {"low": "a", "high": 2},
        {"low": True, "high": 2},
        {"low": 1, "high": [2]},
        {"low": 1, "high": 2, "lo": True},
        {"choices": 3},
        {"choices": [1], "low": 1},
        {"choices": [1], "when": ["read"]},
    ],
    ids=json.dumps,
)
def test_a_domain_that_is_wrong_is_refused(parse, given):
    with pytest.raises(ConfigError, match=r"a must be a list of choices, \{choices: \[\.\.\.\]\}"):
        parse({"a": given})


def test_a_file_is_read_by_name_or_path(away):
    assert read_space("ccq_gates").name == "ccq_gates"
    (away / "mine.yaml").write_text("parameters: {seed: [1, 2]}")
    assert read_space("mine.yaml").name == "mine"
    (away / "twice.yaml").write_text("parameters: {seed: [1, 2], seed: [3]}")
    with pytest.raises(ConfigError, match=r"twice.yaml can't be read: key 'seed' is given twice"):
        read_space("twice.yaml")
    with pytest.raises(UnknownNameError, match=r"search=none.yaml: no such file"):
        read_space("none.yaml")
    with pytest.raises(UnknownNameError, match=r"unknown search 'ccq_gate'. Did you mean 'ccq_g"):
        read_space("ccq_gate")
