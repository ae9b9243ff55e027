"""A further process of a run: `python -m statelab.runs.follow FOLDER [CHECKPOINT]`.

The first process starts it, and hears a byte on its standard output when it is ready to train.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from statelab.runs.children import end_with_parent

__all__ = ["main"]


def main() -> None:
    """Train as that process."""
    # It may wait for the others where no other signal reaches it, and has nothing to put right.
    end_with_parent(signal.SIGKILL)
    ready = os.dup(1)
    os.dup2(2, 1)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    folder, *checkpoint = (Path(each) for each in sys.argv[1:])
    from statelab.signals import Pruned, Stopped
    from statelab.train import follow

    # The first process says why it has stopped.
    with suppress(Pruned, Stopped):
        follow(folder, checkpoint[0] if checkpoint else None, lambda: os.write(ready, b"1"))


if __name__ == "__main__":
    main()
