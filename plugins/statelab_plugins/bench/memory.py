"""How much memory a forward and backward take beyond what has to be there anyway."""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of one forward and backward.

    Attributes:
        kept: Held from the forward to the backward, besides inputs and outputs: entering states.
        peak: The most that is allocated at once, outputs and gradients among it.
        working: The peak less outputs, gradients and what is kept; of a single op, which frees
            what it kept only when it ends.
    """

    kept: int
    peak: int
    working: int


def memory_use(
    forward: Callable[[], Mapping[str, Tensor]], inputs: list[Tensor], d_output: Tensor
) -> MemoryUse:
    """Measure a forward, and the backward from its "output" to the inputs.

    Every storage that an operator hands out is counted from then until it is freed, on any device
    and in the backward too. A CPU's operators hand out all that they allocate, but for scratch
    space: the peaks equal those of torch's profiler (`profile_memory`), which asks the allocator,
    to 0.1 %. The resident size of the process would say less: the allocator keeps freed pages.
    """
    with _Storages([*inputs, d_output]) as storages:
        outputs = forward()
        kept = storages.live - _bytes(outputs.values())
        gradients = torch.autograd.grad(outputs["output"], inputs, d_output)
    there = kept + _bytes(outputs.values()) + _bytes(gradients)
    return MemoryUse(kept=kept, peak=storages.peak, working=storages.peak - there)


class _Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages made inside, those of `known` tensors excepted."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        # Storages that live keep their Python object, so identity tells them apart.
        self._seen = {id(tensor.untyped_storage()) for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return out

    def _count(self, storage: UntypedStorage) -> None:
        if id(storage) in self._seen:
            return
        self._seen.add(id(storage))
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, id(storage), storage.nbytes())

    def _forget(self, key: int, num_bytes: int) -> None:
        self._seen.discard(key)
        self.live -= num_bytes


def _bytes(tensors: Any) -> int:
    storages = {id(s): s.nbytes() for s in (tensor.untyped_storage() for tensor in tensors)}
    return sum(storages.values())
