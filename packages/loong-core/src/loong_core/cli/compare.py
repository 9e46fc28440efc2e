"""`loong compare RUN OTHER`: how far two runs are apart, and how many router choices differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loong_core.cli.tables import add_row, console, table


def compare(
    run: Annotated[Path, typer.Argument(help="A run folder (its `output`).", show_default=False)],
    other: Annotated[Path, typer.Argument(help="The run folder to compare it with.", show_default=False)],
) -> None:
    """Compare the steps that two runs have in common: figures, and routers' choices where both kept them."""
    from loong_core.cli.curves import read_run
    from loong_core.config import RunFolder
    from loong_core.train.comparison import compare_choices, compare_figures
    from loong_core.wording import counted

    figures = compare_figures(read_run(run).rows, read_run(other).rows)
    folders = RunFolder(run).router_choices, RunFolder(other).router_choices
    choices = compare_choices(*folders)
    made = table(
        f"{run} and {other}",
        "figure",
        "steps",
        "largest difference",
        "relative",
        "at step",
        "last step",
        "one",
        "other",
    )
    for each in figures:
        add_row(
            made,
            each.name,
            str(each.steps),
            f"{each.largest:.3g}",
            f"{each.largest_relative:.3g}",
            str(each.at),
            str(each.last_step),
            f"{each.last[0]:.7f}",
            f"{each.last[1]:.7f}",
        )
    console().print(made)
    if choices is not None:
        where = "" if choices.first_step is None else f", the first in step {choices.first_step}"
        kept = counted(choices.steps, "step")
        print(f"{choices.different:,} of {choices.total:,} router choices differ, in {kept}{where}")
    elif any(folder.is_dir() for folder in folders):
        print("router choices: both runs kept them in no step; logging.router_choices_every=1 keeps those of all")
