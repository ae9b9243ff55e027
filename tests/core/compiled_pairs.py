"""Train every pair of rules compiled, checkpointed and plainly, and compare the losses.

    python tests/core/compiled_pairs.py [write+read ...]

A row gives the largest relative difference of 60 losses from those of plain training. Machine code
rounds otherwise than torch, and training makes more of that with each step; how much more is the
column `one ulp`: plain training from weights that are off by a rounding error. The exit status is 1
if a compiled loss is off by more than 1e-4 and ten times that column, or if checkpointing changes
any. All 16 pairs take half an hour on two cores, nearly all of it in torch's compiler.
"""

import csv
import logging
import os
import sys
import tempfile
import time

os.environ["OMP_NUM_THREADS"] = "1"  # before torch starts its pool

import torch

from statelab.language_model import LanguageModel
from statelab.loading import load_config
from statelab.train import train

WRITES = ("linear", "gla", "deltanet", "gated_deltanet", "s4d")
PAIRS = [f"{w}+{r}" for w in WRITES for r in ("plain", "ccq", "interdomain")] + ["kv+softmax"]
STEPS = 60
TOLERANCE = 1e-4


def losses(pair: str, *overrides: str) -> tuple[list[float], float]:
    """The loss of each step, and the seconds that the run took."""
    write, read = pair.split("+")
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(
            None,
            [
                f"write={write}",
                f"read={read}",
                *(["write.num_modes=8"] if write == "s4d" else []),
                "model.d_model=32",
                "model.num_layers=2",
                "model.num_heads=2",
                "data.name=mqar",
                "data.vocab_size=64",
                "data.seq_len=64",
                "data.num_pairs=4",
                "data.num_train=2000",
                "data.num_val=16",
                "data.batch_size=8",
                "optim.lr=0.001",
                "optim.warmup_steps=20",
                f"trainer.max_steps={STEPS}",
                f"trainer.val_every={STEPS}",
                "trainer.accelerator=cpu",
                "tracking.enabled=false",
                "tracking.figures=false",
                f"run_dir={folder}",
                *overrides,
            ],
        )
        start = time.monotonic()
        result = train(config, progress=False)
        seconds = time.monotonic() - start
        with (result.folder / "metrics.csv").open() as file:
            rows = [row["train/loss"] for row in csv.DictReader(file)]
    found = [float(each) for each in rows if each]
    assert len(found) == STEPS
    return found, seconds


def nudged(pair: str) -> list[float]:
    """The loss of each step, from weights that are off by up to one rounding error."""
    configure = LanguageModel.configure_model

    def nudge(model: LanguageModel) -> None:
        built = model.model is not None
        configure(model)
        if not built:
            generator = torch.Generator().manual_seed(0)
            with torch.no_grad():
                for weight in model.decoder.parameters():
                    noise = 2 * torch.rand(weight.shape, generator=generator) - 1
                    weight *= 1 + torch.finfo(weight.dtype).eps * noise

    LanguageModel.configure_model = nudge
    try:
        return losses(pair)[0]
    finally:
        LanguageModel.configure_model = configure


def difference(found: list[float], wanted: list[float]) -> float:
    """The largest relative one."""
    return max(abs(f - w) / abs(w) for f, w in zip(found, wanted, strict=True))


def row(name: str, *cells: str) -> None:
    """Print one, at once."""
    sys.stdout.write(f"{name:28}{''.join(f'{each:>14}' for each in cells)}\n")
    sys.stdout.flush()


def main(pairs: list[str]) -> int:
    """Print a row a pair."""
    logging.disable(logging.INFO)
    failed = False
    row("pair", "checkpointed", "compiled", "both", "one ulp", "plain, s", "compiled, s")
    for pair in pairs:
        plain, eager = losses(pair)
        kept, _ = losses(pair, "trainer.activation_checkpointing=true")
        torch.compiler.reset()
        compiled, seconds = losses(pair, "trainer.compile=true")
        both, _ = losses(pair, "trainer.compile=true", "trainer.activation_checkpointing=true")
        apart = [difference(each, plain) for each in (kept, compiled, both, nudged(pair))]
        failed |= apart[0] > 0 or max(apart[1:3]) > max(TOLERANCE, 10 * apart[3])
        row(pair, *(f"{each:.1e}" for each in apart), f"{eager:.0f}", f"{seconds:.0f}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or PAIRS))
