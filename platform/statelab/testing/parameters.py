"""Checks of what a rule is made of: options, parameters, their start, and the state's size."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace

import torch
import yaml
from torch import nn

from statelab.loading import load_config, to_dict
from statelab.model.build import build_model
from statelab.model.decoder import Decoder
from statelab.optim import make_optimizer
from statelab.rules import ParamOptions
from statelab.sizes import measure
from statelab.testing.check import NotApplicable, Worst, check
from statelab.testing.subject import Subject

__all__ = [
    "config_round_trip",
    "constant_state",
    "init",
    "meta_device",
    "optimizer",
    "save_and_load",
    "state_size",
]


@check("config round trip", allowed=0)
def config_round_trip(subject: Subject) -> Worst:
    """A configuration written as YAML and read again is the same: keys that differ."""
    config, worst = subject.config(), Worst()
    values = to_dict(config)
    again = load_config(yaml.safe_load(yaml.safe_dump(values)))
    worst.see(float(again != config), f"{to_dict(again)['model']} is not {values['model']}")
    return worst


@check("state size", allowed=0)
@torch.no_grad()
def state_size(subject: Subject) -> Worst:
    """`describe` says what a real pass hands out, in bytes."""
    config, worst = subject.config(), Worst()
    said, held = measure(config).state_bytes, _held(subject, config.data.seq_len)
    worst.see(abs(held - said), f"{held:,} bytes, and {said:,} are said")
    return worst


@check("constant state", allowed=0)
@torch.no_grad()
def constant_state(subject: Subject) -> Worst:
    """The state doesn't grow with the text, in bytes."""
    if subject.is_cache:
        raise NotApplicable("a cache grows with the text")
    worst, one = Worst(), _held(subject, 1)
    for length in (2, 63, 65, 130):
        held = _held(subject, length)
        worst.see(abs(held - one), f"{held:,} bytes at T = {length}, {one:,} at T = 1")
    return worst


@check("save and load", allowed=0)
def save_and_load(subject: Subject) -> Worst:
    """A trained model, saved and loaded into another, is the same to the bit; so is a state."""
    config, worst = subject.config(), Worst()
    model, tokens = subject.model(dtype=torch.float32), subject.tokens(2, 20)
    optimizer, _ = make_optimizer(model, config.optim, 3)
    for _ in range(3):
        optimizer.zero_grad()
        model(tokens)[0].square().mean().backward()
        optimizer.step()
    other = build_model(replace(config, seed=1))
    other.load_state_dict(_through_file(model.state_dict()))
    with torch.no_grad():
        for part in (model, other):
            part.eval()
        logits, state = model(tokens)
        again, _ = other(tokens)
        later, _ = model(tokens, state)
        later_again, _ = other(tokens, _through_file(state))
    saved = dict(other.named_parameters())
    for name, parameter in model.named_parameters():
        worst.see(float((parameter != saved[name]).sum()), f"{name}, numbers that differ")
    worst.see(float((logits != again).sum()), "outputs, numbers that differ")
    worst.see(float((later != later_again).sum()), "outputs after a state, numbers that differ")
    return worst


@check("init", allowed=0)
def init(subject: Subject) -> Worst:
    """Parameters start as their rule says, whatever is assembled around it: those that don't.

    Two ways to lose a start: someone resets a parameter after its rule did; and a start that
    `__init__` gives to a linear map, which the model then resets as it does all linear maps.
    """
    worst = Worst()
    model, left = _watched(subject)
    for name, parameter in model.named_parameters():
        if name in left and not torch.equal(parameter, left[name]):
            worst.see(1, f"{name} is changed after its rule's reset_parameters")
    # Torch starts a linear map at random: where two seeds agree, the rule has set it.
    first, second = (_as_constructed(subject, seed) for seed in (0, 1))
    for name, parameter in model.named_parameters():
        given = name in first and torch.equal(first[name], second[name])
        if given and not torch.equal(first[name], parameter):
            worst.see(1, f"{name} is set in __init__ and lost: set it in reset_parameters")
    return worst


