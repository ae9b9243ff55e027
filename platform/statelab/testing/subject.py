"""What is checked: a pair of rules, in models so small that all checks take seconds."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from statelab.config import Config
from statelab.loading import load_config
from statelab.model.build import build_model
from statelab.model.context import State
from statelab.model.decoder import Decoder
from statelab.model.mixer import Mixer
from statelab.registries import read_rules, write_rules
from statelab.rules import Rule

__all__ = ["EXACT", "Subject", "forms_that_run", "memory_slots"]

#: Deviation of two float64 computations that are one by definition.
EXACT = 1e-9

#: Every stream is convolved and every position counts, so that no state is left out.
_TOY = (
    "smoke=true",
    "data.name=mqar",
    "data.vocab_size=32",
    "data.num_pairs=[3]",
    "model.d_model=16",
    "model.head_dim=8",
    "model.value_dim=12",
    "model.mlp=none",
    "model.positions=rope",
    "model.mixer.conv=4",
    "model.mixer.conv_streams=q,k,v",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A write rule and a read rule, with the options that they are checked at.

    Attributes:
        write: The write rule, as on the command line.
        read: The read rule.
        overrides: More `key=value`.
    """

    write: str
    read: str
    overrides: tuple[str, ...] = ()

    def config(self, *overrides: str) -> Config:
        """The configuration of a toy model; what a check says wins over what the user says.

        Raises:
            StatelabError: If a rule can't be loaded, or the pair or an option makes no sense.
        """
        rules = (f"write={self.write}", f"read={self.read}")
        given = (each.partition("=") for each in (*_TOY, *rules, *self.overrides, *overrides))
        values = {key: value for key, _, value in given}
        return load_config(None, [f"{key}={value}" for key, value in values.items()])

    def model(
        self, *overrides: str, dtype: torch.dtype = torch.float64, stirred: bool = True
    ) -> Decoder:
        """The model, moved off its start, where some parameters are 0, unless told otherwise."""
        model = build_model(self.config(*overrides)).to(dtype)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters() if stirred else ():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.add_(0.1 * noise)
        return model

    @property
    def is_cache(self) -> bool:
        """Whether the memory is of all tokens, and so grows with them."""
        return "cache" in write_rules.get(self.write).cls.provides

    @property
    def full_precision(self) -> bool:
        """Whether a rule's parameters must stay fp32 at least."""
        rules = write_rules.get(self.write).cls, read_rules.get(self.read).cls
        return any(rule.full_precision for rule in rules)

    @staticmethod
    def tokens(batch: int, length: int, seed: int = 0) -> Tensor:
        """Random tokens, [batch, length]."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(32, (batch, length), generator=generator)

    @staticmethod
    def rules(model: Decoder) -> dict[str, Rule]:
        """The rules in a model, by the name of their module."""
        return {name: part for name, part in model.named_modules() if isinstance(part, Rule)}

    @staticmethod
    def mixer(model: Decoder) -> Mixer:
        """The first layer's mixer."""
        mixer = model.layers[0].mixer
        assert isinstance(mixer, Mixer)
        return mixer


def memory_slots(state: State) -> State:
    """The slots of a memory, without the convolutions' last inputs and the position."""
    return {
        name: tensor
        for name, tensor in state.items()
        if not {"conv", "position"} & set(name.split("."))
    }


@contextmanager
def forms_that_run() -> Iterator[set[str]]:
    """Collect "operation form" of all kernels that run inside, from what the kernels log."""
    ran: set[str] = set()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno == logging.DEBUG and isinstance(record.args, tuple):
                op, form = record.args
                ran.add(f"{op} {form}")

    log, handler = logging.getLogger("statelab.kernels"), Handler()
    before = log.level, log.propagate
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(handler)
    try:
        yield ran
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]
