"""What is measured: an op with the arguments that make it one model's memory."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn.functional import logsigmoid, normalize

from statelab_kernels import ccq_query, gated_project, gated_recall, modal_interdomain, modal_recall

# Batch, heads, and the size of keys, values and modes.
B, H, D = 1, 4, 64

# Arguments of an op by name; a state may be a dictionary of tensors.
Inputs = dict[str, Any]
Stream = Callable[[int, Generator], Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """An op and what it is given.

    Attributes:
        op: A public op.
        streams: For each of its arguments what makes it, from T and a generator.
    """

    op: Callable[..., Any]
    streams: Mapping[str, Stream]

    def inputs(self, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Inputs:
        """Random inputs that ask for gradients; the same ones in each format and on each device."""
        generator = Generator().manual_seed(num_tokens)
        inputs: Inputs = {}
        for name, make in self.streams.items():
            stream = make(num_tokens, generator)
            wanted = dtype.to_complex() if stream.is_complex() else dtype
            inputs[name] = stream.to(device, wanted).requires_grad_()
        return inputs

    def run(self, inputs: Inputs, backend: str) -> dict[str, Tensor]:
        """The output of one form, and the parts of its last state."""
        output, state = self.op(**inputs, backend=backend)
        return {"output": output, **(state if isinstance(state, dict) else {"state": state})}


def _vector(num_tokens: int, generator: Generator) -> Tensor:
    return torch.randn(B, num_tokens, H, D, dtype=torch.float64, generator=generator)


def _key(num_tokens: int, generator: Generator) -> Tensor:
    return normalize(_vector(num_tokens, generator), dim=-1)


def _channel_decay(num_tokens: int, generator: Generator) -> Tensor:
    return logsigmoid(_vector(num_tokens, generator)) / 16


def _head_decay(num_tokens: int, generator: Generator) -> Tensor:
    return _channel_decay(num_tokens, generator)[..., 0]


def _strength(num_tokens: int, generator: Generator) -> Tensor:
    return _vector(num_tokens, generator)[..., 0].sigmoid()


def _mode_query(num_tokens: int, generator: Generator) -> Tensor:
    return torch.complex(_vector(num_tokens, generator), _vector(num_tokens, generator))


def _log_lambda(_: int, generator: Generator) -> Tensor:
    # S4D's modes: A = -1/2 + i pi n, with steps from 0.001 to 0.1.
    dt = 0.001 * 100 ** torch.rand(H, 1, dtype=torch.float64, generator=generator)
    return dt * torch.complex(torch.tensor(-0.5).double(), math.pi * torch.arange(D).double())


def _modes(_: int, generator: Generator) -> Tensor:
    return torch.randn(H, D, dtype=torch.complex128, generator=generator)


def _gram(_: int, generator: Generator) -> Tensor:
    return torch.randn(H, D, D, dtype=torch.complex128, generator=generator) / D


_RECALL: dict[str, Stream] = {"q": _vector, "k": _key, "v": _vector}
_PROJECT: dict[str, Stream] = {"y": _vector, "k": _key, "s": _vector}
_MODAL: dict[str, Stream] = {"log_lambda": _log_lambda, "b": _modes}
_CHANNEL: dict[str, Stream] = {"g": _channel_decay}
_HEAD: dict[str, Stream] = {"g": _head_decay}
_DELTA: dict[str, Stream] = {"beta": _strength}

CASES = {
    "linear": Case(gated_recall, _RECALL),
    "gla": Case(gated_recall, _RECALL | _CHANNEL),
    "scalar_gated": Case(gated_recall, _RECALL | _HEAD),
    "deltanet": Case(gated_recall, _RECALL | _DELTA),
    "gated_deltanet": Case(gated_recall, _RECALL | _HEAD | _DELTA),
    "kda": Case(gated_recall, _RECALL | _CHANNEL | _DELTA),
    "gla_project": Case(gated_project, _PROJECT | _CHANNEL),
    "deltanet_project": Case(gated_project, _PROJECT | _DELTA),
    "ccq_query": Case(ccq_query, {"q": _vector, "k": _key, "lam": _strength}),
    "modal_recall": Case(modal_recall, {"c": _mode_query, "z": _vector, **_MODAL}),
    "modal_interdomain": Case(
        modal_interdomain, {"y": _vector, "s": _key, "v": _vector, "gram": _gram, **_MODAL}
    ),
}
