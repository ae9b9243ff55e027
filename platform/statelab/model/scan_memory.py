"""A memory that gives only its step: a plain scan, one token after another, does the rest."""

from __future__ import annotations

import functools
import logging
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from statelab.errors import RuleError
from statelab.model.memory import Memory, Written

__all__ = ["ScanMemory"]

log = logging.getLogger("statelab")


class ScanMemory(Memory):
    """A memory with a recurrence of its own, S_t = step(S_(t-1), s_t, ...), where s is any stream.

    A subclass gives the step, linear in (S, s); the scan reads, carries the state, keeps packed
    documents apart, and computes in at least fp32. It is right on every device, but slow, and says
    so once in the log; a rule that has proved itself deserves a kernel.

    Args:
        key: What a read rule's statistics see, [B, T, H, K].
        values: The stream that is read by default, [B, T, H, V].
        inputs: What else a step needs of its token, real, [B, T, H, ...] each.
        address_dim: M; None is K.

    Raises:
        RuleError: If an input has other axes, or is complex.
    """

    def __init__(
        self, key: Tensor, values: Tensor, *inputs: Tensor, address_dim: int | None = None
    ) -> None:
        super().__init__(key, values)
        for i, each in enumerate(inputs, 1):
            if each.shape[:3] != values.shape[:3] or each.is_complex():
                raise RuleError(
                    f"input {i} of {type(self).__name__} must be real, [B, T, H, ...] with "
                    f"[B, T, H] = {list(values.shape[:3])}; got {each.dtype} {list(each.shape)}."
                )
        self._inputs = inputs
        self._address_dim = key.shape[-1] if address_dim is None else address_dim

    @abstractmethod
    def step(self, S: Tensor, s: Tensor, *inputs: Tensor) -> Tensor:
        """S_t from S_(t-1) [N, H, M, Vs], s_t [N, H, Vs] and each input at t, [N, H, ...]."""

    def recall_stream(self, written: Written, c: Tensor) -> Tensor:
        """o_t = S_t' c_t, [B, T, H, Vs]."""
        return self._read("nhmv,nthm->nthv", c, written)

    def project_stream(self, written: Written, y: Tensor) -> Tensor:
        """w_t = S_t y_t, [B, T, H, M]."""
        return self._read("nhmv,nthv->nthm", y, written)

    def _read(self, equation: str, x: Tensor, written: Written) -> Tensor:
        streams = (x, written.stream, *self._inputs)
        return self.run(self._scan, *streams, slot=written.slot, equation=equation)

    def _scan(
        self,
        *streams: Tensor,
        equation: str,
        initial_state: Tensor | None,
        cu_seqlens: Tensor | None,
        backend: str,
    ) -> tuple[Tensor, Tensor]:
        """Read with the first stream what the second one, and the step, have written."""
        name, x = type(self).__name__, streams[0]
        if backend not in ("auto", "reference"):
            raise RuleError(
                f"model.backend={backend}: {name} gives only its step, which runs a token at a "
                "time. Use model.backend=auto or model.backend=reference."
            )
        if x.device.type != "meta" and not torch.compiler.is_compiling():
            _announce(name)
        if initial_state is None:
            sequences = len(x) if cu_seqlens is None else len(cu_seqlens) - 1
            sizes = (x.shape[2], self._address_dim, streams[1].shape[-1])
            initial_state = x.new_zeros(sequences, *sizes)
        dtype = functools.reduce(torch.promote_types, (s.dtype for s in streams), torch.float32)
        S, *wide = (each.to(dtype) for each in (initial_state, *streams))
        with _autocast_off(x.device):
            if cu_seqlens is None:
                out, S = self._sequence(equation, S, wide)
                return out.to(x.dtype), S
            # Split, not sliced: the gradient of each slice would be as long as the whole.
            lengths = cu_seqlens.diff().tolist()
            documents = zip(*(each.split_with_sizes(lengths, 1) for each in wide), strict=True)
            states = torch.split(S, 1)
            done = [self._sequence(equation, *each) for each in zip(states, documents, strict=True)]
        outs, states = zip(*done, strict=True)
        return torch.cat(outs, dim=1).to(x.dtype), torch.cat(states)

    def _sequence(
        self, equation: str, S: Tensor, streams: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Read sequences of one length, from S on."""
        out = [torch.einsum(equation, S, streams[0][:, :0])]
        # Unbound once: the gradient of x[:, t] in a loop would take O(T^2).
        for x, *rest in zip(*(each.unbind(1) for each in streams), strict=True):
            before, S = S, self.step(S, *rest)
            if S.shape != before.shape:
                raise RuleError(
                    f"{type(self).__name__}.step must return [N, H, M, V] = {list(before.shape)}, "
                    f"the shape of the state it is given; got {list(S.shape)}."
                )
            out.append(torch.einsum(equation, S, x[:, None]))
        return torch.cat(out, dim=1), S


@functools.cache
def _announce(name: str) -> None:
    log.info("%s gives only its step: a plain scan runs it, right but slow", name)


def _autocast_off(device: torch.device) -> AbstractContextManager[object]:
    # It would turn products of fp32 states into bf16.
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
