"""Curvature-corrected queries: the gate, and the statistics that the paper lacks."""

import pytest
import torch
from torch.testing import assert_close

from statelab.config import MixerConfig
from statelab.errors import ConfigError, RuleError
from statelab.model.memory import Memory
from statelab.model.norms import l2_normalize
from statelab.rules import ParamOptions, write_rules
from statelab_plugins.memory import GatedMemory
from statelab_plugins.read.ccq import CCQ, CCQConfig


class Recorder(Memory):
    """Hands back the query that it is read with."""

    def __init__(self, key):
        super().__init__(key, key)

    def recall_stream(self, written, c):
        return c

    def project_stream(self, written, y):
        raise AssertionError("not read by ccq")


def corrected(pair):
    """The query after the correction, read from a memory with the pair's key."""
    return pair.read(pair.q, pair.k, Recorder(pair.k))


def second_moment(k, t, *, center=True):
    seen = k[:, : t + 1]
    sigma = torch.einsum("bthi,bthj->bhij", seen, seen) / (t + 1)
    mean = seen.mean(1)
    return sigma - mean[..., :, None] * mean[..., None, :] if center else sigma


@pytest.mark.parametrize("gate", ["per_token", "per_head", "fixed"])
def test_lambda_depends_on_what_the_gate_says(make, gate):
    options = {"gate": gate, "lambda_init": 0.3, "lambda_scale": 2.0}
    pair = make("linear", "ccq", read_options=options)
    unit = l2_normalize(pair.q)
    if gate == "fixed":
        assert not list(pair.read.parameters())
        lam = torch.full(pair.q.shape[:3], 0.6, dtype=pair.q.dtype)
    else:
        logit = pair.read.bias
        if gate == "per_token":
            logit = logit + (unit * pair.read.weight).sum(-1)
        lam = 2 * torch.sigmoid(logit)
    out, k = corrected(pair), l2_normalize(pair.k)
    for t in range(pair.q.shape[1]):
        turned = (second_moment(k, t) @ pair.q[:, t, :, :, None])[..., 0]
        strength = lam.expand(pair.q.shape[:3])[:, t, :, None]
        assert_close(out[:, t], pair.q[:, t] - strength * turned)


def test_the_gate_starts_at_lambda_init_for_every_query(make):
    pair = make("linear", "ccq", read_options={"lambda_init": 0.25})
    pair.read.reset_parameters()
    fixed = make("linear", "ccq", read_options={"lambda_init": 0.25, "gate": "fixed"})
    assert_close(corrected(pair), corrected(fixed), rtol=1e-6, atol=1e-6)


def test_the_gate_has_no_weight_decay(make):
    none = ParamOptions(weight_decay=False)
    assert make("gla", "ccq").read.parameter_options() == {"weight": none, "bias": none}


def test_without_centre_the_second_moment_is_taken(make):
    pair = make("linear", "ccq", read_options={"center": False, "gate": "fixed"})
    out, k = corrected(pair), l2_normalize(pair.k)
    for t in range(pair.q.shape[1]):
        turned = (second_moment(k, t, center=False) @ pair.q[:, t, :, :, None])[..., 0]
        assert_close(out[:, t], pair.q[:, t] - 0.1 * turned)


def test_order_two_adds_the_square(make):
    pair = make("linear", "ccq", read_options={"order": 2, "gate": "fixed"})
    out, k = corrected(pair), l2_normalize(pair.k)
    for t in range(pair.q.shape[1]):
        sigma, q = second_moment(k, t), pair.q[:, t, :, :, None]
        series = q - 0.1 * sigma @ q + 0.01 * sigma @ (sigma @ q)
        assert_close(out[:, t], series[..., 0])


def test_a_normalised_query_is_read_at_unit_length(make):
    pair = make("gla", "ccq", unit=False, read_options={"normalize_query": True})
    o, _ = pair.run()
    pair.q = 3 * pair.q
    assert_close(pair.run()[0], o, rtol=1e-5, atol=1e-5)


