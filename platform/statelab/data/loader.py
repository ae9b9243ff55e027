"""Batches: of one epoch, or of one after the other from wherever the run stands."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from statelab.data.module import IGNORED, Batch, Examples, groups_of
from statelab.data.order import PADDING, batches, share
from statelab.data.packing import pack

__all__ = ["EndlessLoader", "EpochLoader"]


class EpochLoader:
    """The batches of one epoch; an iterable with a length.

    The last batch of an epoch, or of each group of examples, may be shorter. Every rank has the
    same number of batches, all of one length: a rank that has no example left gets a row whose
    labels are all ignored.

    Args:
        examples: One split.
        order: The order of each epoch.
        batch_size: Examples a batch and rank.
        num_workers: Processes; 0 loads in this one. The batches don't depend on it.
        packing: Whether to pack each batch into one row of documents.
        rank: Which share to load.
        world: How many shares there are.
    """

    def __init__(
        self,
        examples: Examples,
        *,
        order: Callable[[int], NDArray[np.int64]],
        batch_size: int,
        num_workers: int = 0,
        packing: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._rows = _Rows(examples, packing)
        self._groups = groups_of(examples)
        self._order = order
        self._batch_size = batch_size
        self._num_workers = num_workers
        self._rank = rank
        self._world = world

    def __len__(self) -> int:
        return sum(-(-size // (self._world * self._batch_size)) for size in self._groups)

    def __iter__(self) -> Iterator[Batch]:
        return self.batches(epoch=0, finished=0)

    def batches(self, *, epoch: int, finished: int) -> Iterator[Batch]:
        """The batches of an epoch that come after the finished ones."""
        whole = batches(self._order(epoch), self._groups, self._world * self._batch_size)
        shares = (share(each, rank=self._rank, world=self._world) for each in whole[finished:])
        yield from DataLoader(
            self._rows,
            batch_sampler=[each.tolist() for each in shares],
            num_workers=self._num_workers,
            collate_fn=_as_is,
            worker_init_fn=_leave_ctrl_c_to_the_parent,
            multiprocessing_context=_clean_processes() if self._num_workers else None,
            # Without its own, each iterator draws from the global generator, and so would a
            # resumed run once more than an unbroken one.
            generator=torch.Generator(),
        )


class EndlessLoader:
    """Epoch after epoch, from wherever the run stands.

    It has no length, so that Lightning sees one epoch without an end: at the end of one it would
    do an optimizer step with however many batches there are, and count validations anew.

    Args:
        epochs: Loads one epoch.
        position: How many batches are finished, over all epochs; asked when an iterator starts.
    """

    def __init__(self, epochs: EpochLoader, position: Callable[[], int]) -> None:
        self._epochs = epochs
        self._position = position

    def __iter__(self) -> Iterator[Batch]:
        epoch, finished = divmod(self._position(), len(self._epochs))
        while True:
            yield from self._epochs.batches(epoch=epoch, finished=finished)
            epoch, finished = epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the position is the data module's.

        Lightning takes a loader for resumable by these two methods, and warns of any other.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


class _Rows(Dataset[Batch]):
    """Whole batches of examples, with the padding's labels ignored."""

    def __init__(self, examples: Examples, packing: bool) -> None:
        self._examples = examples
        self._packing = packing

    def __len__(self) -> int:
        return len(self._examples)

    def __getitems__(self, indices: list[int]) -> Batch:
        index = np.array(indices)
        padding = index == PADDING
        # Padding repeats an example of the batch, which is as long as its others.
        batch = self._examples.batch(np.where(padding, max(index.max(), 0), index))
        batch["labels"][torch.from_numpy(padding)] = IGNORED
        return pack(batch) if self._packing else batch


def _as_is(batch: Any) -> Any:
    return batch


def _leave_ctrl_c_to_the_parent(worker: int) -> None:
    """A terminal's Ctrl-C goes to all of its processes, and the step in hand needs its batch."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _clean_processes() -> BaseContext:
    """Workers that don't start as a copy of this process.

    This one runs threads (the tracker's, CUDA's), and a fork copies their locks but not them.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # Imported once, in the server, and not by each worker of each epoch.
    context.set_forkserver_preload([__name__])
    return context
