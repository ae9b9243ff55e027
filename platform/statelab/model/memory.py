"""The memory: what a write rule makes of a layer's input, and a read rule reads.

Per head it is S_t in F^(M x V), linear in the stream of values:

    S_t = T_t S_(t-1) + b_t v_t'

Two linear reads are all that is needed of it:

    recall(c)   o_t = S_t' c_t     from the address side to the value side
    project(y)  w_t = S_t y_t      from the value side to the address side

(' is the transpose, never the conjugate; a complex recall returns the real part.) Since it is
linear, any other stream can be written with the same transitions: `write`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from statelab.errors import RuleError
from statelab.model.context import Context

__all__ = ["Memory", "Written"]


class Memory(ABC):
    """A memory over one forward pass.

    Args:
        key: The address before any write weight, [B, T, H, K]; what a read rule's statistics see.
        values: The stream that is read by default, [B, T, H, V].
    """

    def __init__(self, key: Tensor, values: Tensor) -> None:
        self.key = key
        self.values = values
        self._written: dict[str, Written] = {}
        self._context: Context | None = None

    def bind(self, context: Context) -> Self:
        """Let this memory run in a pass; the mixer does it between the write and the read rule."""
        self._context = context
        return self

    @property
    def features(self) -> Tensor:
        """The stream that a read through features writes, [B, T, H, K]: the key."""
        return self.key

    def lift(self, q: Tensor | None) -> Tensor:
        """Bring a query, [B, T, H, K], to the address side; here the two are the same."""
        if q is None:
            raise RuleError("this memory is read by a query, and there is none.")
        return q

    def write(self, stream: Tensor, slot: str = "values") -> Written:
        """Write a stream, [B, T, H, Vs], with this memory's transitions; its state is `slot`.

        Raises:
            RuleError: If the slot holds another stream already.
        """
        known = self._written.setdefault(slot, Written(self, stream, slot))
        if known.stream is not stream:
            raise RuleError(f"slot {slot!r} holds another stream already; give this one its own.")
        return known

    def recall(self, c: Tensor) -> Tensor:
        """o_t = S_t' c_t, where S is written with `values`."""
        return self.write(self.values).recall(c)

    def reread(self, y: Tensor, features: Written) -> Tensor:
        """Project y through `features`, then recall the values at that address.

        A memory whose kernels do both in one pass overrides this.
        """
        return self.recall(features.project(y))

    def again(self, values: Tensor | None = None) -> Self:
        """The same memory for reads that leave no state; with other values if given.

        A backward that reads again, say, would replace the state that the pass has handed out.
        """
        memory = copy.copy(self)
        memory._written = {}
        memory._context = None if self._context is None else self._context.aside()
        if values is not None:
            memory.values = values
        return memory

    def state(self, slot: str = "values") -> Tensor | None:
        """What the reads so far have left in a slot, or None."""
        return None if self._context is None else self._context.final(slot)

    def diagnose(self) -> Mapping[str, Tensor]:
        """What is worth watching of the writing; `WriteRule.diagnose` passes it on."""
        return {}

    def run(
        self,
        op: Callable[..., tuple[Tensor, Any]],
        *streams: Tensor,
        slot: str | tuple[str, ...],
        **options: Any,
    ) -> Tensor:
        """Run an operation in this memory's pass: `Context.run`."""
        if self._context is None:
            batch, length = self.values.shape[:2]
            self._context = Context(batch, length, device=self.values.device)
        return self._context.run(op, *streams, slot=slot, **options)

    @abstractmethod
    def recall_stream(self, written: Written, c: Tensor) -> Tensor:
        """o_t = S_t' c_t, where S is written with `written.stream`; through `run`."""

    @abstractmethod
    def project_stream(self, written: Written, y: Tensor) -> Tensor:
        """w_t = S_t y_t, where S is written with `written.stream`; through `run`."""


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A stream in a memory: one state slot, read any number of times."""

    memory: Memory
    stream: Tensor
    slot: str

    def recall(self, c: Tensor) -> Tensor:
        """o_t = S_t' c_t, [B, T, H, Vs]."""
        return self.memory.recall_stream(self, c)

    def project(self, y: Tensor) -> Tensor:
        """w_t = S_t y_t for y [B, T, H, Vs], on the address side."""
        return self.memory.project_stream(self, y)

    def aside(self) -> Written:
        """The same stream, for reads that must not leave its state: `Memory.again`."""
        return Written(self.memory.again(), self.stream, self.slot)
