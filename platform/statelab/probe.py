"""Look into a model: what its rules say of themselves, and which token's value each output holds.

All is measured in passes of their own, by hooks on the read rules: nothing stands in the way of
training, and nothing of it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from statelab.model.context import State
from statelab.model.decoder import Decoder
from statelab.model.memory import Memory
from statelab.model.mixer import Mixer
from statelab.model.norms import l2_normalize

__all__ = [
    "Weights",
    "diagnose",
    "effective_weights",
    "key_spectra",
    "layers_read",
    "map_keys",
    "state_norms",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """The effective weights of one layer, o_t = sum_j w_tj v_j, with w [H, T, T].

    Attributes:
        read: The read rule's.
        plain: Those of the same memory recalled at the query itself, where that has a meaning and
            is something else.
    """

    read: Tensor
    plain: Tensor | None


def layers_read(model: Decoder) -> dict[int, str]:
    """The layers that have a memory to look into, each with its kind: memory or attention."""
    return {
        index: "attention" if "cache" in mixer.write.provides else "memory"
        for index, mixer in _mixers(model)
    }


def diagnose(model: Decoder, tokens: Tensor) -> dict[int, dict[str, Tensor]]:
    """What the rules of each layer say of themselves: `read/lambda`, `write/decay`, ...

    Every memory of a fixed size has a `write/state_norm`, |S| a sequence and head after the last
    token. Tensors are in at least fp32.

    Args:
        model: The model.
        tokens: [B, T].
    """
    found: dict[int, dict[str, Tensor]] = {}

    def visit(index: int, mixer: Mixer, q: Tensor, k: Tensor | None, memory: Memory) -> None:
        named = {f"write/{name}": each for name, each in mixer.write.diagnose(memory).items()}
        state = memory.state()
        if state is not None:
            named["write/state_norm"] = torch.linalg.vector_norm(state, dim=(-2, -1))
        read = mixer.read.diagnose(q, k, memory.again())
        named |= {f"read/{name}": each for name, each in read.items()}
        found[index] = {name: _wide(each).cpu() for name, each in named.items()}

    _run(model, tokens, visit)
    return found


def key_spectra(model: Decoder, tokens: Tensor) -> dict[int, Tensor]:
    """Eigenvalues of the covariance of each layer's unit keys, largest first, [H, K].

    Every sequence has a covariance of its own, over all its tokens; they are averaged.
    """

    def spectrum(unit: Tensor) -> Tensor:
        centred = unit - unit.mean(2, keepdim=True)
        covariance = (centred.mT @ centred / unit.shape[2]).mean(0)
        values: Tensor = torch.linalg.eigvalsh(covariance).flip(-1)
        return values

    return map_keys(model, tokens, spectrum)


def map_keys(
    model: Decoder, tokens: Tensor, function: Callable[[Tensor], Tensor]
) -> dict[int, Tensor]:
    """What a function says of each layer's unit keys, those that a read rule's statistics see.

    Args:
        model: The model.
        tokens: [B, T].
        function: Called with the keys of a layer, [B, H, T, K], in at least fp32.
    """
    found: dict[int, Tensor] = {}

    def visit(index: int, mixer: Mixer, q: Tensor, k: Tensor | None, memory: Memory) -> None:
        unit = l2_normalize(_wide(memory.key)).transpose(1, 2)
        with torch.autocast(unit.device.type, enabled=False):
            found[index] = function(unit).cpu()

    _run(model, tokens, visit)
    return found


def effective_weights(
    model: Decoder, tokens: Tensor, layers: Collection[int] | None = None
) -> dict[int, Weights]:
    """The weights w of o_t = sum_j w_tj v_j, exact: every read is linear in the values it reads.

    The values are those that the memory holds: behind convolution and norms.

    Args:
        model: The model.
        tokens: One sequence, [1, T].
        layers: Those to look into; None is all.
    """
    found: dict[int, Weights] = {}

    def visit(index: int, mixer: Mixer, q: Tensor, k: Tensor | None, memory: Memory) -> None:
        if layers is not None and index not in layers:
            return
        # `forward` alone: a call would come back here through the hook.
        read = _weights(lambda again: mixer.read.forward(q, k, again), memory)
        plain = None
        if mixer.read.changes_query or "gated" in mixer.write.provides:
            plain = _weights(lambda again: again.recall(again.lift(q)), memory)
            plain = None if torch.equal(plain, read) else plain
        found[index] = Weights(read=read, plain=plain)

    _run(model, tokens, visit)
    return found


@torch.no_grad()
def state_norms(model: Decoder, tokens: Tensor, points: int = 32) -> dict[int, Tensor]:
    """How each memory of a fixed size grows over the text: |S_t|, the mean over heads.

    Args:
        model: The model.
        tokens: [B, T].
        points: At most so many are measured.

    Returns:
        For each layer rows of t and |S_t|, [points, 2].
    """
    step = -(-tokens.shape[1] // points)
    state: State | None = None
    rows: dict[int, list[tuple[float, float]]] = {}
    for part in torch.split(tokens, step, dim=1):
        _, state = model.hidden(part, state)
        for index, _ in _mixers(model):
            values = state.get(f"layers.{index}.values")
            if values is not None:
                norm = torch.linalg.vector_norm(values, dim=(-2, -1)).mean()
                rows.setdefault(index, []).append((float(state["position"][0]), float(norm)))
    return {index: torch.tensor(each) for index, each in rows.items()}


_Visit = Callable[[int, Mixer, Tensor, "Tensor | None", Memory], None]


def _mixers(model: Decoder) -> Iterator[tuple[int, Mixer]]:
    for index, block in enumerate(model.layers):
        if isinstance(block.mixer, Mixer):
            yield index, block.mixer


@torch.no_grad()
def _run(model: Decoder, tokens: Tensor, visit: _Visit) -> None:
    with _watching(model, visit):
        model.hidden(tokens)


@contextmanager
def _watching(model: Decoder, visit: _Visit) -> Iterator[None]:
    """Call `visit` after each read, with what it was given."""

    def hook(index: int, mixer: Mixer) -> Callable[..., None]:
        def after(module: nn.Module, arguments: tuple[Tensor, Tensor, Memory], out: Tensor) -> None:
            visit(index, mixer, *arguments)

        return after

    handles = [
        mixer.read.register_forward_hook(hook(index, mixer)) for index, mixer in _mixers(model)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _weights(read: Callable[[Memory], Tensor], memory: Memory) -> Tensor:
    """What `read` gives of each value, [H, T, T]: it reads a stream of unit vectors instead.

    The stream has as many channels as the values, so that kernels meet no size that is new to
    them: unit vector after unit vector, V at a time.
    """
    _, T, H, V = memory.values.shape
    unit = torch.eye(T, -(-T // V) * V, dtype=memory.values.dtype, device=memory.values.device)
    parts = [
        read(memory.again(part[None, :, None].expand(1, T, H, V).contiguous()))
        for part in torch.split(unit, V, dim=1)
    ]
    return _wide(torch.cat(parts, -1)[0, :, :, :T].transpose(0, 1)).cpu()


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
