"""Checks of numbers: gradients, precisions, the compiler, long and extreme inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import jaxtyping
import torch
import torch.nn.functional as F
from torch import Tensor

from statelab.model.compilation import compile_blocks
from statelab.model.context import State
from statelab.model.decoder import Decoder
from statelab.optim import make_optimizer
from statelab.testing.check import NotApplicable, Worst, check
from statelab.testing.subject import Subject, memory_slots

__all__ = [
    "autocast",
    "bfloat16",
    "compiled",
    "float32",
    "gradients",
    "long_input",
    "repeated_keys",
    "state_precision",
    "uninitialised",
]

_ONE_LAYER = "model.num_layers=1"


# A solver that stops early has the gradient of the exact solution: 6e-3 off in the worst of ours.
@check("gradients", allowed=1e-2)
def gradients(subject: Subject) -> Worst:
    """Every parameter of the mixer has the gradient that differences of the output show.

    Half of the sequence goes by before the loss, so that the gradient comes through the state too.
    A gradient that is 0 or missing counts as infinitely far off.
    """
    model, worst = subject.model(_ONE_LAYER), Worst()
    tokens, generator = subject.tokens(2, 14), torch.Generator().manual_seed(2)
    weights = torch.randn(2, 14, 32, generator=generator, dtype=torch.float64)

    def loss() -> Tensor:
        first, state = model(tokens[:, :6])
        second, _ = model(tokens[:, 6:], state)
        return (torch.cat([first, second], 1) * weights).sum()

    torch.autograd.backward(loss())
    for name, parameter in subject.mixer(model).named_parameters():
        gradient = parameter.grad
        if gradient is None or not bool(gradient.any()):
            worst.see(float("inf"), f"{name} has no gradient")
            continue
        worst.finite({name: gradient}, "gradient")
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        direction /= direction.norm()
        slope = _slope(loss, parameter, direction)
        scale = max(abs(slope), float(gradient.norm()) / parameter.numel() ** 0.5)
        worst.see(abs(slope - float((gradient * direction).sum())) / scale, name)
    return worst


@check("float32", allowed=1e-4)
def float32(subject: Subject) -> Worst:
    """Single precision gives what double does, and finite gradients."""
    return _precision(subject, torch.float32)


@check("bfloat16", allowed=0.05)
def bfloat16(subject: Subject) -> Worst:
    """Parameters and activations in bf16 give what double does of the same parameters."""
    if subject.full_precision:
        raise NotApplicable("full_precision: trainer.precision=bf16-true is refused")
    return _precision(subject, torch.bfloat16)


@check("autocast", allowed=0.05)
def autocast(subject: Subject) -> Worst:
    """Under autocast to bf16 a model gives what it gives in double."""
    return _precision(subject, torch.float32, _autocast)


@check("state precision", allowed=0)
@torch.no_grad()
def state_precision(subject: Subject) -> Worst:
    """States are fp32 at least whatever the precision, and fp64 in double: slots that aren't."""
    if subject.is_cache:
        raise NotApplicable("a cache keeps keys and values as they are")
    worst, wide = Worst(), {torch.float64, torch.complex128}
    for dtype, around, allowed in (
        (torch.float64, nullcontext, wide),
        (torch.float32, _autocast, {torch.float32, torch.complex64, *wide}),
        (torch.bfloat16, nullcontext, {torch.float32, torch.complex64, *wide}),
    ):
        if dtype != torch.bfloat16 or not subject.full_precision:
            with around():
                _, state = subject.model(dtype=dtype)(subject.tokens(1, 9))
            narrow = {
                slot: str(tensor.dtype)
                for slot, tensor in memory_slots(state).items()
                if tensor.dtype not in allowed
            }
            worst.see(len(narrow), f"in {dtype}{' autocast' * (around is _autocast)}: {narrow}")
    return worst


