"""AdamW's parameter groups and the learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from statelab.config import Config, OptimConfig
from statelab.rules import ParamOptions, Rule

__all__ = ["learning_rate", "make_optimizer", "parameter_groups", "total_steps"]


def total_steps(config: Config) -> int:
    """Optimizer steps of the whole run."""
    trainer, data = config.trainer, config.data
    if trainer.max_steps is not None:
        return trainer.max_steps
    if trainer.max_tokens is None:
        return 1000
    processes = trainer.devices * trainer.num_nodes
    tokens = data.batch_size * data.seq_len * trainer.accumulate * processes
    return math.ceil(trainer.max_tokens / tokens)


def learning_rate(step: int, *, peak: float, total: int, optim: OptimConfig) -> float:
    """The learning rate of one optimizer step.

    Linear warm-up to `peak`, then by `optim.schedule`: cosine to `final_lr` at the last step; wsd
    stays, and falls linearly to `final_lr` over the last `decay_fraction` of all steps; constant
    stays.

    Args:
        step: Steps done before this one, from 0.
        peak: The learning rate after the warm-up.
        total: Steps of the whole run.
        optim: The schedule.
    """
    if step < optim.warmup_steps:
        return peak * (step + 1) / optim.warmup_steps
    final = min(optim.final_lr, peak)
    if optim.schedule == "cosine":
        start, shape = optim.warmup_steps, _half_cosine
    elif optim.schedule == "wsd":
        start, shape = max(optim.warmup_steps, total - round(optim.decay_fraction * total)), _line
    else:
        return peak
    last = max(total - 1 - start, 1)
    return final + (peak - final) * shape(min(max(step - start, 0) / last, 1.0))


def parameter_groups(model: nn.Module, optim: OptimConfig) -> list[dict[str, Any]]:
    """Parameters by what the optimizer does with them.

    Norms, biases and other vectors are never decayed; a rule says more of its own parameters
    (`parameter_options`): no decay, or a cap on the learning rate.
    """
    options: dict[int, ParamOptions] = {}
    for module in model.modules():
        if isinstance(module, Rule):
            named = dict(module.named_parameters())
            options |= {id(named[name]): o for name, o in module.parameter_options().items()}
    groups: dict[ParamOptions, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        default = ParamOptions(weight_decay=parameter.ndim >= 2)
        groups.setdefault(options.get(id(parameter), default), []).append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": optim.weight_decay if each.weight_decay else 0.0,
            "lr": _peak(each, optim),
        }
        for each, parameters in groups.items()
    ]


def make_optimizer(
    model: nn.Module, optim: OptimConfig, total: int
) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """AdamW with `parameter_groups`, and the schedule, stepped once an optimizer step."""
    groups = parameter_groups(model, optim)
    optimizer = torch.optim.AdamW(groups, lr=optim.lr, betas=optim.betas)

    def factor(peak: float) -> Callable[[int], float]:
        return lambda step: learning_rate(step, peak=peak, total=total, optim=optim) / peak

    return optimizer, LambdaLR(optimizer, [factor(group["lr"]) for group in groups])


def _peak(options: ParamOptions, optim: OptimConfig) -> float:
    if options.max_lr is None:
        return optim.lr
    return min(optim.lr, optim.ssm_lr or options.max_lr)


def _half_cosine(done: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * done))


def _line(done: float) -> float:
    return 1 - done
