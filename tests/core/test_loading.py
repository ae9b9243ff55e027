"""Loading: who wins, what a value means, and the one line on each mistake."""

import itertools
import logging
import re

import pytest
import yaml

from statelab.catalogue import all_keys
from statelab.errors import ConfigError, PluginError, RuleError, UnknownNameError
from statelab.loading import load_config, load_section, resolve, to_dict
from statelab.model.build import build_model
from statelab.pairs import pairs
from statelab.registries import write_rules
from statelab.search.config import SearchConfig
from statelab.values import flatten

BASE = ["write=gla", "read=plain", "data.name=mqar"]


@pytest.fixture
def experiment(away):
    """Write an experiment into the current folder."""

    def write(values, name="toy"):
        folder = away / "experiments" / name
        folder.mkdir(parents=True)
        text = values if isinstance(values, str) else yaml.safe_dump(values)
        (folder / "config.yaml").write_text(text)
        return name

    return write


TOY = {
    "write": "deltanet",
    "read": "plain",
    "data": {"name": "mqar", "batch_size": 7},
    "model": {"d_model": 48, "num_heads": 3, "mixer": {"conv": 3}},
    "optim": {"lr": 0.5, "warmup_steps": 9},
    "arms": {
        "wide": {"model": {"d_model": 96}, "optim.warmup_steps": 8},
        "s4d": {"write": "s4d", "write.num_modes": 12},
    },
}


# Precedence.


def test_a_later_source_wins_and_each_value_says_where_it_is_from(experiment):
    resolved = resolve(experiment(TOY), ["arm=wide", "smoke=true", "optim.lr=0.25"])
    config, origins = resolved.config, resolved.origins
    expected = {
        "optim.weight_decay": (config.optim.weight_decay, 0.1, None),
        "model.mixer.output_norm": (config.model.mixer.output_norm, "rms", "preset deltanet+plain"),
        "model.mixer.conv": (config.model.mixer.conv, 3, "experiment toy"),
        "experiment": (config.experiment, "toy", "experiment toy"),
        "arm": (config.arm, "wide", "command line"),
        "model.d_model": (config.model.d_model, 32, "smoke"),
        "optim.warmup_steps": (config.optim.warmup_steps, 1, "smoke"),
        "optim.lr": (config.optim.lr, 0.25, "command line"),
        "model.vocab_size": (config.model.vocab_size, 8192, "derived"),
    }
    for key, (value, wanted, origin) in expected.items():
        assert (key, value, origins.get(key)) == (key, wanted, origin)


def test_an_arm_wins_over_its_experiment_and_the_command_line_over_both(experiment):
    name = experiment(TOY)
    resolved = resolve(name, ["arm=wide"])
    assert resolved.config.model.d_model == 96
    assert resolved.config.optim.warmup_steps == 8
    assert resolved.origins["model.d_model"] == "arm wide"
    assert load_config(name, ["arm=wide", "model.d_model=24"]).model.d_model == 24
    assert load_config(name).model.d_model == 48


def test_the_command_line_wins_over_smoke():
    config = load_config(None, [*BASE, "smoke=true", "model.d_model=64", "trainer.max_steps=3"])
    assert (config.model.d_model, config.trainer.max_steps) == (64, 3)
    assert config.model.num_layers == 2


@pytest.mark.parametrize("yes", ["true", "True", "yes", "on", "1"])
def test_every_way_to_say_yes_shrinks(yes):
    config = load_config(None, [*BASE, f"smoke={yes}"])
    assert config.smoke
    assert config.model.d_model == 32


@pytest.mark.parametrize("no", ["false", "no", "0"])
def test_every_way_to_say_no_does_not(no):
    config = load_config(None, [*BASE, f"smoke={no}"])
    assert not config.smoke
    assert config.model.d_model == 256


def test_smoke_leaves_named_layers_alone():
    layers = "[memory, attention(window=8)] x 2"
    config = load_config(None, [*BASE, "smoke=true", f"model.layers={layers}"])
    assert config.model.num_layers == 4


def test_smoke_keeps_a_saved_configuration_as_it_is():
    config = load_config(None, [*BASE, "smoke=true", "model.d_model=64"])
    assert load_config(to_dict(config)) == config


def test_what_a_user_says_wins_over_a_preset():
    config = load_config(None, [*BASE, "model.mixer.output_gate=none"])
    assert config.model.mixer.output_gate == "none"
    assert config.model.mixer.output_norm == "rms"


