"""How every command of the project ends: one clear message on stderr and a status that says what kind of end it was.

0 done; 2 the user's input; 3 a numerical guard; 4 a run that hung; 128 + N after signal N; anything else is unexpected
and comes with its traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer


def run_app(app: typer.Typer, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit.

    Args:
        app: made with `pretty_exceptions_enable=False`, so that unexpected errors keep their plain traceback.
        arguments: what follows the command's name; those of this process by default.
    """
    status: int | str | None = 1
    try:
        typer.main.get_command(app)(args=None if arguments is None else list(arguments))
    except SystemExit as end:
        status = end.code
    except Exception as error:
        # The project's own errors carry their status; loong-kernels, which knows no LoongError, has one too.
        known: int | None = getattr(error, "exit_status", None)
        if known is None:
            raise
        print(f"error: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        status = known
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (`| head`) has gone. Python would complain once more when it closes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)
