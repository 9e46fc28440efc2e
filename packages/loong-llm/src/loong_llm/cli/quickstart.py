"""`loong-llm quickstart --output DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loong_llm.cli.run_arguments import Ranks


def quickstart(
    output: Annotated[Path, typer.Option("--output", "-o", help="The run folder.")] = Path("runs/quickstart"),
    nproc: Ranks = 1,
) -> None:
    """Train a small Qwen3 on the reference text that ships inside CPython: two minutes, no network, any machine."""
    from loong_core.parallel.launch import RankPlace, relaunch_as_ranks
    from loong_llm.data.python_topics import write_python_topics

    if not RankPlace.from_env().started:
        write_python_topics(output / "data")
        if nproc > 1:
            relaunch_as_ranks(nproc, output / "logs")
    from loong_llm.quickstart import quickstart as run

    run(output)
