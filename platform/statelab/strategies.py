"""How several processes train one model: each holds all of it (DDP), or a part (FSDP2).

Both write and read the checkpoints of a single process, so a run may go on with another number of
processes and another strategy. Neither starts processes; `processes.py` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from statelab.config import TrainerConfig
from statelab.model.decoder import Decoder

__all__ = ["gathered", "make_strategy", "shard"]


def make_strategy(trainer: TrainerConfig) -> Strategy | str:
    """What `trainer.strategy` means for Lightning."""
    processes = trainer.devices * trainer.num_nodes
    if trainer.strategy == "fsdp2":
        return Sharded(
            data_parallel_size=processes, tensor_parallel_size=1, save_distributed_checkpoint=False
        )
    return Replicated() if trainer.strategy == "ddp" or processes > 1 else "auto"


def shard(model: Decoder, mesh: DeviceMesh) -> None:
    """Leave each process of the mesh its part of every weight; a block is whole while it runs."""
    for block in model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    register_fsdp_forward_method(model, "hidden")


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Hold all weights of a model that may be sharded: what runs inside waits for no process."""
    parts = [each for each in model.modules() if isinstance(each, FSDPModule)]
    for part in parts:
        part.unshard()
        part.set_reshard_after_forward(False, recurse=False)
        part.set_reshard_after_backward(False, recurse=False)
    yield
    for part in parts:
        part.reshard()


class Replicated(DDPStrategy):
    """DDP with the processes that there are."""

    def _configure_launcher(self) -> None:
        """Start none."""


class Sharded(ModelParallelStrategy):
    """FSDP2 with the processes that there are.

    An optimizer's state is saved by the place of each parameter in the optimizer's groups, as torch
    does in a single process. Lightning takes the place in the model, which is another.
    """

    def _configure_launcher(self) -> None:
        """Start none."""

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The whole state on the first process, nothing on others."""
        assert self.model is not None
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        inner = getattr(optimizer, "_optimizer", optimizer)
        state = get_optimizer_state_dict(self.model, inner, options=options)
        return _renamed(state, {name: i for i, name in enumerate(_named(state))}) if state else {}

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Give each process its part of model and optimizers; the rest is returned."""
        assert self.model is not None
        checkpoint: dict[str, Any] = torch.load(
            checkpoint_path, map_location="cpu", mmap=True, weights_only=weights_only
        )
        options = StateDictOptions(full_state_dict=True)
        set_model_state_dict(self.model, checkpoint["state_dict"], options=options)
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            ordered = [names[each] for group in optimizer.param_groups for each in group["params"]]
            named = _renamed(state, dict(zip(_named(state), ordered, strict=True)))
            set_optimizer_state_dict(self.model, optimizer, named, options=options)
        return checkpoint


def _named(state: Mapping[str, Any]) -> list[Any]:
    """What an optimizer's state calls its parameters, in its groups' order."""
    return [each for group in state["param_groups"] for each in group["params"]]


def _renamed(state: Mapping[str, Any], names: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        "state": {names[old]: each for old, each in state["state"].items()},
        "param_groups": [
            {**group, "params": [names[old] for old in group["params"]]}
            for group in state["param_groups"]
        ],
    }
