"""Draw what a run's checkpoint has learned."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from statelab.config import Config
from statelab.data.lightning_data import build_data
from statelab.data.packing import sequences
from statelab.errors import DataError, RunError
from statelab.evaluate import load_checkpoint
from statelab.examination import SHOWN, examine
from statelab.registries import data_modules
from statelab.runs.stored import StoredRun
from statelab.runs.tracking import make_folder
from statelab.train import pair_name

__all__ = ["inspect"]

_LONGEST = 256
_SEQUENCES = 4


def inspect(
    run: StoredRun, *, checkpoint: str = "last", text: str | None = None, out: Path | None = None
) -> list[Path]:
    """Draw all figures of a checkpoint.

    Args:
        run: The run.
        checkpoint: "last" or "best".
        text: What the model reads; None is the start of the validation split.
        out: Where the figures go; None is `inspect` in the run's folder.

    Returns:
        The files.

    Raises:
        StatelabError: If run or checkpoint can't be read, the model can't read the text, or the
            figures can't be written.
    """
    config = run.config()
    file = run.checkpoint(checkpoint)
    tokens = _validation(config) if text is None else _encode(config, text)
    model = load_checkpoint(file).model
    assert model is not None
    seen = examine(model, config, tokens, SHOWN if text is None else _LONGEST)
    out = out or run.folder / "inspect"
    make_folder(out, str(out), "out")
    # Matplotlib takes a second to import: only now, when nothing else can be wrong.
    from statelab.figures.report import draw
    from statelab.figures.style import Subject

    subject = Subject(
        pair=pair_name(config), parameters=seen.parameters, moment=f"{checkpoint} checkpoint"
    )
    files = draw(seen, subject, run.folder, out)
    if not files:
        raise RunError(f"no figure could be written to {out}; the lines above say why.")
    return files


def _encode(config: Config, text: str) -> Tensor:
    tokens = data_modules.get(config.data.name).cls.encode(config.data, text)
    if not 2 <= len(tokens) <= _LONGEST:
        raise DataError(f"text has {len(tokens)} tokens; give from 2 to {_LONGEST}.")
    return torch.tensor([tokens])


def _validation(config: Config) -> Tensor:
    return sequences(next(iter(build_data(config).val_dataloader())), _SEQUENCES)
