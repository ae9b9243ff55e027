"""The benchmark, case by case: correctness first, then memory, times and their ratios.

It returns plain values and imports nothing of statelab, which finds it through an entry point.
"""

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from statelab_kernels.bench.cases import CASES, B, Case, D, H, Inputs
from statelab_kernels.bench.correctness import TOLERANCE, error
from statelab_kernels.bench.memory import memory_use
from statelab_kernels.bench.targets import with_targets
from statelab_kernels.bench.timing import interleave, num_threads, ratio, spread

OPTIONS: Mapping[str, Sequence[str]] = {
    "cases": tuple(CASES),
    "device": ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",),
    "quick": ("false", "true"),
    "threads": tuple(str(n) for n in range(1, (os.cpu_count() or 1) + 1)),
}

_LENGTHS = {"full": (2048, 8192), "quick": (128, 256)}
_ROUNDS = {"full": 5, "quick": 2}
# The loop takes seconds.
_LOOP_ROUNDS = {"full": 3, "quick": 1}

_logger = logging.getLogger("statelab.kernels")


def run(options: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Measure the chunked forms in float32, forward and backward.

    Args:
        options: Words by option, among `OPTIONS`: `cases`, all by default; `device`; `quick`,
            which takes short sequences and few rounds, to see that all of it works; and `threads`,
            1 by default, since threads that wait for each other measure what else runs there.

    Returns:
        {"correct", "setup", "tables"}. A case that is wrong is in the table of correctness alone.
    """
    size = "quick" if "true" in options.get("quick", ()) else "full"
    device = torch.device(options.get("device", ("cpu",))[0])
    with num_threads(int(options.get("threads", ("1",))[0])):
        return _measure(options.get("cases", tuple(CASES)), size, device)


def _measure(cases: Sequence[str], size: str, device: torch.device) -> dict[str, Any]:
    tables: dict[str, list[dict[str, Any]]] = {
        "correctness": [],
        "time_ms": [],
        "ratio": [],
        "memory_mib": [],
    }
    setup = {
        "device": str(device),
        "threads": torch.get_num_threads(),
        "load_before": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "dtype": "float32",
        **{"B": B, "H": H, "K": D, "V": D, "M": D},
    }
    for name in cases:
        _logger.info("bench kernels: %s", name)
        case = CASES[name]
        row = {"case": name, **_correctness(case, device)}
        tables["correctness"].append(row)
        if row["right"]:
            # Memory first, since it warms the op up at both lengths.
            memory = _memory(case, size, device)
            seconds = _seconds(case, size, device)
            ratios = _ratios(seconds, size)
            if device.type == "cpu":
                ratios = with_targets(name, ratios)
            tables["time_ms"].append({"case": name, **_milliseconds(seconds)})
            tables["ratio"].append({"case": name, **ratios})
            tables["memory_mib"].append({"case": name, **memory})
    correct = all(row["right"] for row in tables["correctness"])
    return {"correct": correct, "setup": setup, "tables": tables}


def _correctness(case: Case, device: torch.device) -> dict[str, Any]:
    errors = {dtype: error(case, dtype, device) for dtype in TOLERANCE}
    named = {f"error_{str(dtype).removeprefix('torch.')}": off for dtype, off in errors.items()}
    # Asked this way round, since a NaN is never less.
    return {**named, "right": all(errors[dtype] < most for dtype, most in TOLERANCE.items())}


def _memory(case: Case, size: str, device: torch.device) -> dict[str, float]:
    mib: dict[str, float] = {}
    for num_tokens in _LENGTHS[size]:
        inputs = case.inputs(num_tokens, torch.float32, device)
        forward = functools.partial(case.run, inputs, "chunked")
        d_output = torch.randn_like(forward()["output"])
        used = memory_use(forward, list(inputs.values()), d_output)
        mib[f"kept_{num_tokens}"] = used.kept / 2**20
        mib[f"working_{num_tokens}"] = used.working / 2**20
    return mib


def _seconds(case: Case, size: str, device: torch.device) -> dict[str, list[float]]:
    short, long = _LENGTHS[size]
    runs: dict[str, Callable[[], object]] = {}
    for num_tokens in (short, long):
        inputs = case.inputs(num_tokens, torch.float32, device)
        runs[f"chunked_{num_tokens}"] = _step(case, inputs, "chunked")
        runs[f"sdpa_{num_tokens}"] = _attention_step(num_tokens, device)
        if num_tokens == short:
            runs[f"loop_{num_tokens}"] = _step(case, inputs, "reference")
    rounds = dict.fromkeys(runs, _ROUNDS[size]) | {f"loop_{short}": _LOOP_ROUNDS[size]}
    return interleave(runs, rounds, device)


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


def _milliseconds(seconds: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    return {name: spread([1e3 * each for each in times]) for name, times in seconds.items()}


def _ratios(seconds: Mapping[str, Sequence[float]], size: str) -> dict[str, dict[str, float]]:
    short, long = _LENGTHS[size]
    pairs = {
        f"loop_over_chunked_{short}": (f"loop_{short}", f"chunked_{short}"),
        f"chunked_over_sdpa_{short}": (f"chunked_{short}", f"sdpa_{short}"),
        f"chunked_over_sdpa_{long}": (f"chunked_{long}", f"sdpa_{long}"),
        f"chunked_{long}_over_{short}": (f"chunked_{long}", f"chunked_{short}"),
    }
    return {name: ratio(seconds[above], seconds[below]) for name, (above, below) in pairs.items()}
