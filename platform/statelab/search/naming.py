"""What a trial sets, in few words: for the names of runs, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping

from statelab.config import Config
from statelab.runs.naming import short_pair
from statelab.values import spell_out

__all__ = ["in_short", "short_key", "short_value", "trial_name"]

_RULES = {"model.write.name", "model.read.name"}


def short_key(key: str) -> str:
    """The last part of a key: `lr` of optim.lr, `write` of model.write.name."""
    return key.removesuffix(".name").rpartition(".")[2]


def short_value(value: object) -> str:
    """A value, a number with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def trial_name(config: Config, values: Mapping[str, object]) -> str:
    """The name of a trial's run, as `gla+ccq s1 lr=0.01`: what the study varies comes first."""
    keys = {spell_out(key) for key in values}
    rest = {key: each for key, each in values.items() if spell_out(key) not in {*_RULES, "seed"}}
    words = [(short_pair(config), bool(keys & _RULES)), (f"s{config.seed}", "seed" in keys)]
    varied = [word for word, is_varied in words if is_varied]
    given = [word for word, is_varied in words if not is_varied]
    return " ".join([*varied, *([in_short(rest)] if rest else []), *given])


def in_short(values: Mapping[str, object]) -> str:
    """All of it, as `gate=fixed lambda_init=0.1`."""
    return " ".join(f"{short_key(key)}={short_value(each)}" for key, each in values.items())
