"""Write rules one by one: presets, starts, options, and what is refused."""

import math

import pytest
import torch
from torch.testing import assert_close

from statelab.errors import ConfigError, RuleError
from statelab.model.build import build_model
from statelab.rules import (
    MixerDims,
    ParamOptions,
    WriteRule,
    make_memory,
    read_rules,
    write_rules,
)
from statelab_plugins.memory import GatedMemory
from statelab_plugins.write.gla import GLAConfig
from statelab_plugins.write.s4d import S4DConfig

PLAIN, CCQ, INTERDOMAIN, SOFTMAX = (
    read_rules.get(name).cls for name in ("plain", "ccq", "interdomain", "softmax")
)
DELTA = {
    "conv": 4,
    "conv_streams": ("q", "k", "v"),
    "activation": "silu",
    "qk_norm": "l2",
    "output_norm": "rms",
}
GLA = {"query_scale": True, "output_norm": "rms", "output_gate": "silu"}
FEATURES = {"conv": 4, "conv_streams": ("q", "k")}


@pytest.mark.parametrize(
    ("write", "read", "preset"),
    [
        ("linear", PLAIN, {"output_norm": "rms"}),
        ("linear", INTERDOMAIN, {"output_norm": "rms", **FEATURES}),
        ("gla", PLAIN, GLA),
        ("gla", CCQ, GLA),
        ("gla", INTERDOMAIN, {**GLA, **FEATURES}),
        ("deltanet", PLAIN, DELTA),
        ("deltanet", INTERDOMAIN, DELTA),
        ("gated_deltanet", CCQ, {**DELTA, "output_gate": "silu"}),
        ("s4d", PLAIN, {"conv": 4, "conv_streams": ("k", "v")}),
        ("s4d", CCQ, {"conv": 4, "conv_streams": ("q", "k", "v")}),
        (
            "s4d",
            INTERDOMAIN,
            {
                "rope_base": 10_000.0,
                "activation": "silu",
                "qk_norm": "l2",
                "query_scale": False,
                **FEATURES,
            },
        ),
        ("kv", SOFTMAX, {"rope_base": 10_000.0}),
    ],
)
def test_presets_are_the_published_options(write, read, preset):
    assert write_rules.get(write).cls.preset(read) == preset


def test_only_memories_that_forget_are_bounded():
    names = ("linear", "gla", "deltanet", "gated_deltanet", "s4d", "kv")
    bounded = [name for name in names if "bounded" in write_rules.get(name).cls.provides]
    assert bounded == ["gla", "deltanet", "gated_deltanet", "s4d"]


def build(write, read=PLAIN, options=None, **sizes):
    torch.manual_seed(0)
    plugin = write_rules.get(write)
    dims = {"d_model": 16, "num_heads": 4, "key_dim": 4, "value_dim": 6, **sizes}
    rule = plugin.cls(
        plugin.config(**(options or {})),
        MixerDims(**dims, layer=0, num_layers=1, init_std=0.02, read=read),
    )
    rule.reset_parameters()
    return rule


def gates(rule, d_model=16):
    dims = rule.dims
    k = torch.randn(1, 50, dims.num_heads, dims.key_dim)
    memory = rule(torch.randn(1, 50, d_model), k, torch.randn(1, 50, dims.num_heads, 6))
    return memory.g, memory.beta


def test_gla_starts_with_a_half_life_of_sixteen_tokens():
    g, beta = gates(build("gla"))
    assert beta is None
    assert g.shape == (1, 50, 4, 4)
    assert_close(g, torch.full_like(g, -math.log(2) / 16), rtol=0.05, atol=0)


def test_the_gate_options_set_rank_and_pace():
    rule = build("gla", options={"gate_rank": 3, "gate_normalizer": 1.0})
    assert rule.gate_proj[0].weight.shape == (3, 16)
    g, _ = gates(rule)
    assert_close(g, torch.full_like(g, -math.log(2)), rtol=0.05, atol=0)


