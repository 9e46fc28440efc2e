"""`loong-llm quickstart --output DIR`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def quickstart(
    output: Annotated[Path, typer.Option("--output", "-o", help="The run folder.")] = Path("runs/quickstart"),
    nproc: Annotated[
        int | None, typer.Option("--nproc", min=1, help="Ranks; by default one, on a CPU of several cores two.")
    ] = None,
) -> None:
    """Train a small Qwen3 on the reference text that ships inside CPython: two minutes, no network, any machine."""
    from loong_core.config import RunFolder
    from loong_core.parallel.launch import RankPlace, relaunch_as_ranks

    if not RankPlace.from_env().started:
        from loong_llm.data.python_topics import write_python_topics

        write_python_topics(output / "data")
        ranks = nproc or _ranks_of_this_machine()
        if ranks > 1:
            relaunch_as_ranks(ranks, output / "logs", RunFolder(output).after_a_crash)
    from loong_llm.quickstart import quickstart as run

    run(output)


def _ranks_of_this_machine() -> int:
    """Two ranks use two cores better than one with two threads does: a model this small has too little to share."""
    from loong_core.device import select

    return min(2, len(os.sched_getaffinity(0))) if select().device.torch_type == "cpu" else 1
