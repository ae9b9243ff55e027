"""States of more than one part."""

from collections.abc import Mapping

from torch import Tensor


def state_parts(state: Mapping[str, Tensor] | None, *names: str) -> tuple[Tensor | None, ...]:
    """Take an initial state apart; every part of no state is None.

    Raises:
        ValueError: If the state lacks a part or has another one.
    """
    if state is None:
        return (None,) * len(names)
    if state.keys() != set(names):
        raise ValueError(
            f"initial_state must hold {', '.join(sorted(names))}; got {', '.join(sorted(state))}."
        )
    return tuple(state[name] for name in names)
