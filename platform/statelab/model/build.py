"""Build the model that a configuration describes."""

from __future__ import annotations

import torch

from statelab.config import Config
from statelab.model.decoder import Decoder
from statelab.registries import data_modules

__all__ = ["build_model"]


def build_model(config: Config, device: torch.device | str | None = None) -> Decoder:
    """The decoder, initialised from `config.seed` alone; the global generator is left as it was.

    Args:
        config: As `load_config` gives it.
        device: Where to build it; "meta" gives shapes without memory. None is torch's default.
    """
    readout = data_modules.get(config.data.name).cls.readout
    # Torch's own layers draw when they are made, before they are reset.
    with torch.device(device or torch.get_default_device()), torch.random.fork_rng(devices=[]):
        model = Decoder(config.model, max_len=config.data.seq_len, readout=readout)
        if not model.embedding.weight.is_meta:
            torch.manual_seed(config.seed)
            model.reset_parameters()
    return model