@check("torch.compile", allowed=1e-4)
def compiled(subject: Subject) -> Worst:
    """Twenty steps of training have the same losses compiled and not (backend aot_eager)."""
    config, worst = subject.config(_ONE_LAYER), Worst()
    tokens = subject.tokens(2, 20)
    losses = []
    torch.compiler.reset()
    with _untyped():
        for is_compiled in (False, True):
            model = subject.model(_ONE_LAYER, dtype=torch.float32).train()
            if is_compiled:
                compile_blocks(model, backend="aot_eager")
            optimizer, schedule = make_optimizer(model, config.optim, 20)
            for _ in range(20):
                logits, _ = model(tokens)
                loss = _next_token_loss(logits, tokens)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                schedule.step()
                losses.append(loss.detach())
    torch.compiler.reset()
    for step, (wanted, given) in enumerate(zip(losses[:20], losses[20:], strict=True)):
        worst.compare(given, wanted, f"loss of step {step}")
    return worst


@check("long input", allowed=0)
@torch.no_grad()
def long_input(subject: Subject) -> Worst:
    """16,384 tokens leave outputs and states finite."""
    sizes = (_ONE_LAYER, "model.num_heads=1", "model.value_dim=8", "model.head_dim=8")
    logits, state = subject.model(*sizes, dtype=torch.float32, stirred=False)(
        subject.tokens(1, 16_384)
    )
    worst = Worst()
    worst.finite({"the output": logits, **state}, "after 16,384 tokens")
    return worst


@check("repeated keys", allowed=0)
def repeated_keys(subject: Subject) -> Worst:
    """2,048 times the same token, keys at the same place, stay finite in bf16, gradients too."""
    same = (_ONE_LAYER, "model.positions=none", "model.mixer.rope_base=0")
    tokens, worst = torch.full((1, 2048), 7), Worst()
    for dtype, around in ((torch.float32, _autocast), (torch.bfloat16, nullcontext)):
        if dtype != torch.bfloat16 or not subject.full_precision:
            model = subject.model(*same, dtype=dtype)
            with around():
                logits, state = model(tokens)
                torch.autograd.backward(_next_token_loss(logits, tokens))
            worst.finite({"the output": logits, **state}, "repeated keys")
            worst.finite(_gradients(model), "gradient")
    return worst


@check("uninitialised memory", allowed=0)
def uninitialised(subject: Subject) -> Worst:
    """Outputs, states and gradients are the same to the bit if new memory is full of NaN."""
    worst, found = Worst(), []
    for poison in (nullcontext, _poisoned):
        model = subject.model(_ONE_LAYER, dtype=torch.float32)
        tokens = subject.tokens(1, 70)
        with poison():
            logits, state = model(tokens, cu_seqlens=torch.tensor([0, 3, 70]))
            torch.autograd.backward(_next_token_loss(logits, tokens))
        found.append({"the output": logits.detach(), **state, **_gradients(model)})
    for name, clean in found[0].items():
        given, wanted = found[1][name], clean
        worst.see(float((given != wanted).sum()), f"{name}, numbers that differ")
    return worst


def _precision(
    subject: Subject, dtype: torch.dtype, around: Callable[[], Any] = nullcontext
) -> Worst:
    worst, tokens = Worst(), subject.tokens(2, 130)
    model = subject.model(dtype=dtype)
    with around():
        logits, _ = model(tokens)
        torch.autograd.backward(_next_token_loss(logits, tokens))
    worst.finite(_gradients(model), "gradient")
    with torch.no_grad():
        exact, _ = model.double()(tokens)
    worst.compare_norms(logits.detach(), exact, "outputs")
    return worst


def _slope(loss: Callable[[], Tensor], parameter: Tensor, direction: Tensor) -> float:
    """The derivative of the loss along a direction, by central differences."""
    step, values = 1e-5, []
    with torch.no_grad():
        for move in (step, -2 * step):
            parameter.add_(move * direction)
            values.append(float(loss()))
        parameter.add_(step * direction)
    return (values[0] - values[1]) / (2 * step)


def _gradients(model: Decoder) -> State:
    return {f"gradient of {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}


def _next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def _autocast() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


@contextmanager
def _untyped() -> Iterator[None]:
    """Without jaxtyping's checks of shapes, which tests may switch on: no graph holds them."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


@contextmanager
def _poisoned() -> Iterator[None]:
    """Torch fills what it allocates with NaN, or the greatest integer."""
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
