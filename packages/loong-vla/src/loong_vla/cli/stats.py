"""`loong-vla stats DATASET [--write]`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def stats(
    dataset: Annotated[Path, typer.Argument(help="A LeRobot dataset's folder.", show_default=False)],
    write: Annotated[bool, typer.Option("--write", help="Put them into the dataset's meta/stats.json.")] = False,
) -> None:
    """Statistics of states and actions over every frame, exact quantiles included: what normalisation goes by."""
    from loong_vla.data.statistics_file import dataset_statistics, write_statistics

    found = dataset_statistics(dataset)
    for feature, entry in found.items():
        typer.echo(f"{feature}: {int(entry['count'][0]):,} frames of {len(entry['mean'])} numbers")
        names = [name for name in entry if name != "count"]
        typer.echo("      " + "".join(f"{name:>12}" for name in names))
        for row in range(len(entry["mean"])):
            still = "  never changes" if entry["min"][row] == entry["max"][row] else ""
            typer.echo(f"  {row:>4}" + "".join(f"{entry[name][row]:12.4f}" for name in names) + still)
    if write:
        typer.echo(f"written to {write_statistics(dataset, found)}")