def test_rotary_positions_are_in_every_mixer():
    assert load_config(None, [*BASE, "model.positions=rope"]).model.mixer.rope_base == 10_000.0
    assert load_config(None, BASE).model.mixer.rope_base == 0.0


def test_a_name_of_an_experiment_in_this_folder_comes_before_one_that_is_shipped(experiment):
    assert load_config(experiment(TOY, name="mqar")).data.batch_size == 7


def test_an_experiment_may_be_a_file_or_a_folder(experiment, away):
    experiment(TOY)
    (away / "other.yaml").write_text(yaml.safe_dump(TOY))
    for reference, name in (
        ("experiments/toy", "toy"),
        ("./experiments/toy/config.yaml", "toy"),
        ("other.yaml", "other"),
    ):
        config = load_config(None, [f"experiment={reference}"])
        assert (config.experiment, config.model.d_model) == (name, 48)


# Blocks of plugins.


def test_another_rule_replaces_the_block_and_says_what_it_dropped(experiment, caplog):
    caplog.set_level(logging.INFO, "statelab")
    values = TOY | {"write": {"name": "deltanet", "allow_neg_eigval": True}}
    config = load_config(experiment(values), ["write=gla", "write.gate_rank=4"])
    assert config.model.write.name == "gla"
    assert config.model.write.options.gate_rank == 4
    assert caplog.messages == [
        "model.write=gla: dropped what was set for deltanet: model.write.allow_neg_eigval"
    ]


def test_the_same_rule_again_keeps_its_options(experiment, caplog):
    caplog.set_level(logging.INFO, "statelab")
    values = TOY | {"write": {"name": "deltanet", "allow_neg_eigval": True}}
    assert load_config(experiment(values), ["write=deltanet"]).model.write.options.allow_neg_eigval
    assert caplog.messages == []


def test_an_experiment_may_name_one_of_its_arms_itself(experiment):
    name = experiment({**TOY, "arm": "wide"})
    assert load_config(name).model.d_model == 96
    assert load_config(name, ["arm=s4d"]).arm == "s4d"
    # A printed configuration has the arm's values, and no arms any more.
    printed = {key: value for key, value in TOY.items() if key != "arms"}
    assert load_config(experiment({**printed, "arm": "wide"}, "printed")).arm == "wide"


def test_an_arm_replaces_a_rule_too(experiment):
    config = load_config(experiment(TOY), ["arm=s4d"])
    assert (config.model.write.name, config.model.write.options.num_modes) == ("s4d", 12)


def test_other_data_keep_the_common_keys(experiment, caplog):
    caplog.set_level(logging.INFO, "statelab")
    values = TOY | {"data": {"name": "mqar", "batch_size": 7, "num_pairs": [2]}}
    config = load_config(experiment(values), ["data.name=text"])
    assert (config.data.name, config.data.batch_size) == ("text", 7)
    assert caplog.messages == ["data=text: dropped what was set for mqar: data.num_pairs"]


@pytest.mark.parametrize("block", ["write", "model.write", "model.write.name"])
def test_a_rule_may_be_named_in_three_ways(block):
    config = load_config(None, [f"{block}=s4d", "read=plain", "data.name=mqar"])
    assert config.model.write.name == "s4d"


@pytest.mark.parametrize("key", ["write.gate_rank", "model.write.gate_rank"])
def test_an_option_of_a_rule_may_be_named_in_two_ways(key):
    assert load_config(None, [*BASE, f"{key}=5"]).model.write.options.gate_rank == 5


def test_yaml_may_nest_or_dot(away):
    nested = {"model": {"write": {"name": "gla", "gate_rank": 5}}, "read": {"name": "plain"}}
    dotted = {"write": "gla", "model.write.gate_rank": 5, "model.read": "plain"}
    short = {"write": {"name": "gla", "gate_rank": 5}, "read": "plain"}
    for rules in (nested, dotted, short):
        config = load_config(rules | {"data": {"name": "mqar"}})
        assert config.model.write.options.gate_rank == 5
        assert config.model.read.name == "plain"


