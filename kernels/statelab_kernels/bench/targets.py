"""What the project wants of its kernels on a CPU: printed beside the figures, never a failure."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

# By ratio, for every case or, with its name, for one.
_TARGETS: Mapping[str, tuple[str, float]] = {
    "gla loop_over_chunked_2048": (">=", 8),
    "deltanet loop_over_chunked_2048": (">=", 12),
    "chunked_over_sdpa_2048": ("<=", 1.5),
    "chunked_over_sdpa_8192": ("<", 0.5),
    "chunked_8192_over_2048": ("<=", 4.8),
}

_HOLDS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
}


def with_targets(case: str, ratios: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """Add to each ratio that has one its "target", and whether its median has "met" it."""
    judged: dict[str, dict[str, Any]] = {}
    for name, ratio in ratios.items():
        judged[name] = dict(ratio)
        target = _TARGETS.get(f"{case} {name}", _TARGETS.get(name))
        if target is not None:
            sign, bound = target
            met = _HOLDS[sign](ratio["median"], bound)
            judged[name] |= {"target": f"{sign} {bound:g}", "met": met}
    return judged
