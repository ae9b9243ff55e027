"""`statelab bench pairs`: a training step of every pair of rules, against softmax attention."""

import logging
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from statelab.benchmarks import Report
from statelab.model.decoder import Decoder
from statelab_plugins.bench.agreement import agrees
from statelab_plugins.bench.figure import draw_times, panels_by_read
from statelab_plugins.bench.machine import SHARED, machine, size_of, threads_of
from statelab_plugins.bench.memory import memory_use
from statelab_plugins.bench.models import (
    BASELINE,
    PAIRS,
    SIZES,
    VOCAB_SIZE,
    check_training,
    small_model,
    some_tokens,
    state_bytes,
)
from statelab_plugins.bench.timing import interleave, ratio, spread

OPTIONS: Mapping[str, Sequence[str] | range] = {
    "pairs": tuple(PAIRS),
    "T": range(1, 2**16 + 1),
    **SHARED,
}

_LENGTHS = {"full": ("256", "1024"), "quick": ("64",)}
_ROUNDS = {"full": 5, "quick": 2}
_CPU = torch.device("cpu")

_logger = logging.getLogger("statelab.bench")

Row = dict[str, Any]


def run(options: Mapping[str, Sequence[str]]) -> Report:
    """Measure forward and backward of one sequence in float32.

    Args:
        options: Words by option, among `OPTIONS`: `pairs`, all by default, and the baseline in
            any case; `T`; `quick`, which takes one short length and few rounds; `threads`.
    """
    names = dict.fromkeys((BASELINE, *options.get("pairs", PAIRS)))
    lengths = sorted({int(each) for each in options.get("T", _LENGTHS[size_of(options)])})
    with threads_of(options):
        return _measure(list(names), lengths, _ROUNDS[size_of(options)])


def draw(report: Report) -> Figure | None:
    """Time against T, a panel a read rule."""
    sizes = ", ".join(f"{name} {size}" for name, size in SIZES.items())
    return draw_times(
        panels_by_read(report.tables["time"], x="T", baseline=BASELINE),
        title=f"A training step of one sequence: {sizes}, float32, "
        f"{report.setup['device']}, threads {report.setup['threads']}",
        x="T, tokens",
        y="time, ms",
        baseline=BASELINE,
    )


def _measure(names: Sequence[str], lengths: Sequence[int], rounds: int) -> Report:
    setup = {**machine(_CPU), **SIZES, "vocab_size": VOCAB_SIZE, "B": 1}
    tables: dict[str, list[Row]] = {"correctness": [], "time": [], "memory": []}
    for name in names:
        _logger.info("bench pairs: checking %s", name)
        off = check_training(name)
        right = agrees({torch.float64: off})
        tables["correctness"].append({"pair": name, "error_float64": off, "right": right})
    right_ones = [row["pair"] for row in tables["correctness"] if row["right"]]
    # Memory first, since it warms every pair up at every length.
    tables["memory"] = [_memory(name, num_tokens) for name in right_ones for num_tokens in lengths]
    if right_ones:
        tables["time"] = _times(right_ones, lengths, rounds)
    return Report(correct=len(right_ones) == len(names), setup=setup, tables=tables)


def _times(names: Sequence[str], lengths: Sequence[int], rounds: int) -> list[Row]:
    """A row a pair and length; all pairs take turns, so that they compare."""
    runs = {
        (name, num_tokens): _step(model, some_tokens(num_tokens))
        for name, model in ((name, small_model(name)) for name in names)
        for num_tokens in lengths
    }
    _logger.info("bench pairs: timing")
    seconds = interleave(runs, dict.fromkeys(runs, rounds), _CPU)
    rows: list[Row] = []
    for (name, num_tokens), times in seconds.items():
        # There is none where the baseline itself is wrong.
        others = seconds.get((BASELINE, num_tokens))
        rows.append(
            {
                "pair": name,
                "T": num_tokens,
                "ms": spread([1e3 * each for each in times]),
                "tokens_per_second": num_tokens / median(times),
                "over_kv_softmax": ratio(times, others) if others and name != BASELINE else None,
            }
        )
    return rows


def _step(model: Decoder, tokens: Tensor) -> Callable[[], object]:
    """Forward, and backward to every parameter; the loss and the optimizer are the same for all."""
    parameters = list(model.parameters())
    d_logits = torch.randn(*tokens.shape, VOCAB_SIZE)

    def step() -> object:
        return torch.autograd.grad(model(tokens)[0], parameters, d_logits)

    return step


def _memory(name: str, num_tokens: int) -> Row:
    model, tokens = small_model(name), some_tokens(num_tokens)
    with torch.no_grad():
        _, state = model(tokens)
    used = memory_use(
        lambda: {"output": model(tokens)[0]},
        list(model.parameters()),
        torch.randn(*tokens.shape, VOCAB_SIZE),
    )
    return {
        "pair": name,
        "T": num_tokens,
        "state_bytes": state_bytes(state),
        "kept_mib": used.kept / 2**20,
        "peak_mib": used.peak / 2**20,
    }
