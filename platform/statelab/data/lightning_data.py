"""A data module as Lightning wants it: loaders, position, and each rank's share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from lightning import LightningDataModule
from numpy.typing import NDArray
from torch import Tensor

from statelab.config import Config, DataConfig
from statelab.data.loader import EndlessLoader, EpochLoader
from statelab.data.module import Batch, DataModule, Examples
from statelab.data.order import permutation
from statelab.registries import data_modules

__all__ = ["LightningData", "build_data"]


def build_data(config: Config) -> LightningData:
    """The data that `config.data` names.

    Raises:
        UnknownNameError: If no data module has that name.
        DataError: If its files can't be read or are too small.
    """
    return LightningData(data_modules.get(config.data.name).cls(config.data), config.data)


class LightningData(LightningDataModule):
    """Loads a data module's examples, and keeps how far the training has come.

    The order of every epoch and all draws are a pure function of (data.seed, epoch, index). So the
    number of finished batches is all there is to save, and a run continues with the exact next
    batch, whatever the number of workers. Whoever trains calls `advance` once a batch, before
    anything saves a checkpoint.

    The trainer must leave the sampling alone: `Trainer(use_distributed_sampler=False)`.

    Args:
        data: Examples and what their tokens mean.
        config: Batch size, workers, packing and seed.
    """

    def __init__(self, data: DataModule, config: DataConfig) -> None:
        super().__init__()
        self.data = data
        self.config = config
        self.vocab_size = data.vocab_size
        self.slices = data.slices
        self.is_text = data.is_text
        self.is_one_answer = data.is_one_answer
        self.batches_finished = 0

    def num_bytes(self, batch: Batch) -> Tensor | None:
        """How many bytes of text the labels of a batch stand for; None where they are no text."""
        return self.data.num_bytes(batch)

    def advance(self) -> None:
        """Count a training batch as finished."""
        self.batches_finished += 1

    def train_dataloader(self) -> EndlessLoader:
        """All batches after the finished ones, shuffled anew in each epoch."""
        examples = self.data.train()

        def order(epoch: int) -> NDArray[np.int64]:
            return permutation(len(examples), seed=self.config.seed, epoch=epoch)

        return EndlessLoader(self._epochs(examples, order), position=lambda: self.batches_finished)

    def val_dataloader(self) -> EpochLoader:
        """All batches of the validation split, in their order."""
        examples = self.data.val()
        return self._epochs(examples, lambda _: np.arange(len(examples)))

    def transfer_batch_to_device(
        self, batch: Batch, device: torch.device, dataloader_idx: int
    ) -> Batch:
        """Move all but the boundaries of documents, which kernels read on the host."""
        moved = super().transfer_batch_to_device(batch, device, dataloader_idx)
        return {name: batch[name] if name == "cu_seqlens" else moved[name] for name in moved}

    def state_dict(self) -> dict[str, Any]:
        """The position in the training data."""
        return {"batches_finished": self.batches_finished}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the batch after the finished ones."""
        self.batches_finished = state_dict["batches_finished"]

    def _epochs(self, examples: Examples, order: Callable[[int], NDArray[np.int64]]) -> EpochLoader:
        # Lightning's own words for the data-parallel rank, which tensor parallelism makes another
        # than the global one.
        sampler = (self.trainer and self.trainer.distributed_sampler_kwargs) or {}
        return EpochLoader(
            examples,
            order=order,
            batch_size=self.config.batch_size,
            num_workers=self.config.num_workers,
            packing=self.config.packing,
            rank=sampler.get("rank", 0),
            world=sampler.get("num_replicas", 1),
        )