LEAKY = '''"""Leaky."""
from dataclasses import dataclass
from statelab.options import Section, option
from statelab.rules import WriteRule, write_rules
from statelab_plugins.memory import GatedMemory

@dataclass(frozen=True, kw_only=True, slots=True)
class LeakyConfig(Section):
    half_life: float = option(64.0, "tokens", above=0)

@write_rules.register("leaky", config=LeakyConfig)
class Leaky(WriteRule):
    """Leaky."""
    def forward(self, x, k, v):
        return GatedMemory(k, v)
'''


@pytest.fixture
def forgotten(monkeypatch):
    """Let the registry forget afterwards what a test registers."""
    monkeypatch.setattr(write_rules, "_plugins", dict(write_rules._plugins))


def test_a_rule_in_a_file_keeps_its_whole_path(away, monkeypatch, forgotten):
    (away / "leaky.py").write_text(LEAKY)
    config = load_config(None, [*BASE, "write=leaky.py:Leaky", "write.half_life=3"])
    assert config.model.write.name == f"{away / 'leaky.py'}:Leaky"
    assert config.model.write.options.half_life == 3.0
    monkeypatch.chdir("/")
    assert load_config(to_dict(config)) == config


# What a value means.


def test_text_is_taken_as_it_stands():
    for text in ("1e3", "true", "null and void", "a: b", "[x", "${oc.env:HOME}", "a=b", " x "):
        config = load_config(None, [*BASE, f"run_dir={text}", f"tags.note={text}"])
        assert config.run_dir == text
        assert config.tags == {"note": text}
        assert load_config(to_dict(config)) == config


def test_values_are_read_by_their_keys_type():
    given = {
        "model.d_model": "32",
        "optim.lr": "1e-2",
        "optim.betas": "0.8,0.9",
        "data.num_pairs": "[2, 4]",
        "data.filler": "random",
        "model.tie_embeddings": "false",
        "trainer.max_tokens": "null",
        "tracking.uri": "null",
        "model.mixer.conv_streams": "q,k",
    }
    config = load_config(None, [*BASE, *(f"{key}={value}" for key, value in given.items())])
    assert config.model.d_model == 32
    assert config.optim.lr == 0.01
    assert config.optim.betas == (0.8, 0.9)
    assert config.data.num_pairs == (2, 4)
    assert config.data.filler == "random"
    assert config.model.tie_embeddings is False
    assert config.trainer.max_tokens is None
    assert config.tracking.uri is None
    assert config.model.mixer.conv_streams == ("q", "k")


def test_one_number_is_a_list_of_one():
    assert load_config(None, [*BASE, "data.num_pairs=3"]).data.num_pairs == (3,)


@pytest.mark.parametrize("name", ["$x", "a//b", "/a", "a/", "x" * 201])
def test_a_tag_that_mlflow_can_not_keep_is_refused(name):
    with pytest.raises(ConfigError, match=rf"tags\.{re.escape(name)}: a tag can't be named so"):
        load_config(None, [*BASE, f"tags.{name}=1"])


def test_tags_are_text_from_every_source(experiment):
    name = experiment(TOY | {"tags": {"number": 1, "who": "me"}})
    config = load_config(name, ["tags.why=because", "tags.who=you"])
    assert config.tags == {"number": "1", "who": "you", "why": "because"}
    again = load_config(to_dict(load_config(None, BASE)), ["tags.late=yes"])
    assert again.tags == {"late": "yes"}


def test_a_configuration_of_any_pair_survives_the_way_through_yaml():
    for write, read in pairs():
        config = load_config(None, [f"write={write}", f"read={read}", "data.name=mqar", "tags.a=1"])
        text = yaml.safe_dump(to_dict(config))
        assert load_config(yaml.safe_load(text)) == config


def test_flat_keys_are_the_nested_ones():
    flat = flatten(to_dict(load_config(None, BASE)))
    assert flat["model.write.name"] == "gla"
    assert flat["model.write.gate_rank"] == 16
    assert flat["optim.lr"] == 1e-3


def test_sizes_that_follow_are_filled_in():
    model = load_config(None, [*BASE, "model.d_model=96", "model.num_heads=6"]).model
    assert (model.head_dim, model.value_dim, model.mlp_hidden, model.num_layers) == (16, 16, 256, 4)
    apart = load_config(None, [*BASE, "model.d_model=96", "model.num_heads=5", "model.head_dim=8"])
    assert (apart.model.head_dim, apart.model.value_dim) == (8, 8)


