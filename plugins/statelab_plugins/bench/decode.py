"""`statelab bench decode`: time per token after a short and after a long context."""

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure

from statelab.benchmarks import Report
from statelab.context import State
from statelab.decoder import Decoder
from statelab_plugins.bench.agreement import agrees
from statelab_plugins.bench.figure import draw_times, panels_by_read
from statelab_plugins.bench.machine import SHARED, machine, size_of, threads_of
from statelab_plugins.bench.models import (
    BASELINE,
    PAIRS,
    SIZES,
    VOCAB_SIZE,
    check_steps,
    small_model,
    some_tokens,
    state_bytes,
)
from statelab_plugins.bench.targets import with_target
from statelab_plugins.bench.timing import interleave, ratio, spread

OPTIONS: Mapping[str, Sequence[str] | range] = {"pairs": tuple(PAIRS), **SHARED}

_CONTEXTS = {"full": (256, 16_384), "quick": (16, 64)}
_ROUNDS = {"full": 60, "quick": 3}
# Tokens that a context is read in at once.
_PIECE = 1024
_CPU = torch.device("cpu")

_logger = logging.getLogger("statelab.bench")

Row = dict[str, Any]


def run(options: Mapping[str, Sequence[str]]) -> Report:
    """Measure one token at a time, one sequence, in float32.

    Args:
        options: Words by option, among `OPTIONS`: `pairs`, all by default; `quick`, which takes
            short contexts and few rounds; `threads`.
    """
    with threads_of(options):
        return _measure(options.get("pairs", tuple(PAIRS)), size_of(options))


def draw(report: Report) -> Figure | None:
    """Time per token against context, a panel a read rule."""
    sizes = ", ".join(f"{name} {size}" for name, size in SIZES.items())
    return draw_times(
        panels_by_read(report.tables["decoding"], x="context", baseline=BASELINE),
        title=f"Decoding one sequence: {sizes}, float32, "
        f"{report.setup['device']}, threads {report.setup['threads']}",
        x="context, tokens",
        y="time per token, ms",
        baseline=BASELINE,
    )


def _measure(names: Sequence[str], size: str) -> Report:
    setup = {**machine(_CPU), **SIZES, "vocab_size": VOCAB_SIZE, "B": 1}
    tables: dict[str, list[Row]] = {"correctness": [], "decoding": []}
    for name in names:
        _logger.info("bench decode: %s", name)
        off = check_steps(name)
        right = agrees({torch.float64: off})
        tables["correctness"].append({"pair": name, "error_float64": off, "right": right})
        if right:
            tables["decoding"] += _rows(name, size)
    correct = all(row["right"] for row in tables["correctness"])
    return Report(correct=correct, setup=setup, tables=tables)


@torch.no_grad()
def _rows(name: str, size: str) -> list[Row]:
    """A row a context; both take turns, and every step goes on from the same state."""
    model = small_model(name)
    short, long = _CONTEXTS[size]
    states = {short: _read(model, short)}
    states[long] = _read(model, long - short, states[short])
    runs = {
        context: functools.partial(model, some_tokens(1), state)
        for context, state in states.items()
    }
    for warm_up in runs.values():
        warm_up()
    seconds = interleave(runs, dict.fromkeys(runs, _ROUNDS[size]), _CPU)
    kept = {context: state_bytes(state) for context, state in states.items()}
    grown: Any = ratio(seconds[long], seconds[short])
    if kept[long] == kept[short]:
        grown = with_target(name, "step_over_shorter", long, grown)
    return [
        {
            "pair": name,
            "context": context,
            "ms": spread([1e3 * each for each in seconds[context]]),
            "step_over_shorter": grown if context == long else None,
            "state_bytes": kept[context],
        }
        for context in (short, long)
    ]


def _read(model: Decoder, num_tokens: int, state: State | None = None) -> State:
    """Read a context on, in pieces."""
    for piece in torch.split(some_tokens(num_tokens), _PIECE, dim=1):
        # The state alone: the head's logits aren't asked for.
        _, state = model.hidden(piece, state)
    assert state is not None
    return state
