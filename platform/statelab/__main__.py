"""The command line's first and last word: signals, logs, exit status.

It imports nothing that takes time before the signals are in hand.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from statelab.signals import Stopped, leave_on_signals

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line: the process's own, if none is given.

    Exit status: 0 done, 1 failed, 2 the user's mistake (one line), 130 Ctrl-C, 143 terminated.
    """
    if arguments is None:
        # The process is this command's own.
        leave_on_signals()
        arguments = sys.argv[1:]
    sys.exit(_run(list(arguments)))


def _run(arguments: list[str]) -> int:
    """Run a command, and say in one line on standard error what the user can mend."""
    import logging
    import os

    from typer.exceptions import TyperException

    from statelab.commands import (  # noqa: F401
        check,
        compare,
        evaluate,
        generate,
        look,
        new,
        runs,
        search,
        tokenizer,
        ui,
        work,
    )
    from statelab.commands.app import app, as_keys
    from statelab.errors import StatelabError

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for noisy in ("lightning", "mlflow", "alembic", "datasets", "matplotlib", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        return app(as_keys(arguments), standalone_mode=False) or 0
    except StatelabError as error:
        said, status = str(error), error.exit_status
    except TyperException as error:
        option = getattr(error, "option_name", "")
        hint = f"; a key is written without dashes, {option[2:]}=VALUE" if option[2:] else ""
        said, status = f"{error.format_message()} (see `statelab --help`{hint})", 2
    except Stopped:
        raise
    except SystemExit as error:
        if "_STATELAB_COMPLETE" in os.environ or isinstance(error.__context__, BrokenPipeError):
            # The shell's question is answered; or nobody reads any further.
            raise
        # A rule's, say: the command is not done, and must not look so.
        raise RuntimeError("a sys.exit() inside of the command has ended it") from error
    sys.stderr.write(f"statelab: {' '.join(said.splitlines())}\n")
    return status


if __name__ == "__main__":
    main()
