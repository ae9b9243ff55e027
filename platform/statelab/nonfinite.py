"""Find where a batch becomes infinite, or no number: in the forward pass, or in a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from statelab.language_model import LanguageModel
from statelab.model.memory import Memory

__all__ = ["first_nonfinite"]


def first_nonfinite(model: LanguageModel, batch: Mapping[str, Tensor]) -> str | None:
    """The first tensor of a batch's training step that is not finite, in words; None if all are.

    In the forward pass that is the first in time; of the gradients, the one that is nearest to
    the loss. The model stays as it is.

    Args:
        model: The model.
        batch: What the data gives, on the model's device.
    """
    with _watching(model.decoder) as found, torch.no_grad():
        loss = model.loss(batch)
    if found:
        return found[0]
    if not loss.isfinite():
        return "the loss"
    named = list(model.decoder.named_parameters())
    with torch.enable_grad():
        gradients = torch.autograd.grad(
            model.loss(batch), [parameter for _, parameter in named], allow_unused=True
        )
    for (name, _), gradient in zip(reversed(named), reversed(gradients), strict=True):
        if gradient is not None and not gradient.isfinite().all():
            return f"the gradient of {name}"
    return None


@contextmanager
def _watching(decoder: nn.Module) -> Iterator[list[str]]:
    """Collect the parts whose output is not finite, in the order in which they run."""
    found: list[str] = []

    def hook(name: str) -> Callable[..., None]:
        def after(module: nn.Module, arguments: object, out: object) -> None:
            found.extend(f"{each} of {name}" for each in _nonfinite(out))

        return after

    handles = [
        part.register_forward_hook(hook(name)) for name, part in decoder.named_modules() if name
    ]
    training = decoder.training
    # In training the blocks may run compiled, and then call no hooks.
    decoder.eval()
    try:
        yield found
    finally:
        decoder.train(training)
        for handle in handles:
            handle.remove()


def _nonfinite(out: object) -> Iterator[str]:
    if isinstance(out, Tensor) and not out.isfinite().all():
        yield "the output"
    if isinstance(out, Memory):
        for name, part in vars(out).items():
            # A decay of -inf is an exact reset.
            if isinstance(part, Tensor) and bool((part.isnan() | part.isposinf()).any()):
                yield name.strip("_")
