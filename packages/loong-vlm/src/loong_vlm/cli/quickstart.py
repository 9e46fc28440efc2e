"""`loong-vlm quickstart --output DIR`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

OUTPUT = Path("runs/vlm")
"""Where it writes unless told."""


def quickstart(
    output: Annotated[Path, typer.Option("--output", "-o", help="The run folder.")] = OUTPUT,
    prepare: Annotated[bool, typer.Option("--prepare", help="Write parts and data only, and train nothing.")] = False,
    nproc: Annotated[
        int | None, typer.Option("--nproc", min=1, help="Ranks; by default one, on a CPU of several cores two.")
    ] = None,
) -> None:
    """Compose a small model, and teach it to read handwritten digits: five minutes on two cores, no network needed."""
    from loong_core.config import RunFolder
    from loong_core.parallel.launch import RankPlace, relaunch_as_ranks
    from loong_vlm.quickstart import quickstart as run
    from loong_vlm.quickstart import write_quickstart_parts

    if not RankPlace.from_env().started:
        write_quickstart_parts(output)
        if prepare:
            typer.echo(f"{output / 'tower'}, {output / 'language'} and {output / 'data'} are there")
            return
        ranks = nproc or _ranks_of_this_machine()
        if ranks > 1:
            relaunch_as_ranks(ranks, output / "logs", RunFolder(output).after_a_crash)
    run(output)


def _ranks_of_this_machine() -> int:
    """Two ranks use two cores better than one with two threads does: a model this small has too little to share."""
    from loong_core.device import select

    return min(2, len(os.sched_getaffinity(0))) if select().device.torch_type == "cpu" else 1
