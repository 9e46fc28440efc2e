"""`loong-vla quickstart --output DIR`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer


def quickstart(
    output: Annotated[Path, typer.Option("--output", "-o", help="The run folder.")] = Path("runs/vla"),
    nproc: Annotated[
        int | None, typer.Option("--nproc", min=1, help="Ranks; by default one, on a CPU of several cores two.")
    ] = None,
) -> None:
    """Teach a small robot to touch the coloured ball among grey ones: minutes on a CPU, no network needed."""
    from importlib.util import find_spec

    from loong_core.config import RunFolder
    from loong_core.errors import UserError
    from loong_core.parallel.launch import launch

    if find_spec("pymunk") is None:
        raise UserError("the quickstart's simulator needs pymunk: pip install 'loong-vla[simulator]'")
    from loong_vla.quickstart import prepare, report

    run_file = prepare(output)
    command = [sys.executable, "-m", "loong_vla.cli.main", "train", str(run_file)]
    status = launch(command, nproc or _ranks_of_this_machine(), log_dir=output / "logs",
                    advice=RunFolder(output).after_a_crash)  # fmt: skip
    if status:
        sys.exit(status)
    report(output)


def _ranks_of_this_machine() -> int:
    """Two ranks use two cores better than one with two threads does: a model this small has too little to share."""
    from loong_core.device import select

    return min(2, len(os.sched_getaffinity(0))) if select().device.torch_type == "cpu" else 1