@pytest.mark.parametrize("write", ["deltanet", "gated_deltanet"])
@pytest.mark.parametrize(("allow", "top"), [(False, 1), (True, 2)])
def test_negative_eigenvalues_double_beta(write, allow, top):
    rule = build(write, options={"allow_neg_eigval": allow})
    rule.beta.proj.weight.data.mul_(500)
    _, beta = gates(rule)
    assert 0.9 * top < beta.max() <= top
    assert 0 <= beta.min() < 0.1


@pytest.mark.parametrize("write", ["deltanet", "gated_deltanet", "kda"])
def test_a_delta_rule_normalises_long_keys_that_would_blow_it_up(toy_config, write):
    """beta |k|^2 > 2 makes every write larger than what it erases."""

    def largest_state(*overrides):
        model = build_model(toy_config(f"write={write}", "model.num_layers=1", *overrides))
        model.layers[0].mixer.proj["k"].weight.data.mul_(30)
        tokens = torch.randint(32, (1, 512), generator=torch.Generator().manual_seed(0))
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            _, state = model(tokens)
        return state["layers.0.values"].nan_to_num(torch.inf).abs().max()

    assert largest_state() < 10
    assert largest_state("model.mixer.qk_norm=none") > 1e6


def test_decays_and_state_space_parameters_have_no_weight_decay():
    none, slow = ParamOptions(weight_decay=False), ParamOptions(weight_decay=False, max_lr=1e-3)
    assert build("gated_deltanet").parameter_options() == {
        "gate.A_log": none,
        "gate.dt_bias": none,
    }
    norms = {f"{name}_{half}": none for name in ("rms", "scale", "bias") for half in "kv"}
    modes = dict.fromkeys(("C", "log_neg_re", "im", "log_dt"), slow)
    assert build("s4d").parameter_options() == {**modes, **norms}
    hedgehog = build("gla", options={"feature_map": "hedgehog"})
    assert hedgehog.parameter_options() == {"key_map.bias": none, "query_map.bias": none}


@pytest.mark.parametrize(
    ("read", "more"),
    [
        (INTERDOMAIN, {}),
        (PLAIN, {"readout": (4, 3)}),
        (CCQ, {"readout": (4, 3), "query_map": (4, 5, 3, 2)}),
    ],
)
def test_s4d_has_the_parameters_behind_the_published_counts(read, more):
    rule = build("s4d", read, {"num_modes": 3}, key_dim=5, value_dim=6)
    assert {name: tuple(each.shape) for name, each in rule.named_parameters()} == {
        "C": (4, 3, 3, 2),
        "log_neg_re": (4, 3),
        "im": (4, 3),
        "log_dt": (4,),
        "rms_k": (5,),
        "scale_k": (4, 5),
        "bias_k": (4, 5),
        "rms_v": (6,),
        "scale_v": (4, 6),
        "bias_v": (4, 6),
        **more,
    }
    assert rule.out_dim == (6 if read is INTERDOMAIN else 11)
    assert rule.uses_query == (read is not PLAIN)


