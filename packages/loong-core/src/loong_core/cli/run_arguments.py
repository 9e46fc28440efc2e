"""The arguments of commands that take a run file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunFile = Annotated[Path, typer.Argument(metavar="RUN.yaml", help="The run file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="key=value", help="Values that win over the file's, such as train.lr=1e-4.", show_default=False
    ),
]
Ranks = Annotated[int, typer.Option("--nproc", min=1, help="Ranks on this machine; torchrun starts more.")]
