"""A report on a pair of rules: all checks, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from statelab.testing import memory, numbers, parameters, sequences
from statelab.testing.check import Check, Measured
from statelab.testing.memory import MemorySubject, memory_of
from statelab.testing.subject import Subject, forms_that_run

__all__ = ["CHECKS", "Report", "examine"]

_PAIR: tuple[Check[Subject], ...] = (
    sequences.causality,
    sequences.halves,
    sequences.steps,
    sequences.packed,
    sequences.left_padded,
    sequences.batch_size,
    sequences.forms,
    sequences.extreme_inputs,
    sequences.one_form,
    sequences.odd_sizes,
    numbers.gradients,
    numbers.float32,
    numbers.bfloat16,
    numbers.autocast,
    numbers.state_precision,
    numbers.compiled,
    numbers.long_input,
    numbers.repeated_keys,
    numbers.uninitialised,
    parameters.config_round_trip,
    parameters.state_size,
    parameters.constant_state,
    parameters.save_and_load,
    parameters.init,
    parameters.meta_device,
    parameters.optimizer,
)
_MEMORY: tuple[Check[MemorySubject], ...] = (
    memory.linear,
    memory.adjoint,
    memory.memory_halves,
    memory.slots,
    memory.other_streams,
)


def _of_rule(one: Check[MemorySubject]) -> Check[Subject]:
    """A memory's check, of the memory that a pair's write rule makes."""
    return Check(one.what, one.allowed, lambda subject: one.measure(memory_of(subject)))


#: Every check, of pairs.
CHECKS = (*_PAIR, *map(_of_rule, _MEMORY))


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What the checks of a pair found.

    Attributes:
        write: The write rule.
        read: The read rule.
        backend: What runs: the setting, and the kernels with their forms, as far as they have any.
        rows: A row a check.
    """

    write: str
    read: str
    backend: str
    rows: list[Measured]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not any(row.passed is False for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "write": self.write,
            "read": self.read,
            "backend": self.backend,
            "passed": self.passed,
            "rows": [row.to_json() for row in self.rows],
        }


def examine(subject: Subject, tell: Callable[[str], None] = lambda what: None) -> Report:
    """Run all checks of a pair.

    Args:
        subject: The pair.
        tell: Is told the name of each check before it runs.

    Raises:
        StatelabError: If a rule can't be loaded, or the pair or an option makes no sense.
    """
    setting = subject.config().model.backend
    return Report(
        write=subject.write,
        read=subject.read,
        rows=list(_rows(subject, tell)),
        backend=f"{setting} on cpu: {_forms(subject)}",
    )


def _rows(subject: Subject, tell: Callable[[str], None]) -> Iterator[Measured]:
    for each in CHECKS:
        tell(each.what)
        yield each(subject)


def _forms(subject: Subject) -> str:
    try:
        with torch.no_grad(), forms_that_run() as forms:
            subject.model()(subject.tokens(1, 9))
    except Exception as error:  # A row says more of it.
        return f"{type(error).__name__}"
    return ", ".join(sorted(forms)) or "no kernel that has several forms"
