"""Whether this machine has what `trainer` asks for; it would show only after the run began."""

from __future__ import annotations

import os
import shutil
import sys

import torch

from statelab.config import TrainerConfig
from statelab.errors import ConfigError
from statelab.runs.processes import Launch

__all__ = ["check_compiler", "check_devices"]

# A CPU takes more processes than it has cores, for trying distribution out.
_CPU_PROCESSES = 8


def check_devices(trainer: TrainerConfig) -> None:
    """Refuse devices that there are not.

    Raises:
        ConfigError: Naming the key, and what there is.
    """
    gpus = torch.cuda.device_count() or int(torch.backends.mps.is_available())
    if trainer.accelerator == "gpu" and not gpus:
        raise ConfigError(
            "trainer.accelerator=gpu: torch finds no GPU here. Set trainer.accelerator=cpu."
        )
    if trainer.accelerator != "cpu" and gpus:
        most, kind = gpus, "GPUs"
    else:
        most, kind = max(os.cpu_count() or 1, _CPU_PROCESSES), "processes on its CPU"
    if trainer.devices > most:
        raise ConfigError(
            f"trainer.devices={trainer.devices}: this machine has room for {most} {kind}. "
            f"Set trainer.devices={most} or less."
        )
    launch, asked = Launch.find(), trainer.devices * trainer.num_nodes
    if launch is None and trainer.num_nodes > 1:
        raise ConfigError(
            f"trainer.num_nodes={trainer.num_nodes}: nothing starts processes on other machines. "
            "Start statelab with torchrun or srun, or set trainer.num_nodes=1."
        )
    if launch is not None and launch.world != asked:
        raise ConfigError(
            f"{launch.launcher} has started {launch.world} processes, and trainer.devices="
            f"{trainer.devices} on trainer.num_nodes={trainer.num_nodes} are {asked}. Make them "
            "equal."
        )


def check_compiler(trainer: TrainerConfig) -> None:
    """Refuse `trainer.compile` where there is nothing to compile with: torch writes C++.

    Raises:
        ConfigError: Naming the compiler that torch would call.
    """
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if trainer.compile and shutil.which(compiler) is None:
        raise ConfigError(
            f"trainer.compile=true needs a C++ compiler, and there is no {compiler!r} here. "
            "Install it, name another one in the environment as CXX, or leave trainer.compile out."
        )
