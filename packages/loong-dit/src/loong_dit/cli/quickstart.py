"""`loong-dit quickstart --output DIR`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def quickstart(
    output: Annotated[Path, typer.Option("--output", "-o", help="The run folder.")] = Path("runs/dit"),
    nproc: Annotated[
        int | None, typer.Option("--nproc", min=1, help="Ranks; by default one, on a CPU of several cores two.")
    ] = None,
) -> None:
    """Train a small Wan on handwritten digits that move, and let a classifier judge its samples; no network needed."""
    from loong_core.config import RunFolder
    from loong_core.device import select
    from loong_core.parallel.launch import RankPlace, relaunch_as_ranks
    from loong_dit.quickstart import prepare
    from loong_dit.quickstart import quickstart as run

    if not RankPlace.from_env().started:
        prepare(output)
        # Two ranks use two cores better than one with two threads does: a model this small has too little to share.
        on_cpu = select().device.torch_type == "cpu"
        ranks = nproc or (min(2, len(os.sched_getaffinity(0))) if on_cpu else 1)
        if ranks > 1:
            relaunch_as_ranks(ranks, output / "logs", RunFolder(output).after_a_crash)
    run(output)
