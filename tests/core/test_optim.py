"""Parameter groups and the learning rate, against numbers worked out by hand."""

import math

import pytest
import torch
from torch import nn

from statelab.config import OptimConfig
from statelab.model.build import build_model
from statelab.optim import learning_rate, make_optimizer, parameter_groups, total_steps


def rates(total, **options):
    optim = OptimConfig(lr=1.0, **options)
    return [learning_rate(step, peak=1.0, total=total, optim=optim) for step in range(total)]


def test_cosine_warms_up_linearly_and_ends_at_the_final_rate():
    expected = [0.25, 0.5, 0.75, 1.0, 1.0, 0.9 * 0.75 + 0.1, 0.9 * 0.25 + 0.1, 0.1]
    assert rates(8, schedule="cosine", warmup_steps=4, final_lr=0.1) == pytest.approx(expected)


def test_cosine_without_warm_up_starts_at_the_peak():
    half = 0.5 * (1 + math.cos(math.pi / 4))
    expected = [1.0, half, 0.5, 1 - half, 0.0]
    assert rates(5, schedule="cosine") == pytest.approx(expected)


def test_wsd_stays_and_then_falls_in_a_line():
    expected = [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
    options = {"warmup_steps": 2, "decay_fraction": 0.4, "final_lr": 0.25}
    assert rates(10, schedule="wsd", **options) == pytest.approx(expected)


def test_constant_stays_after_the_warm_up():
    assert rates(5, schedule="constant", warmup_steps=2) == [0.5, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
def test_a_run_of_one_step_and_one_of_warm_up_alone_have_a_rate(schedule):
    assert rates(1, schedule=schedule) == [1.0]
    assert rates(2, schedule=schedule, warmup_steps=4) == [0.25, 0.5]


def test_steps_beyond_the_end_keep_the_final_rate():
    optim = OptimConfig(lr=1.0, final_lr=0.1)
    assert learning_rate(50, peak=1.0, total=10, optim=optim) == pytest.approx(0.1)


def test_a_cap_below_the_final_rate_holds():
    optim = OptimConfig(lr=1.0, final_lr=0.1)
    assert learning_rate(9, peak=0.01, total=10, optim=optim) == 0.01


def named_groups(model, optim):
    """(weight decay, peak) by the name of each parameter."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (group["weight_decay"], group["lr"])
        for group in parameter_groups(model, optim)
        for parameter in group["params"]
    }


@pytest.mark.parametrize(
    ("write", "read"), [("gla", "ccq"), ("gated_deltanet", "plain"), ("s4d", "interdomain")]
)
def test_every_parameter_is_in_one_group(toy_config, write, read):
    model = build_model(toy_config(f"write={write}", f"read={read}"))
    groups = parameter_groups(model, OptimConfig())
    ids = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(parameter) for parameter in model.parameters()}


def test_norms_and_biases_and_a_rules_own_are_not_decayed(toy_config):
    model = build_model(toy_config("write=gla", "read=ccq", "model.mixer.conv=4"))
    found = named_groups(model, OptimConfig(weight_decay=0.3))
    mixer = "layers.0.mixer."
    decayed = ("embedding.weight", mixer + "proj.q.weight", mixer + "conv.q.weight")
    not_decayed = (
        "norm.weight",
        "layers.0.mlp_norm.weight",
        mixer + "norm.weight",
        mixer + "write.gate_proj.1.bias",
        mixer + "read.weight",
        mixer + "read.bias",
    )
    assert {found[name][0] for name in decayed} == {0.3}
    assert {found[name][0] for name in not_decayed} == {0.0}


def test_state_space_parameters_have_a_cap_of_their_own(toy_config):
    model = build_model(toy_config("write=s4d", "read=interdomain"))
    state_space = [f"layers.1.mixer.write.{name}" for name in ("C", "im", "log_neg_re", "log_dt")]
    for options, peak in (
        ({"lr": 0.01}, 1e-3),
        ({"lr": 1e-4}, 1e-4),
        ({"lr": 0.01, "ssm_lr": 2e-3}, 2e-3),
        ({"lr": 0.01, "ssm_lr": 0.5}, 0.01),
    ):
        found = named_groups(model, OptimConfig(**options))
        assert {found[name] for name in state_space} == {(0.0, peak)}
        assert found["embedding.weight"] == (0.1, options["lr"])
        assert found["layers.1.mixer.write.scale_k"] == (0.0, options["lr"])


def test_the_optimizer_takes_each_groups_rate_at_each_step():
    model = nn.Linear(2, 2)
    optim = OptimConfig(lr=0.5, warmup_steps=2, final_lr=0.1, betas=(0.8, 0.9))
    optimizer, schedule = make_optimizer(model, optim, total=4)
    assert {group["betas"] for group in optimizer.param_groups} == {(0.8, 0.9)}
    seen = []
    for _ in range(4):
        seen.append([group["lr"] for group in optimizer.param_groups])
        model(torch.ones(2)).sum().backward()
        optimizer.step()
        schedule.step()
    expected = [[rate] * 2 for rate in (0.25, 0.5, 0.5, 0.1)]
    torch.testing.assert_close(seen, expected)


def test_the_number_of_steps_follows_from_steps_or_tokens(toy_config):
    assert total_steps(toy_config("trainer.max_steps=7")) == 7
    tokens = toy_config("trainer.max_steps=null", "trainer.max_tokens=1000")
    assert total_steps(tokens) == 16  # 4 sequences of 16 tokens a step
    accumulated = toy_config(
        "trainer.max_steps=null", "trainer.max_tokens=1000", "trainer.accumulate=3"
    )
    assert total_steps(accumulated) == 6
    assert total_steps(toy_config("trainer.max_steps=null")) == 1000
