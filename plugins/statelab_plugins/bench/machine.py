"""What all benchmarks are told, and what they say of where they ran."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

#: Options of every benchmark: `quick` only shows that all of it works; `threads` are torch's.
SHARED: Mapping[str, Sequence[str] | range] = {
    "quick": ("false", "true"),
    "threads": range(1, (os.cpu_count() or 1) + 1),
}


def size_of(options: Mapping[str, Sequence[str]]) -> str:
    """`quick` or `full`."""
    return "quick" if "true" in options.get("quick", ()) else "full"


@contextmanager
def threads_of(options: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """Let torch use as many threads inside as the options say, or as it does by itself."""
    before = torch.get_num_threads()
    torch.set_num_threads(int(options["threads"][0]) if "threads" in options else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def machine(device: torch.device) -> dict[str, Any]:
    """Where it runs, for a report's setup; asked before the first measurement."""
    return {
        "device": str(device),
        "threads": torch.get_num_threads(),
        "load_before": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "dtype": "float32",
    }
