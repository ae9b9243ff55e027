"""What a checkpoint says of itself, without its tensors being read."""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError

import torch

__all__ = ["UNREADABLE", "steps_done"]

#: What reading a file raises that is truncated, or no checkpoint.
UNREADABLE = (RuntimeError, EOFError, OSError, KeyError, TypeError, ValueError, UnpicklingError)


def steps_done(file: Path) -> int:
    """The optimizer steps that the training had done; nothing in the file is executed.

    Raises:
        UNREADABLE: If the file is truncated, or no checkpoint.
    """
    saved = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    return int(saved["global_step"])
