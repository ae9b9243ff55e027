"""statelab: a laboratory for language models with a fixed-size memory.

The public names load on first use, so that `import statelab` imports no torch.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statelab.data.lightning_data import build_data
    from statelab.language_model import LanguageModel
    from statelab.loading import load_config
    from statelab.model.build import build_model

__all__ = ["LanguageModel", "__version__", "build_data", "build_model", "load_config"]

_HOMES = {
    "LanguageModel": "statelab.language_model",
    "build_data": "statelab.data.lightning_data",
    "build_model": "statelab.model.build",
    "load_config": "statelab.loading",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return version("statelab")
    if name not in _HOMES:
        raise AttributeError(f"module 'statelab' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
