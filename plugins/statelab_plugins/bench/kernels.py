"""`statelab bench kernels`, case by case: correctness first, then memory, times and ratios."""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from matplotlib.figure import Figure
from torch.nn.functional import scaled_dot_product_attention

from statelab.benchmarks import Report
from statelab_plugins.bench.agreement import TOLERANCE, agrees
from statelab_plugins.bench.cases import CASES, B, Case, D, H, Inputs
from statelab_plugins.bench.correctness import error
from statelab_plugins.bench.figure import Curves, draw_times
from statelab_plugins.bench.machine import SHARED, machine, size_of, threads_of
from statelab_plugins.bench.memory import memory_use
from statelab_plugins.bench.targets import with_target
from statelab_plugins.bench.timing import interleave, ratio, spread

OPTIONS: Mapping[str, Sequence[str] | range] = {
    "cases": tuple(CASES),
    "device": ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",),
    **SHARED,
}

_LENGTHS = {"full": (512, 2048, 8192), "quick": (64, 256)}
_ROUNDS = {"full": 5, "quick": 2}
# The loop takes seconds, and minutes at the last length, where it isn't run.
_LOOP_ROUNDS = {"full": 3, "quick": 1}
_FORMS = {"chunked": "chunked", "loop": "loop", "sdpa": "SDPA"}

_logger = logging.getLogger("statelab.bench")

# Seconds by form, T and round.
Seconds = Mapping[tuple[str, int], Sequence[float]]
Row = dict[str, Any]


def run(options: Mapping[str, Sequence[str]]) -> Report:
    """Measure the chunked forms in float32, forward and backward.

    Args:
        options: Words by option, among `OPTIONS`: `cases`, all by default; `device`; `quick`,
            which takes short sequences and few rounds; `threads`.
    """
    device = torch.device(options.get("device", ("cpu",))[0])
    with threads_of(options):
        return _measure(options.get("cases", tuple(CASES)), size_of(options), device)


def draw(report: Report) -> Figure | None:
    """Time against T, a panel a case."""
    panels: dict[str, Curves] = {}
    for row in report.tables["time_ms"]:
        curves = panels.setdefault(row["case"], {label: {} for label in _FORMS.values()})
        for form, label in _FORMS.items():
            if row[form] is not None:
                curves[label][row["T"]] = row[form]
    setup = report.setup
    return draw_times(
        panels,
        title=f"Kernels, forward and backward: B {B}, H {H}, K = V = M = {D}, float32, "
        f"{setup['device']}, threads {setup['threads']}",
        x="T, tokens",
        y="time, ms",
        baseline=_FORMS["sdpa"],
    )


def _measure(cases: Sequence[str], size: str, device: torch.device) -> Report:
    setup = {**machine(device), "B": B, "H": H, "K": D, "V": D, "M": D}
    tables: dict[str, list[Row]] = {
        name: [] for name in ("correctness", "time_ms", "ratio", "memory_mib")
    }
    for name in cases:
        _logger.info("bench kernels: %s", name)
        case = CASES[name]
        checked = _correctness(case, device)
        tables["correctness"].append({"case": name, **checked})
        if checked["right"]:
            # Memory first, since it warms the op up at every length.
            tables["memory_mib"] += _memory(name, _LENGTHS[size], device)
            seconds = _seconds(case, size, device)
            tables["time_ms"] += _times(name, _LENGTHS[size], seconds)
            tables["ratio"] += _ratios(name, _LENGTHS[size], seconds, device)
    correct = all(row["right"] for row in tables["correctness"])
    return Report(correct=correct, setup=setup, tables=tables)


def _correctness(case: Case, device: torch.device) -> Row:
    errors = {dtype: error(case, dtype, device) for dtype in TOLERANCE}
    named = {f"error_{str(dtype).removeprefix('torch.')}": off for dtype, off in errors.items()}
    return {**named, "right": agrees(errors)}


def _memory(name: str, lengths: Sequence[int], device: torch.device) -> list[Row]:
    rows: list[Row] = []
    for num_tokens in lengths:
        inputs = CASES[name].inputs(num_tokens, torch.float32, device)
        forward = functools.partial(CASES[name].run, inputs, "chunked")
        d_output = torch.randn_like(forward()["output"])
        used = memory_use(forward, list(inputs.values()), d_output)
        mib = {"kept": used.kept / 2**20, "working": used.working / 2**20}
        rows.append({"case": name, "T": num_tokens, **mib})
    return rows


def _seconds(case: Case, size: str, device: torch.device) -> Seconds:
    runs: dict[tuple[str, int], Callable[[], object]] = {}
    rounds: dict[tuple[str, int], int] = {}
    *looped, _ = _LENGTHS[size]
    for num_tokens in _LENGTHS[size]:
        inputs = case.inputs(num_tokens, torch.float32, device)
        runs["chunked", num_tokens] = _step(case, inputs, "chunked")
        runs["sdpa", num_tokens] = _attention_step(num_tokens, device)
        if num_tokens in looped:
            runs["loop", num_tokens] = _step(case, inputs, "reference")
            rounds["loop", num_tokens] = _LOOP_ROUNDS[size]
    return interleave(runs, dict.fromkeys(runs, _ROUNDS[size]) | rounds, device)


def _step(case: Case, inputs: Inputs, backend: str) -> Callable[[], object]:
    """A forward, and a backward from the output alone: training asks nothing of the last state."""
    leaves = list(inputs.values())
    d_output = torch.randn_like(case.run(inputs, "chunked")["output"])

    def step() -> object:
        return torch.autograd.grad(case.run(inputs, backend)["output"], leaves, d_output)

    return step


def _attention_step(num_tokens: int, device: torch.device) -> Callable[[], object]:
    """The same of torch's causal attention."""
    q, k, v, d_output = torch.randn(4, B, H, num_tokens, D, device=device)
    for leaf in (q, k, v):
        leaf.requires_grad_()

    def step() -> object:
        output = scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.autograd.grad(output, (q, k, v), d_output)

    return step


def _times(name: str, lengths: Sequence[int], seconds: Seconds) -> list[Row]:
    rows: list[Row] = []
    for num_tokens in lengths:
        times = {form: seconds.get((form, num_tokens)) for form in _FORMS}
        cells = {form: each and spread([1e3 * s for s in each]) for form, each in times.items()}
        rows.append({"case": name, "T": num_tokens, **cells})
    return rows


def _ratios(name: str, lengths: Sequence[int], seconds: Seconds, device: torch.device) -> list[Row]:
    shorter = {long: short for short, long in pairwise(lengths)}
    rows: list[Row] = []
    for num_tokens in lengths:
        chunked = ("chunked", num_tokens)
        quotients = {
            "loop_over_chunked": (("loop", num_tokens), chunked),
            "chunked_over_sdpa": (chunked, ("sdpa", num_tokens)),
            "chunked_over_shorter": (chunked, ("chunked", shorter.get(num_tokens, 0))),
        }
        row: Row = {"case": name, "T": num_tokens}
        for column, (above, below) in quotients.items():
            row[column] = None
            if above in seconds and below in seconds:
                row[column] = ratio(seconds[above], seconds[below])
                if device.type == "cpu":
                    row[column] = with_target(name, column, num_tokens, row[column])
        rows.append(row)
    return rows