def test_s4d_starts_with_the_published_modes():
    inv, lin, legs = (
        build("s4d", options={"num_modes": 8, "init": init}) for init in ("inv", "lin", "legs")
    )
    for rule in (inv, lin, legs):
        assert_close(rule.log_neg_re.exp(), torch.full((4, 8), 0.5))
        assert (rule.log_dt >= math.log(1e-3)).all()
        assert (rule.log_dt <= math.log(1e-1)).all()
    n = torch.arange(8)
    assert_close(inv.im[0], 8 / math.pi * (8 / (2 * n + 1) - 1))
    assert_close(lin.im[0], math.pi * n)
    # HiPPO-LegS less its low-rank part has these eigenvalues, in pairs.
    root = torch.sqrt(2 * n.double() + 1)
    hippo = -torch.tril(root[:, None] * root, -1) - torch.diag(n.double() + 1)
    normal = hippo + torch.outer(root, root) / 2
    eigenvalues = torch.linalg.eigvals(normal)
    assert_close(eigenvalues.real, torch.full((8,), -0.5).double())
    assert_close(legs.im[0].double().sort()[0], eigenvalues.imag.sort()[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("read", [PLAIN, CCQ, INTERDOMAIN])
def test_s4d_starts_with_outputs_about_as_large_as_its_values(read):
    rule = build("s4d", read, d_model=8, num_heads=16, key_dim=32, value_dim=32)
    q, k, v = torch.randn(3, 1, 512, 16, 32)
    if read is INTERDOMAIN:
        q, k = (torch.nn.functional.normalize(each, dim=-1) for each in (q, k))
    reader = read(read_rules.get(read.__name__.lower()).config(), rule.dims)
    reader.reset_parameters()
    o = reader(q, k, rule(torch.randn(1, 512, 8), k, v))
    assert 0.3 < o.square().mean().sqrt() < 3


def test_hedgehog_maps_query_and_key_each_by_its_own_softmax(make):
    pair = make("gla", "plain", write_options={"feature_map": "hedgehog"})
    o, state = pair.run()
    rule = pair.write
    assert state["layer.values"].shape == (2, 2, 8, 6)

    def phi(x, feature_map):
        y = torch.stack([x[..., h, :] @ feature_map.weight[h].T for h in range(2)], -2)
        e = torch.exp(2 * (y + feature_map.bias))
        return torch.cat([e, 1 / e], -1) / (e + 1 / e).sum(-1, keepdim=True)

    memory = GatedMemory(phi(pair.k, rule.key_map), pair.v, g=_gate(rule, pair.x))
    assert_close(o, memory.recall(phi(pair.q, rule.query_map)))


def _gate(rule, x):
    return (rule.gate_proj(x).sigmoid().log() / 16).unflatten(-1, (2, 8))


def test_hedgehog_starts_as_the_identity_before_its_softmax():
    rule = build("gla", options={"feature_map": "hedgehog"})
    k = torch.randn(1, 3, 4, 4)
    assert_close(rule.key_map(k), torch.cat([2 * k, -2 * k], -1).softmax(-1))


def test_hedgehog_read_through_features_needs_no_map_of_the_query():
    rule = build("gla", INTERDOMAIN, {"feature_map": "hedgehog"})
    assert rule.query_map is None


def test_a_write_weight_scales_what_every_stream_writes():
    torch.manual_seed(0)
    k, v, s = torch.randn(3, 1, 9, 2, 4, dtype=torch.float64)
    weight = torch.rand(1, 9, 2, dtype=torch.float64)
    memory = GatedMemory(k, v, weight=weight)
    scaled = GatedMemory(weight[..., None] * k, v)
    assert memory.key is k
    assert_close(memory.recall(s), scaled.recall(s))
    assert_close(memory.write(s, "s").project(v), scaled.write(s, "s").project(v))


@pytest.mark.parametrize(("made", "kind"), [(None, "NoneType"), (torch.ones(1), "Tensor")])
def test_a_rule_that_makes_no_memory_is_told_what_it_must_return(made, kind):
    class Leaky(WriteRule):
        def forward(self, x, k, v):
            return made

    dims = MixerDims(
        d_model=8, num_heads=2, key_dim=4, value_dim=4, layer=0, num_layers=1, read=PLAIN
    )
    k = v = torch.zeros(1, 3, 2, 4)
    with pytest.raises(
        RuleError, match=rf"^Leaky\.forward must return a memory, .*; got {kind}\.$"
    ):
        make_memory(Leaky(None, dims), torch.zeros(1, 3, 8), k, v)


def test_a_delta_rule_takes_no_second_weight():
    k, v = torch.randn(2, 1, 3, 2, 4)
    with pytest.raises(RuleError, match="takes beta or weight, got both"):
        GatedMemory(k, v, beta=torch.rand(1, 3, 2), weight=torch.rand(1, 3, 2))


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (GLAConfig, {"gate_rank": 0}, "gate_rank must be >= 1, got 0"),
        (GLAConfig, {"gate_normalizer": 0.0}, "gate_normalizer must be > 0, got 0.0"),
        (S4DConfig, {"num_modes": 0}, "num_modes must be >= 1, got 0"),
    ],
)
def test_options_out_of_range_are_refused(config, options, message):
    with pytest.raises(ConfigError, match=message):
        config(**options)
