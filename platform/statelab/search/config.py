"""The keys of a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from statelab.errors import ConfigError
from statelab.options import Section, option

__all__ = ["SearchConfig"]

Direction = Literal["minimize", "maximize"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig(Section):
    """A study: what is asked for, how it is looked for, and where it is kept.

    A space's `search` block sets other defaults of everything but the space itself.
    """

    space: str | None = option(
        None, "what is varied: name of a search.yaml, or its path; null is the experiment's own"
    )
    study: str | None = option(None, "name of the study; null is EXPERIMENT-SPACE")
    storage: str | None = option(
        None, "URL of Optuna's database, sqlite or postgresql; null is optuna.db in run_dir"
    )
    n_trials: int = option(20, "trials in all, those of earlier calls included", at_least=1)
    workers: int = option(1, "processes that this call starts", at_least=1)
    metric: tuple[str, ...] = option(
        ("val/loss",), "what is looked for: a logged metric, or a size such as state_bytes"
    )
    direction: tuple[Direction, ...] = option(("minimize",), "one for each metric")
    sampler: str = option("tpe", "tpe, random, or any class of optuna.samplers")
    sampler_options: dict[str, str] = option(factory=dict, doc="arguments of the sampler")
    pruner: str = option("median", "median, hyperband, none, or any class of optuna.pruners")
    pruner_options: dict[str, str] = option(factory=dict, doc="arguments of the pruner")
    seed: int = option(0, "of the sampler's draws", at_least=0, at_most=2**32 - 1)
    heartbeat: int = option(
        30, "seconds between a trial's signs of life; it is lost after four of them", at_least=1
    )
    retries: int = option(2, "times that a trial is repeated whose process died", at_least=0)

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if not self.metric or len(self.metric) != len(self.direction):
            raise ConfigError(
                f"search.metric={','.join(self.metric)} and search.direction="
                f"{','.join(self.direction)} must be as many: a direction for each metric."
            )
        if len(self.metric) > 1 and self.pruner != "none":
            raise ConfigError(
                f"search.pruner={self.pruner} can't compare trials by several metrics "
                f"({', '.join(self.metric)}). Set search.pruner=none."
            )