@check("meta-device build", allowed=0)
def meta_device(subject: Subject) -> Worst:
    """Laid out without memory and filled later, a model is the same: parameters that aren't."""
    config, worst = subject.config(), Worst()
    wanted = build_model(config)
    model = build_model(config, device="meta")
    for name, parameter in model.named_parameters():
        if not parameter.is_meta:
            worst.see(1, f"{name} is not on the meta device")
    model.to_empty(device="cpu")
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for tensor in itertools.chain(model.parameters(), model.buffers()):
            tensor.fill_(torch.nan if tensor.is_floating_point() else 0)
        torch.manual_seed(config.seed)
        model.reset_parameters()
        for name, tensor in wanted.state_dict().items():
            if not torch.equal(model.state_dict()[name], tensor):
                worst.see(1, f"{name} gets no start, or another one, from reset_parameters")
        tokens = subject.tokens(1, 9)
        worst.compare(model(tokens)[0], wanted(tokens)[0], "outputs")
    return worst


@check("parameter options", allowed=0)
def optimizer(subject: Subject) -> Worst:
    """The optimizer decays, and limits the rate of, what the rules say: parameters it doesn't."""
    config, worst = subject.config(), Worst()
    optim = replace(config.optim, lr=0.1, weight_decay=0.5, schedule="constant", warmup_steps=0)
    model = subject.model(dtype=torch.float32)
    asked: dict[str, ParamOptions] = {}
    for prefix, rule in subject.rules(model).items():
        own = dict(rule.named_parameters())
        for name, options in rule.parameter_options().items():
            if name not in own:
                raise AssertionError(f"parameter_options names {name!r}, {_among(own)}")
            asked[f"{prefix}.{name}"] = options
    if not asked:
        raise NotApplicable("neither rule has parameter_options")
    optimizer, _ = make_optimizer(model, optim, 10)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    named = dict(model.named_parameters())
    before = {name: parameter.detach().clone() for name, parameter in named.items()}
    for parameter in named.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, options in asked.items():
        limit = min(optim.lr, options.max_lr or optim.lr)
        if rates[id(named[name])] != limit:
            worst.see(1, f"{name} learns at {rates[id(named[name])]}, not {limit}")
        # Without a gradient only the decay moves a parameter.
        if torch.equal(named[name], before[name]) == options.weight_decay:
            worst.see(1, f"{name} is {'not ' * options.weight_decay}decayed")
    return worst


def _held(subject: Subject, length: int) -> int:
    """Bytes of the state after `length` tokens."""
    _, state = build_model(subject.config())(subject.tokens(1, length))
    return sum(tensor.nbytes for tensor in state.values())


def _watched(subject: Subject) -> tuple[Decoder, dict[str, torch.Tensor]]:
    """A model, and its rules' parameters as `reset_parameters` of each rule left them."""
    config = subject.config()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = Decoder(config.model, max_len=config.data.seq_len)
        left: dict[str, torch.Tensor] = {}
        for prefix, rule in subject.rules(model).items():
            reset = rule.reset_parameters

            def watched(prefix=prefix, rule=rule, reset=reset) -> None:  # type: ignore[no-untyped-def]
                reset()
                for name, parameter in rule.named_parameters():
                    left[f"{prefix}.{name}"] = parameter.detach().clone()

            rule.reset_parameters = watched  # type: ignore[method-assign]
        model.reset_parameters()
    return model, left


def _as_constructed(subject: Subject, seed: int) -> dict[str, torch.Tensor]:
    """The linear maps inside the rules, before any reset."""
    config = subject.config()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Decoder(config.model, max_len=config.data.seq_len)
    return {
        f"{prefix}.{path}.{name}": parameter.detach().clone()
        for prefix, rule in subject.rules(model).items()
        for path, part in rule.named_modules()
        if isinstance(part, nn.Linear)
        for name, parameter in part.named_parameters()
    }


def _through_file(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    file = io.BytesIO()
    torch.save(tensors, file)
    file.seek(0)
    loaded: dict[str, torch.Tensor] = torch.load(file, weights_only=True)
    return loaded


def _among(names: dict[str, nn.Parameter]) -> str:
    return f"of {', '.join(names)}" if names else "and there are no parameters"