def test_every_key_that_is_listed_loads_with_its_default():
    for section, keys in all_keys().items():
        block, _, name = section.partition("=")
        write, read = next(
            pair
            for pair in pairs()
            if (block != "model.write.name" or pair[0] == name)
            and (block != "model.read.name" or pair[1] == name)
        )
        data = name if block == "data.name" else "mqar"
        for key in keys:
            if key["default"] == "required" or key["name"] in ("experiment", "arm"):
                continue
            if key["type"] == "{key: value}":
                continue
            given = f"{key['name']}={key['default'].replace(' ', '')}"
            if section == "search":
                load_section(SearchConfig, [given], prefix="search.")
            else:
                load_config(None, [f"write={write}", f"read={read}", f"data.name={data}", given])


# Mistakes.


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("sed", "seed"),
        ("lr", "optim.lr"),
        ("model.d_modl", "model.d_model"),
        ("model.mixer.convv", "model.mixer.conv"),
        ("model.write.gate_rnk", "model.write.gate_rank"),
        ("write.gate_rnk", "model.write.gate_rank"),
        ("model.read.lambda_int", "model.read.lambda_init"),
        ("data.batch_sze", "data.batch_size"),
        ("data.num_pair", "data.num_pairs"),
        ("optim.wieght_decay", "optim.weight_decay"),
        ("optm.lr", "optim.lr"),
        ("trainer.max_stps", "trainer.max_steps"),
        ("tracking.url", "tracking.uri"),
    ],
)
def test_an_unknown_key_gets_the_near_one(key, near):
    with pytest.raises(
        ConfigError, match=rf"unknown key '[\w.]+'\. Did you mean '{re.escape(near)}'\? `statelab k"
    ):
        load_config(None, ["write=gla", "read=ccq", "data.name=mqar", f"{key}=1"])


def test_an_option_of_another_rule_is_unknown():
    with pytest.raises(ConfigError, match=r"unknown key 'model\.write\.num_modes'"):
        load_config(None, [*BASE, "write.num_modes=4"])


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("optim.lr", "-0.001", "> 0, got -0.001"),
        ("optim.lr", "0", "> 0, got 0"),
        ("optim.lr", "nan", "> 0, got nan"),
        ("optim.betas", "0.9,1", r">= 0 and < 1, got 1"),
        ("model.d_model", "0", ">= 1, got 0"),
        ("model.mixer.conv", "-1", ">= 0, got -1"),
        ("model.write.gate_rank", "0", ">= 1, got 0"),
        ("data.batch_size", "0", ">= 1, got 0"),
        ("data.seq_len", "0", ">= 1, got 0"),
        ("data.num_pairs", "4,0", ">= 1, got 0"),
        ("trainer.max_steps", "0", ">= 1, got 0"),
    ],
)
def test_a_value_out_of_range_names_key_range_and_value(key, value, wanted):
    with pytest.raises(ConfigError, match=rf"^{re.escape(key)} must be {wanted}"):
        load_config(None, [*BASE, f"{key}={value}"])


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("model.d_model", "many", "int, got 'many'"),
        ("model.d_model", "1.5", "int, got '1.5'"),
        ("model.d_model", "", "int, got ''"),
        ("optim.lr", "fast", "float, got 'fast'"),
        ("optim.betas", "0.9", r"\[float, float\], got '0.9'"),
        ("model.tie_embeddings", "maybe", "bool, got 'maybe'"),
        ("model.mlp", "big", r"swiglu \| none, got 'big'"),
        ("optim.schedule", "none", r"cosine \| wsd \| constant, got 'none'"),
        ("data.num_pairs", "a,b", r"\[int\], got 'a,b'"),
        ("data.filler", "some", r"zero \| random, got 'some'"),
        ("trainer.max_steps", "[1]", r"int \| null, got '\[1\]'"),
        ("data.num_pairs", "[[4]]", r"\[int\], got '\[\[4\]\]'"),
        ("data.num_pairs", "[{a: 4}]", r"\[int\], got '\[\{a: 4\}\]'"),
        ("model.mixer.conv_streams", "[[q]]", r"\[q \| k \| v\], got '\[\[q\]\]'"),
        ("tags", "x", r"\{key: value\}, got 'x'"),
    ],
)
def test_a_value_of_another_type_names_key_type_and_value(key, value, wanted):
    with pytest.raises(ConfigError, match=rf"^{re.escape(key)} must be {wanted}"):
        load_config(None, [*BASE, f"{key}={value}"])


