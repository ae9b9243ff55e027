"""What a trial sets, in few words: for the names of runs, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["in_short", "short_key", "short_value"]


def short_key(key: str) -> str:
    """The last part of a key: `lr` of optim.lr, `write` of model.write.name."""
    return key.removesuffix(".name").rpartition(".")[2]


def short_value(value: object) -> str:
    """A value, a number with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def in_short(values: Mapping[str, object]) -> str:
    """All of it, as `gate=fixed lambda_init=0.1`."""
    return " ".join(f"{short_key(key)}={short_value(each)}" for key, each in values.items())