def weighted_covariance(k, q, strength, decay, erase):
    """Sigma q by `decayed` for one head: strength w|k|, decay [T, K], erase [T]."""
    unit, size = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt(), k.shape[-1]
    length = k.square().sum(-1).sqrt()
    S, first, mass = torch.zeros(size, size), torch.zeros(size), torch.zeros(size)
    S, first, mass = (each.to(k.dtype) for each in (S, first, mass))
    out = []
    for t in range(len(k)):
        T = (torch.eye(size).to(k) - erase[t] * torch.outer(k[t], k[t])) @ torch.diag(decay[t])
        weight = strength[t] / length[t]
        S = T @ S + weight * torch.outer(k[t], unit[t])
        first = T @ first + weight * k[t]
        mass = decay[t] * mass + strength[t]
        mean = first / mass
        out.append(S @ q[t] / mass - mean * (mean @ q[t]))
    return torch.stack(out)


@pytest.mark.parametrize("statistics", ["written", "decayed"])
@pytest.mark.parametrize("write", ["linear", "gla", "deltanet", "gated_deltanet"])
def test_statistics_of_the_memory_itself_equal_their_loop(make, write, statistics):
    options = {"statistics": statistics, "gate": "fixed"}
    pair = make(write, "ccq", read_options=options, unit=write != "gla")
    memory = pair.write(pair.x, pair.k, pair.v)
    length, ones = pair.k.square().sum(-1).sqrt(), torch.ones_like(pair.k)
    strength = length if memory.beta is None else length * memory.beta
    decay, erase = ones, torch.zeros_like(length)
    if statistics == "decayed" and memory.g is not None:
        g = memory.g if memory.g.ndim == 4 else memory.g[..., None]
        decay = g.exp() * ones
    if statistics == "decayed" and memory.beta is not None:
        erase = memory.beta
    streams = (pair.k, pair.q, strength, decay, erase)
    turned = torch.stack(
        [
            weighted_covariance(*(each[n, :, h] for each in streams))
            for n in range(2)
            for h in range(2)
        ]
    )
    plain = make(write, "plain", unit=write != "gla")
    plain.write = pair.write
    plain.q = pair.q - 0.1 * turned.unflatten(0, (2, 2)).transpose(1, 2)
    assert_close(pair.run()[0], plain.run()[0], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("statistics", ["written", "decayed"])
@pytest.mark.parametrize("center", [True, False])
def test_where_nothing_fades_and_keys_are_alike_all_statistics_agree(make, statistics, center):
    options = {"center": center, "order": 2}
    cumulative = make("linear", "ccq", read_options=options)
    own = make("linear", "ccq", read_options={**options, "statistics": statistics})
    assert_close(own.run()[0], cumulative.run()[0], rtol=1e-5, atol=1e-5)


def test_a_write_weight_counts_in_its_own_statistics(make):
    pair = make("linear", "ccq", read_options={"statistics": "written", "gate": "fixed"})
    weight = torch.ones(pair.q.shape[:3], dtype=pair.q.dtype)
    weight[:, 3] = 0
    o = pair.read(pair.q, pair.k, GatedMemory(pair.k, pair.v, weight=weight))
    keep = [t for t in range(20) if t != 3]
    for stream in "xqkv":
        setattr(pair, stream, getattr(pair, stream)[:, keep])
    assert_close(o[:, keep], pair.run()[0])


def test_zero_keys_leave_the_query_as_it_is(make):
    pair = make("linear", "ccq", read_options={"statistics": "decayed"})
    pair.k = torch.zeros_like(pair.k)
    assert not pair.run()[0].any()


@pytest.mark.parametrize("statistics", ["written", "decayed"])
def test_statistics_of_a_memory_without_key_addresses_are_refused(statistics):
    options = CCQConfig(statistics=statistics)
    with pytest.raises(RuleError, match=rf"statistics={statistics} is a sum inside .* S4D isn't"):
        CCQ.check(write_rules.get("s4d").cls, MixerConfig(), options)
    CCQ.check(write_rules.get("gla").cls, MixerConfig(), options)
    CCQ.check(write_rules.get("s4d").cls, MixerConfig(), CCQConfig())


def test_decayed_statistics_behind_a_feature_map_are_refused(make):
    pair = make(
        "gla",
        "ccq",
        write_options={"feature_map": "hedgehog"},
        read_options={"statistics": "decayed"},
    )
    with pytest.raises(RuleError, match="got 8 for 4: a feature map stands between"):
        pair.run()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lambda_init": 0.0}, "lambda_init must be > 0 and < 1, got 0.0"),
        ({"lambda_init": 1.0}, "lambda_init must be > 0 and < 1, got 1.0"),
        ({"lambda_scale": -1.0}, "lambda_scale must be >= 0, got -1.0"),
        ({"order": 3}, "order must be >= 1 and <= 2, got 3"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        CCQConfig(**options)
