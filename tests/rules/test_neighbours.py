"""The field's other write rules, one by one: presets, starts, options, and what is special."""

import math

import pytest
import torch
from torch.testing import assert_close

from statelab.errors import ConfigError, RuleError
from statelab.rules import MixerDims, ParamOptions, read_rules, write_rules
from statelab_plugins.write.kda import KDAConfig

READS = {name: read_rules.get(name).cls for name in ("plain", "ccq", "interdomain", "mesa", "gka")}
NAMES = ("retnet", "mamba2", "kda", "mesanet", "gated_kalmanet")
DELTA = {
    "conv": 4,
    "conv_streams": ("q", "k", "v"),
    "activation": "silu",
    "qk_norm": "l2",
    "output_norm": "rms",
}
RETNET = {"rope_base": 10_000.0, "output_norm": "rms", "output_gate": "silu"}
MESANET = {**DELTA, "conv_streams": ("q", "k"), "query_scale": False}
MAMBA2 = {
    "conv": 4,
    "conv_streams": ("q", "k", "v"),
    "activation": "silu",
    "query_scale": False,
    "output_norm": "rms",
    "output_gate": "silu",
}


@pytest.mark.parametrize(
    ("write", "read", "preset"),
    [
        ("retnet", "plain", RETNET),
        ("retnet", "interdomain", {**RETNET, "conv": 4, "conv_streams": ("q", "k")}),
        ("mamba2", "ccq", MAMBA2),
        ("kda", "plain", {**DELTA, "output_gate": "sigmoid"}),
        ("mesanet", "mesa", MESANET),
        ("gated_kalmanet", "gka", {**DELTA, "output_gate": "silu"}),
    ],
)
def test_presets_are_the_published_options(write, read, preset):
    assert write_rules.get(write).cls.preset(READS[read]) == preset


@pytest.mark.parametrize("write", NAMES)
def test_all_of_them_forget(write):
    assert "bounded" in write_rules.get(write).cls.provides


def build(write, options=None, **sizes):
    torch.manual_seed(0)
    plugin = write_rules.get(write)
    dims = {"d_model": 16, "num_heads": 4, "key_dim": 4, "value_dim": 6, **sizes}
    rule = plugin.cls(
        plugin.config(**(options or {})),
        MixerDims(**dims, layer=0, num_layers=1, init_std=0.02, read=READS["plain"]),
    )
    rule.reset_parameters()
    return rule