@pytest.mark.parametrize("key", ["run_dir", "model.layers", "optim.schedule"])
def test_a_list_is_no_text(experiment, key):
    name = experiment({"write": "gla", "read": "plain", "data.name": "mqar", key: ["gla"]})
    with pytest.raises(ConfigError, match=rf"^{key} must be .*, got \['gla'\]"):
        load_config(name)


@pytest.mark.parametrize("value", [None, 3, "adam", [1, 2]])
@pytest.mark.parametrize("section", ["model", "model.mixer", "optim", "trainer", "tracking"])
def test_a_value_in_the_place_of_a_section_gets_a_key_of_it(experiment, section, value):
    name = experiment({"write": "gla", "read": "plain", "data.name": "mqar", section: value})
    message = rf"^{section} is a section: give a key of it, such as {section}\.\w+"
    with pytest.raises(ConfigError, match=message):
        load_config(name)


def test_a_value_that_is_no_yaml_is_refused():
    with pytest.raises(ConfigError, match=r"model\.d_model=\[ can't be read: it is no YAML value"):
        load_config(None, [*BASE, "model.d_model=["])


def test_a_message_of_a_section_keeps_its_own_keys():
    with pytest.raises(ConfigError, match=r"^data\.seq_len=8 has no room for data\.num_pairs=4"):
        load_config(None, [*BASE, "data.seq_len=8"])


@pytest.mark.parametrize("given", ["gla", "=gla", ""])
def test_an_argument_without_a_key_is_refused(given):
    with pytest.raises(ConfigError, match=rf"'{given}' is no key=value\. Write, for example"):
        load_config(None, [given])


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("write", r"model\.write\.name is required: say write=NAME, one of .*gla"),
        ("read", r"model\.read\.name is required: say read=NAME, one of .*plain"),
        ("data.name", r"data\.name is required: say data\.name=NAME, one of .*mqar"),
    ],
)
def test_what_has_no_default_is_asked_for(missing, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, [each for each in BASE if not each.startswith(f"{missing}=")])


def test_a_rule_without_a_default_for_an_option_asks_for_it(away, forgotten):
    required = LEAKY.replace('option(64.0, "tokens", above=0)', 'option(doc="tokens")')
    (away / "strict.py").write_text(required)
    with pytest.raises(
        ConfigError, match=r"model\.write\.half_life is required: say model\.write\.half_life=VALUE"
    ):
        load_config(None, [*BASE, "write=strict.py:Leaky"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("write=delta_net", r"unknown write rule 'delta_net'\. Did you mean 'deltanet'\?"),
        ("read=plane", r"unknown read rule 'plane'\. Did you mean 'plain'\?"),
        ("data.name=mqqr", r"unknown data module 'mqqr'\. Did you mean 'mqar'\?"),
        ("experiment=mqr", r"unknown experiment 'mqr'\. Did you mean 'mqar'\? There are: .*text"),
        ("experiment=no/such.yaml", r"experiment=no/such\.yaml: no such file"),
    ],
)
def test_an_unknown_name_gets_the_near_one(given, message):
    with pytest.raises(UnknownNameError, match=message):
        load_config(None, [*BASE, given])


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(PluginError, match=r"'gone\.py:Rule' can't be loaded: FileNotFoundError"):
        load_config(None, [*BASE, "write=gone.py:Rule"])


def test_an_unknown_arm_gets_the_near_one(experiment):
    with pytest.raises(
        UnknownNameError,
        match=r"experiment 'toy' has no arm 'wid'\. Did you mean 'wide'\? Its arms: s4d, wide\.",
    ):
        load_config(experiment(TOY), ["arm=wid"])


