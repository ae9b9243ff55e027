"""`statelab bench decode`: time per token after a short and after a long context."""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure

from statelab.benchmarks import Report
from statelab.model.context import State
from statelab.model.decoder import Decoder
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
        _logger.info("bench decode: checking %s", name)
        off = check_steps(name)
        right = agrees({torch.float64: off})
        tables["correctness"].append({"pair": name, "error_float64": off, "right": right})
    right_ones = [row["pair"] for row in tables["correctness"] if row["right"]]
    if right_ones:
        tables["decoding"] = _rows(right_ones, size)
    return Report(correct=len(right_ones) == len(names), setup=setup, tables=tables)


@torch.inference_mode()
def _rows(names: Sequence[str], size: str) -> list[Row]:
    """A row a pair and context; all take turns, a pair's two contexts one after the other."""
    short, long = _CONTEXTS[size]
    kept: dict[tuple[str, int], int] = {}
    runs: dict[tuple[str, int], Callable[[], object]] = {}
    for name in names:
        _logger.info("bench decode: reading with %s", name)
        model = small_model(name)
        before = _read(model, short)
        for context, state in ((short, before), (long, _read(model, long - short, before))):
            kept[name, context] = state_bytes(state)
            # Every step goes on from the same state.
            step = runs[name, context] = functools.partial(model, some_tokens(1), state)
            step()
    _logger.info("bench decode: timing")
    seconds = interleave(runs, dict.fromkeys(runs, _ROUNDS[size]), _CPU)
    rows: list[Row] = []
    for (name, context), times in seconds.items():
        grown: Any = None
        if context == long:
            grown = ratio(times, seconds[name, short])
            if kept[name, long] == kept[name, short]:
                grown = with_target(name, "step_over_shorter", long, grown)
        rows.append(
            {
                "pair": name,
                "context": context,
                "ms": spread([1e3 * each for each in times]),
                "step_over_shorter": grown,
                "state_bytes": kept[name, context],
            }
        )
    return rows


def _read(model: Decoder, num_tokens: int, state: State | None = None) -> State:
    """Read a context on, in pieces."""
    for piece in torch.split(some_tokens(num_tokens), _PIECE, dim=1):
        # The state alone: the head's logits aren't asked for.
        _, state = model.hidden(piece, state)
    assert state is not None
    return state
