"""Interdomain attention: what the paper derives, and what its layer leaves out."""

import pytest
import torch
from torch.testing import assert_close

from statelab.config import MixerConfig
from statelab.errors import RuleError
from statelab.model.memory import Memory
from statelab.rules import write_rules
from statelab_plugins.read.interdomain import FLOOR, Interdomain, InterdomainConfig


def test_on_s4d_it_is_attention_with_weights_of_two_lags(make):
    pair = make("s4d", "interdomain", tokens=12)
    o, _ = pair.run()
    rule = pair.write
    for head in range(2):
        a = torch.complex(-rule.log_neg_re[head].exp(), rule.im[head])
        step = (rule.log_dt[head].exp() * a).exp()
        b, C = (step - 1) / a, torch.view_as_complex(rule.C[head])
        k, v = (
            torch.nn.functional.rms_norm(z[..., head, :], rms.shape, rms, 1e-5) * scale[head]
            + bias[head]
            for z, rms, scale, bias in (
                (pair.k, rule.rms_k, rule.scale_k, rule.bias_k),
                (pair.v, rule.rms_v, rule.scale_v, rule.bias_v),
            )
        )
        for t in range(12):
            expected = torch.zeros_like(v[:, 0])
            for i in range(t + 1):
                for j in range(t + 1):
                    weight = ((b * step ** (t - j)) @ C.T @ C @ (b * step ** (t - i))).real
                    score = (pair.q[:, t, head] * k[:, j]).sum(-1, keepdim=True)
                    expected = expected + weight * score * v[:, i]
            assert_close(o[:, t, head], expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("write", ["s4d", "gla"])
def test_a_reread_equals_project_then_recall(make, write):
    pair = make(write, "interdomain")
    o, state = pair.run()
    memory = pair.write(pair.x, pair.k, pair.v)
    composed = Memory.reread(memory, pair.q, memory.write(memory.features, "features"))
    assert_close(o, composed, rtol=1e-9, atol=1e-9)
    assert set(state) == {"position", "layer.features", "layer.values"}


def test_a_reread_through_another_slot_is_composed(make):
    pair = make("s4d", "interdomain")
    memory = pair.write(pair.x, pair.k, pair.v)
    other = memory.write(memory.features.clone(), "other")
    assert_close(memory.reread(pair.q, other), pair.run()[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("write", ["linear", "gla", "gated_deltanet", "s4d"])
def test_the_denominator_is_the_same_read_of_ones(make, write):
    plain = make(write, "interdomain")
    divided = make(write, "interdomain", read_options={"denominator": True})
    o, state = divided.run()
    numerator, _ = plain.run()
    memory = plain.write(plain.x, plain.k, plain.v)
    c = memory.write(memory.features, "features").project(plain.q)
    ones = torch.ones_like(plain.v[..., :1])
    eta = memory.write(ones, "ones").recall(c)
    # Definition: one more value channel that is always 1.
    sign = torch.where(eta < 0, -1.0, 1.0)
    assert_close(o, numerator / (sign * eta.abs().clamp(min=FLOOR)), rtol=1e-9, atol=1e-9)
    assert "layer.eta" in state


def test_a_small_denominator_is_held_at_the_floor(make):
    pair = make("linear", "interdomain", read_options={"denominator": True})
    pair.q = 1e-5 * pair.q
    small, _ = pair.run()
    assert small.abs().max() < 1.0
    undivided = make("linear", "interdomain")
    undivided.q = pair.q
    assert_close(small.abs(), undivided.run()[0].abs() / FLOOR, rtol=1e-9, atol=1e-12)


def test_a_memory_that_grows_needs_an_output_norm():
    linear, gla = (write_rules.get(name).cls for name in ("linear", "gla"))
    with pytest.raises(RuleError, match=r"Linear may grow .* model.mixer.output_norm=rms"):
        Interdomain.check(linear, MixerConfig(), InterdomainConfig())
    Interdomain.check(linear, MixerConfig(output_norm="rms"), InterdomainConfig())
    Interdomain.check(gla, MixerConfig(), InterdomainConfig())


def test_the_read_asks_for_the_features_it_is_defined_by():
    assert Interdomain.mixer == {"activation": "silu", "qk_norm": "l2"}
    assert Interdomain.requires <= write_rules.get("s4d").cls.provides
