"""The keys of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from statelab.errors import ConfigError
from statelab.options import Section, option
from statelab.values import spell_out

__all__ = ["CompareConfig", "Direction", "Size"]

Direction = Literal["minimize", "maximize"]
Size = Literal["parameters", "state_bytes", "memory_bytes"]

_BEST: dict[str, Direction] = {
    "accuracy": "maximize",
    "exact": "maximize",
    "loss": "minimize",
    "ppl": "minimize",
    "bpb": "minimize",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareConfig(Section):
    """Which runs are compared, and how."""

    experiment: str | None = option(None, "only its runs")
    study: str | None = option(None, "only the runs of this search or grid")
    runs: tuple[str, ...] = option((), "only these ids, or how they begin")
    metric: str = option("val/loss", "what is compared")
    value: Literal["last", "best"] = option("last", "which of a run's values, over its steps")
    direction: Direction | None = option(None, "null knows accuracy, exact, loss, ppl and bpb")
    by: tuple[str, ...] = option(("write", "read"), "keys whose values make a row")
    over: tuple[str, ...] = option(("optim.lr",), "keys of which a row shows its best value")
    at: Size | None = option(None, "a size that compared runs share")
    tolerance: float = option(0.05, "by which their sizes may differ, a share", at_least=0)
    baseline: str | None = option(
        None, "the row that others are paired with, as read:plain or write:gla+read:plain"
    )
    out: str | None = option(None, "folder for the table, the figures and the page")
    run_dir: str = option("runs", "folder of all runs")

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        for each in self.runs:
            if not each.isalnum():
                raise ConfigError(
                    f"runs={','.join(self.runs)}: an id is made of letters and digits, "
                    f"got {each!r}."
                )
        if not self.by:
            raise ConfigError("by= is empty. Name the keys that make a row, such as write,read.")
        twice = {spell_out(key) for key in self.by} & {"seed", *map(spell_out, self.over)}
        if twice:
            raise ConfigError(
                f"by={','.join(self.by)} can't have {min(twice)}: a row takes its seeds together, "
                f"and shows the best of over={','.join(self.over)}."
            )

    @property
    def sense(self) -> Direction:
        """Whether the least or the greatest is best.

        Raises:
            ConfigError: If the metric's name doesn't tell.
        """
        known = (_BEST[part] for part in self.metric.split("/") if part in _BEST)
        sense = self.direction or next(known, None)
        if sense is None:
            raise ConfigError(
                f"metric={self.metric}: is the least best, or the greatest? "
                "Say direction=minimize or direction=maximize."
            )
        return sense

    def wanted_baseline(self) -> dict[str, str]:
        """The labels of the baseline by dotted key; empty if there is none.

        Raises:
            ConfigError: If it can't be read, or names a key that makes no row.
        """
        if self.baseline is None:
            return {}
        wanted: dict[str, str] = {}
        for part in self.baseline.split("+"):
            key, colon, value = part.partition(":")
            if not colon or not value or key not in self.by:
                raise ConfigError(
                    f"baseline={self.baseline} must be KEY:VALUE, or several joined by +, with "
                    f"keys of by={','.join(self.by)}; got {part!r}."
                )
            wanted[spell_out(key)] = value
        return wanted