def memory_of(rule, scale=1.0, dtype=torch.float32):
    dims = rule.dims
    x = scale * torch.randn(1, 50, dims.d_model)
    k, v = (torch.randn(1, 50, dims.num_heads, n) for n in (dims.key_dim, dims.value_dim))
    return rule(x, k.to(dtype), v.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_retnet_forgets_at_fixed_paces_the_slow_ones_too(dtype):
    memory = memory_of(build("retnet", num_heads=24), dtype=dtype)
    expected = [math.log1p(-(2.0 ** (-5 - head))) for head in range(24)]
    assert memory.g.dtype == torch.float32
    assert_close(memory.g, torch.tensor(expected).expand(1, 50, 24), rtol=1e-6, atol=0)
    assert memory.weight is None


def test_retnet_has_no_parameters():
    assert not list(build("retnet").parameters())


@pytest.mark.parametrize(
    ("write", "slowest"), [("mamba2", 1), ("kda", 1), ("gated_kalmanet", 0), ("gated_deltanet", 0)]
)
def test_the_mamba_gate_starts_with_the_published_range_of_decays(write, slowest):
    gate = build(write, num_heads=1000).gate
    a, dt = gate.A_log.exp(), torch.nn.functional.softplus(gate.dt_bias)
    assert slowest < a.min() < slowest + 0.5 < 15.5 < a.max() <= 16
    assert_close(dt.log().mean().item(), math.log(1e-2), rtol=0.05, atol=0)
    assert dt.min() > 0.99e-3
    assert dt.max() < 1.01e-1


def test_mamba2_weights_its_writes_by_the_step_and_its_statistics_not():
    rule = build("mamba2")
    memory = memory_of(rule)
    assert_close(memory.g, -rule.gate.A_log.exp() * memory.weight)
    assert (memory.weight > 0).all()
    long = memory_of(rule, scale=1000.0)
    assert long.weight.max() > 10
    assert_close(long.key.square().mean(), torch.tensor(1.0), rtol=0.2, atol=0)


def test_mamba2_starts_with_a_skip_of_one_for_values_alone():
    rule = build("mamba2")
    memory = memory_of(rule)
    c = torch.zeros_like(memory.key)
    assert torch.equal(memory.recall(c), memory.values)
    assert not memory.write(memory.key, "keys").recall(c).any()
    torch.nn.init.zeros_(rule.skip)
    assert not memory_of(rule).recall(c).any()


def test_kda_decays_every_channel_through_a_rank_of_the_value_size():
    rule = build("kda")
    assert rule.gate.proj[0].weight.shape == (6, 16)
    assert rule.gate.dt_bias.shape == (4, 4)
    g = memory_of(rule).g
    assert g.shape == (1, 50, 4, 4)
    assert (g < 0).all()


@pytest.mark.parametrize(("allow", "top"), [(False, 1), (True, 2)])
def test_negative_eigenvalues_double_the_beta_of_kda(allow, top):
    rule = build("kda", {"allow_neg_eigval": allow})
    rule.beta.proj.weight.data.mul_(500)
    beta = memory_of(rule).beta
    assert 0.9 * top < beta.max() <= top


def test_kda_may_bound_its_decay():
    rule = build("kda", {"least_decay": -5.0})
    assert not rule.gate.A_log.any()
    wild = memory_of(rule, scale=1e4).g
    assert -5 <= wild.min() < -4.9
    assert wild.max() <= 0


def test_a_bounded_gate_of_infinite_slope_has_finite_gradients():
    rule = build("kda", {"least_decay": -5.0})
    torch.nn.init.constant_(rule.gate.A_log, 1000.0)
    memory_of(rule).g.sum().backward()
    assert all(each.grad.isfinite().all() for each in rule.gate.parameters())


def test_mesanet_starts_with_both_gates_half_open():
    memory = memory_of(build("mesanet"))
    half = torch.full((1, 50, 4), 0.5)
    assert_close(memory.g.exp(), half, rtol=0.2, atol=0)
    assert_close(memory.weight, half, rtol=0.2, atol=0)
    assert memory.beta is None


def test_gated_kalmanet_squares_its_input_gate():
    rule = build("gated_kalmanet")
    torch.nn.init.constant_(rule.input_proj.bias, math.log(0.1 / 0.9))
    assert_close(memory_of(rule, scale=0.0).weight, torch.full((1, 50, 4), 0.01))
    plain = build("gated_kalmanet", {"input_gate": False})
    assert plain.input_proj is None
    assert memory_of(plain).weight is None


def test_what_sets_a_decay_has_no_weight_decay():
    none = ParamOptions(weight_decay=False)
    gate = {"gate.A_log": none, "gate.dt_bias": none}
    for write in ("kda", "gated_kalmanet"):
        assert build(write).parameter_options() == gate
    assert build("kda", {"least_decay": -1.0}).parameter_options() == gate
    assert build("mamba2").parameter_options() == {**gate, "skip": none}


def test_a_bound_of_the_decay_is_below_zero():
    with pytest.raises(ConfigError, match=r"least_decay must be < 0, got 0.0"):
        KDAConfig(least_decay=0.0)


def test_a_run_of_mesa_on_gla_is_refused_by_name(toy_config):
    with pytest.raises(RuleError, match=r"'mesa' can't read what 'gla' writes.*mesanet\+mesa"):
        toy_config("write=gla", "read=mesa")
