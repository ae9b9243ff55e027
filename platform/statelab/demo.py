"""`make demo`: every pair on recall and on text, tracked, then one table and one figure."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from statelab.config import Config
from statelab.loading import load_config
from statelab.sizes import measure
from statelab.train import Result, pair_name, train

__all__ = ["main"]

PAIRS = [
    *(
        (write, read)
        for write in ("gla", "deltanet", "s4d")
        for read in ("plain", "ccq", "interdomain")
    ),
    ("kv", "softmax"),
]
#: What must come out: an associative memory recalls, and S4D doesn't.
RECALLS, FORGETS = "deltanet+plain", "s4d+plain"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One pair in the table."""

    pair: str
    parameters: int
    state_bytes: int
    bpb: float
    recall: float
    tokens_per_second: float


def main() -> int:
    """Train, compare, and say whether recall came out as it must."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    # At this size a second thread gains little, and stalls where the machine is busy.
    torch.set_num_threads(1)
    console = Console(stderr=True, highlight=False)
    start = time.monotonic()
    rows: list[Row] = []
    folder = Path()
    for index, (write, read) in enumerate(PAIRS, 1):
        configs = [_config(write, read, arm) for arm in ("recall", "text")]
        console.print(f"[{index}/{len(PAIRS)}] {pair_name(configs[0])}", markup=False)
        recall, text = (train(each) for each in configs)
        rows.append(_row(configs[1], recall, text))
        folder = text.folder.parent
    out = Console(highlight=False, width=100)
    out.print(_table(rows))
    figure = folder / "demo.png"
    _draw(rows, figure)
    out.print(f"{time.monotonic() - start:.0f} s. Figure: {figure}")
    out.print("See the runs in MLflow: .venv/bin/statelab ui")
    return _judge(rows, out)


def _config(write: str, read: str, arm: str) -> Config:
    return load_config("demo", [f"arm={arm}", f"write={write}", f"read={read}"])


def _row(config: Config, recall: Result, text: Result) -> Row:
    sizes = measure(config)
    return Row(
        pair=pair_name(config),
        parameters=sizes.parameters,
        state_bytes=sizes.state_bytes,
        bpb=text.metrics["val/bpb"],
        recall=recall.metrics["val/accuracy"],
        tokens_per_second=text.metrics["perf/tokens_per_second"],
    )


def _table(rows: list[Row]) -> Table:
    table = Table(title="A short budget: one seed, a few hundred small steps", title_justify="left")
    table.add_column("write + read")
    for column in ("parameters", "state, bytes", "text, bits/byte", "recall", "tokens/s"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.pair.replace("+", " + "),
            f"{row.parameters:,}",
            f"{row.state_bytes:,}",
            f"{row.bpb:.3f}",
            f"{row.recall:.3f}",
            f"{row.tokens_per_second:,.0f}",
        )
    return table


def _draw(rows: list[Row], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    names = [row.pair.replace("+", " + ") for row in rows]
    left.barh(names, [row.recall for row in rows], color="#0072b2")
    left.set(xlabel="recall accuracy (4 pairs, 32 tokens)", xlim=(0, 1))
    left.invert_yaxis()
    right.barh(names, [row.bpb for row in rows], color="#e69f00")
    right.set(xlabel="text, bits per byte (less is better)")
    figure.suptitle("Write rule + read rule, two layers of width 64, a short budget")
    figure.savefig(file, dpi=150)


def _judge(rows: list[Row], out: Console) -> int:
    recall = {row.pair: row.recall for row in rows}
    if recall[RECALLS] >= 0.9 and recall[FORGETS] <= 0.5:
        return 0
    out.print(
        f"Not as it must be: {RECALLS} recalls {recall[RECALLS]:.3f} (at least 0.9), "
        f"{FORGETS} {recall[FORGETS]:.3f} (at most 0.5)."
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
