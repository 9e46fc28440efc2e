"""`loong plot RUN [RUN ...]`: curves of runs as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def plot(
    runs: Annotated[list[Path], typer.Argument(help="Run folders (their `output`).", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="PNG to write; loss.png in the run's folder, or here for several runs."),
    ] = None,
) -> None:
    """Draw loss, gradient norm and throughput of one or more runs to a PNG."""
    from loong_core.cli.curves import draw_runs, read_run

    read = [read_run(path) for path in runs]
    if output is None:
        folder = runs[0] if runs[0].is_dir() else runs[0].parent
        output = folder / "loss.png" if len(runs) == 1 else Path("loss.png")
    draw_runs(read, output)
    print(output)