def test_an_arm_without_an_experiment_is_refused():
    with pytest.raises(ConfigError, match=r"arm=wide needs an experiment: experiment=NAME"):
        load_config(None, [*BASE, "arm=wide"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("write: [", r"config\.yaml can't be read: .*line 1"),
        ("model: &m\n  read: *m", r"config\.yaml can't be read: Circular"),
        ("model: " + "[" * 3000, r"config\.yaml can't be read: "),
        ("write: gla\nwrite: kda", r"yaml can't be read: key 'write' is given twice .*line 2"),
        ("optim: {lr: 1}\nread: plain\noptim: {}", r"key 'optim' is given twice .*line 3"),
        ("optim: {lr: 1, lr: 2}", r"key 'lr' is given twice .*line 1"),
        ("- write", r"config\.yaml must hold a mapping of keys, got list"),
        ("arms: [a]", r"config\.yaml: arms must map names to keys"),
        ("arms: {a: 1}", r"config\.yaml: arms must map names to keys"),
    ],
)
def test_a_broken_experiment_file_is_named(experiment, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(experiment(text))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_is_named(experiment, away):
    experiment("")
    (away / "experiments/toy/config.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"config\.yaml can't be read: "):
        load_config("toy")


def test_heads_that_do_not_divide_get_two_numbers_that_do():
    with pytest.raises(
        ConfigError,
        match=r"model\.num_heads=5 must divide model\.d_model=128; try 4 or 8, or say model\.head",
    ):
        load_config(None, [*BASE, "model.d_model=128", "model.num_heads=5"])


def test_layers_that_do_not_divide_are_refused():
    with pytest.raises(ConfigError, match=r"model\.num_layers=3 is no multiple of the 2 layers"):
        load_config(None, [*BASE, "model.layers=memory x 2", "model.num_layers=3"])


def test_a_vocabulary_smaller_than_the_datas_is_refused():
    with pytest.raises(ConfigError, match=r"model\.vocab_size=9 is less than the data's 8192"):
        load_config(None, [*BASE, "model.vocab_size=9"])
    assert load_config(None, [*BASE, "model.vocab_size=9000"]).model.vocab_size == 9000


@pytest.mark.parametrize(
    ("write", "read"),
    [("kv", "plain"), ("kv", "ccq"), ("kv", "interdomain"), ("gla", "softmax"), ("s4d", "softmax")],
)
def test_a_pair_without_a_meaning_lists_those_of_either_rule_that_have_one(write, read):
    with pytest.raises(
        RuleError, match=rf"read rule '{read}' can't read what '{write}' writes: it requires "
    ) as caught:
        load_config(None, [f"write={write}", f"read={read}", "data.name=mqar"])
    works = str(caught.value).partition("Pairs that work: ")[2]
    assert works.removesuffix(".").split(", ") == [
        f"{a}+{b}" for a, b in pairs() if a == write or b == read
    ]


def test_all_memories_go_with_all_linear_reads():
    writes = ("linear", "gla", "deltanet", "gated_deltanet", "s4d")
    expected = {*itertools.product(writes, ("plain", "ccq", "interdomain")), ("kv", "softmax")}
    assert expected <= set(pairs())


@pytest.mark.parametrize("given", ["activation=none", "qk_norm=none"])
def test_a_mixer_that_a_read_rule_is_not_defined_for_is_refused(given):
    with pytest.raises(
        RuleError, match=rf"model\.mixer\.{given}: read rule 'interdomain' is not defined without"
    ):
        load_config(
            None, ["write=gla", "read=interdomain", "data.name=mqar", f"model.mixer.{given}"]
        )


def test_options_that_make_no_sense_together_are_refused():
    with pytest.raises(RuleError, match=r"model\.read\.statistics=written .* that of S4D isn't"):
        load_config(None, ["write=s4d", "read=ccq", "data.name=mqar", "read.statistics=written"])
    with pytest.raises(RuleError, match=r"model\.mixer\.output_norm=none: the memory of Linear"):
        load_config(
            None,
            ["write=linear", "read=interdomain", "data.name=mqar", "model.mixer.output_norm=none"],
        )


def test_streams_that_there_are_not_are_refused():
    message = r"^model\.mixer\.conv_streams must be \[q \| k \| v\], got 'q,x'"
    with pytest.raises(ConfigError, match=message):
        load_config(None, [*BASE, "model.mixer.conv=4", "model.mixer.conv_streams=q,x"])


def test_an_odd_head_can_not_be_rotated():
    config = load_config(None, [*BASE, "model.head_dim=5", "model.positions=rope"])
    with pytest.raises(ConfigError, match=r"model\.head_dim=5 is odd, and the rotary embedding"):
        build_model(config, device="meta")


def test_parameters_that_bf16_would_ruin_are_kept_from_it(toy_config):
    with pytest.raises(RuleError, match="bf16-true would round the parameters of 's4d' away"):
        toy_config("write=s4d", "trainer.precision=bf16-true")
    assert toy_config("write=s4d", "trainer.precision=bf16-mixed").model.write.name == "s4d"
    assert toy_config("write=gla", "trainer.precision=bf16-true").model.write.name == "gla"
