"""What the project wants on a CPU: printed beside what was measured, never a failure."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

# By column and T, for every row or, with its name, for one.
_TARGETS: Mapping[str, tuple[str, float]] = {
    "gla loop_over_chunked 2048": (">=", 8),
    "deltanet loop_over_chunked 2048": (">=", 12),
    "chunked_over_sdpa 2048": ("<=", 1.5),
    "chunked_over_sdpa 8192": ("<", 0.5),
    "chunked_over_shorter 8192": ("<=", 4.8),
    "step_over_shorter 16384": ("<=", 1.2),
}

_HOLDS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
}


def with_target(name: str, column: str, num_tokens: int, ratio: Mapping[str, float]) -> Any:
    """Add to a ratio that has one its "target", and whether its median has "met" it."""
    key = f"{column} {num_tokens}"
    target = _TARGETS.get(f"{name} {key}", _TARGETS.get(key))
    if target is None:
        return ratio
    sign, bound = target
    met = _HOLDS[sign](ratio["median"], bound)
    return {**ratio, "target": f"{sign} {bound:g}", "met": met}
