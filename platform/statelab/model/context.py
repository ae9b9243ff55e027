"""What a forward pass carries beside its tensors: state, documents, positions, backend.

The model's state is a flat dictionary of tensors, one entry a slot:

    position                       [N] int64   tokens seen so far, shared by all layers
    layers.0.values                            what the write rule's memory holds
    layers.0.curvature.second                  a slot whose state has several tensors
    layers.0.conv.k                            the short convolution's last inputs

N is the number of sequences: the batch, or the documents where `cu_seqlens` packs them into one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from statelab.errors import RuleError

__all__ = ["Context", "State"]

State = dict[str, Tensor]


class Context:
    """One forward pass, seen from one part of the model; `scope` gives the part's own view.

    `run` is the only place where an incoming state, the documents and the backend enter an
    operation, and where a final state leaves it. So every part that keeps a state trains, takes
    packed documents, prefills and decodes by one definition.

    Attributes:
        cu_seqlens: Boundaries of packed documents, [N + 1] on the CPU, or None.
        start: Tokens each sequence has seen before this pass, [N] int64.
        positions: The position of each token in its sequence, [B, T] int64.
        backend: Which form of an operation runs.
        outgoing: The state after this pass, filled as the parts run.
    """

    def __init__(
        self,
        batch: int,
        length: int,
        *,
        device: torch.device,
        state: Mapping[str, Tensor] | None = None,
        cu_seqlens: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        if cu_seqlens is not None:
            # Once a pass, since every layer plans its work by the numbers.
            cu_seqlens = cu_seqlens.cpu()
            _check_bounds(cu_seqlens, batch, length)
        sequences = batch if cu_seqlens is None else len(cu_seqlens) - 1
        self._incoming = state
        self._prefix = ""
        self.cu_seqlens = cu_seqlens
        self.backend = backend
        if state is None:
            self.start = torch.zeros(sequences, dtype=torch.int64, device=device)
        else:
            self.start = self._take("position")
            if len(self.start) != sequences:
                raise RuleError(
                    f"the state holds {len(self.start)} sequences, the input {sequences}. "
                    "Carry a state on with the same batch it came from."
                )
        if cu_seqlens is None:
            steps = torch.arange(length, device=device)
            self.positions = self.start[:, None] + steps
            lengths = torch.full_like(self.start, length)
        else:
            lengths = cu_seqlens.to(device=device, dtype=torch.int64).diff()
            first = cu_seqlens[:-1].to(device=device, dtype=torch.int64)
            shift = torch.repeat_interleave(self.start - first, lengths, output_size=length)
            self.positions = (torch.arange(length, device=device) + shift)[None]
        self.outgoing: State = {"position": self.start + lengths}

    def scope(self, name: str) -> Context:
        """The view of one part: its slots are named `name.slot`."""
        view = copy.copy(self)
        view._prefix = f"{self._prefix}{name}."
        return view

    def aside(self) -> Context:
        """The same pass for operations that are run once more; what they leave goes nowhere."""
        view = copy.copy(self)
        view.outgoing = {}
        return view

    def final(self, slot: str) -> Tensor | None:
        """The state that this pass has left in a slot so far, or None."""
        return self.outgoing.get(f"{self._prefix}{slot}")

    def run(
        self,
        op: Callable[..., tuple[Tensor, Any]],
        *streams: Tensor,
        slot: str | tuple[str, ...],
        **options: Any,
    ) -> Tensor:
        """Run an operation with this pass's documents and backend, its state kept in `slot`.

        Args:
            op: `op(*streams, initial_state=, cu_seqlens=, backend=, **options)`, which returns
                the output and the final state. A state is a tensor, or a dictionary of tensors;
                in a dictionary, `position` is the count that all layers share.
            streams: The operation's tensors.
            slot: Name of the state. The tensors of a dictionary go to `slot.field`; a tuple
                names a dictionary's fields as slots of their own.
            options: More keyword arguments of the operation.

        Raises:
            RuleError: If the operation refuses its arguments, or the incoming state lacks a slot.
        """
        try:
            out, final = op(
                *streams,
                initial_state=self._initial(slot),
                cu_seqlens=self.cu_seqlens,
                backend=self.backend,
                **options,
            )
        except ValueError as error:
            raise RuleError(str(error)) from error
        if isinstance(final, dict):
            stem = "" if isinstance(slot, tuple) else f"{slot}."
            for field, tensor in final.items():
                if field != "position":
                    self.outgoing[f"{self._prefix}{stem}{field}"] = tensor
        else:
            self.outgoing[f"{self._prefix}{slot}"] = final
        return out

    def _initial(self, slot: str | tuple[str, ...]) -> Tensor | State | None:
        if self._incoming is None:
            return None
        if isinstance(slot, tuple):
            return {field: self._take(f"{self._prefix}{field}") for field in slot}
        stem = f"{self._prefix}{slot}"
        fields = {
            name.removeprefix(f"{stem}."): tensor
            for name, tensor in self._incoming.items()
            if name.startswith(f"{stem}.")
        }
        return {**fields, "position": self.start} if fields else self._take(stem)

    def _take(self, name: str) -> Tensor:
        assert self._incoming is not None
        if name not in self._incoming:
            raise RuleError(
                f"the state has no slot {name!r}: it comes from another model. "
                f"It has: {', '.join(sorted(self._incoming)) or 'nothing'}."
            )
        return self._incoming[name]


def _check_bounds(bounds: Tensor, batch: int, length: int) -> None:
    fits = batch == 1 and bounds.ndim == 1 and len(bounds) > 1
    if fits:
        fits = bool(bounds[0] == 0 and bounds[-1] == length and (bounds.diff() >= 0).all())
    if not fits:
        raise RuleError(
            f"cu_seqlens must rise from 0 to the row's {length} tokens, and there must be one "
            f"row; got {bounds.tolist()} and {batch} rows."
        )
