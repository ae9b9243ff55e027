"""A check: a small function that measures one promise, and the bound that it must keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

__all__ = ["Check", "Measured", "NotApplicable", "Worst", "check"]

S = TypeVar("S")


class NotApplicable(Exception):  # noqa: N818  it is no error
    """Raised by a check that has no meaning for its subject; says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One row of a report.

    Attributes:
        what: The promise.
        measured: How far it is missed at worst; None if nothing could be measured.
        allowed: The greatest `measured` that passes.
        passed: Whether it is kept; None if the check has no meaning here.
        detail: Where the worst was found, why nothing could be measured, or why it has no meaning.
        error: What a check that broke off raised.
    """

    what: str
    measured: float | None
    allowed: float
    passed: bool | None
    detail: str = ""
    error: Exception | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        names = ("what", "measured", "allowed", "passed", "detail")
        return {name: getattr(self, name) for name in names}


class Worst:
    """The greatest of many deviations, and where it was; one that is no number is the greatest."""

    def __init__(self) -> None:
        self.value = 0.0
        self.where = ""

    def see(self, value: float, where: str) -> None:
        """Take in one deviation."""
        if not value <= self.value and self.value == self.value:
            self.value, self.where = value, where

    def compare(self, given: Tensor, wanted: Tensor, where: str) -> None:
        """Take in the greatest |given - wanted| / (1 + |wanted|)."""
        if given.shape != wanted.shape:
            raise AssertionError(f"{where}: shape {list(given.shape)}, not {list(wanted.shape)}")
        if given.numel():
            deviation = (given - wanted).detach().abs() / (1 + wanted.detach().abs())
            self.see(float(deviation.max()), where)

    def compare_states(
        self, given: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: str
    ) -> None:
        """Take in the slots of two states."""
        if given.keys() != wanted.keys():
            odd = ", ".join(sorted(given.keys() ^ wanted.keys()))
            raise AssertionError(f"{where}: only one of two states has {odd}")
        for slot, tensor in wanted.items():
            self.compare(given[slot], tensor, f"{where}, slot {slot}")

    def compare_norms(self, given: Tensor, wanted: Tensor, where: str) -> None:
        """Take in |given - wanted| / |wanted|, in float64."""
        given, wanted = given.double(), wanted.double()
        self.see(float((given - wanted).norm() / wanted.norm()), where)

    def finite(self, tensors: Mapping[str, Tensor | None], where: str) -> None:
        """Count a tensor that is missing or not finite as infinitely far off."""
        for name, tensor in tensors.items():
            if tensor is None or not bool(torch.isfinite(tensor).all()):
                state = "missing" if tensor is None else "not finite"
                self.see(float("inf"), f"{where}: {name} is {state}")


@dataclass(frozen=True, slots=True)
class Check(Generic[S]):
    """A promise with its bound; call it with a subject.

    Attributes:
        what: The promise.
        allowed: The greatest deviation that keeps it.
        measure: Measures the deviation.
    """

    what: str
    allowed: float
    measure: Callable[[S], Worst]

    def __call__(self, subject: S) -> Measured:
        """Measure; whatever the measuring raises is this row's failure."""
        try:
            worst = self.measure(subject)
        except NotApplicable as why:
            return Measured(
                what=self.what, measured=None, allowed=self.allowed, passed=None, detail=str(why)
            )
        except Exception as error:
            line, kind = " ".join(str(error).split()), type(error).__name__
            said = line if line and isinstance(error, AssertionError) else f"{kind}: {line}"
            return Measured(
                what=self.what,
                measured=None,
                allowed=self.allowed,
                passed=False,
                detail=said,
                error=error,
            )
        return Measured(
            what=self.what,
            measured=worst.value,
            allowed=self.allowed,
            passed=worst.value <= self.allowed,
            detail=worst.where,
        )


def check(what: str, *, allowed: float) -> Callable[[Callable[[S], Worst]], Check[S]]:
    """Make a check of a function that measures."""
    return lambda measure: Check(what, allowed, measure)
