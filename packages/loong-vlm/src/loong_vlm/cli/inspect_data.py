"""`loong-vlm inspect-data RUN.yaml [key=value ...] [-n N]`."""

from __future__ import annotations

from typing import Annotated

import typer

from loong_core.cli.run_arguments import Overrides, RunFile


def inspect_data(
    run_file: RunFile,
    overrides: Overrides = None,
    count: Annotated[int, typer.Option("-n", min=1, help="Sequences to show.")] = 1,
) -> None:
    """Show a run's first sequences as the model will see them: images, tokens, what is trained on.

    The data are prepared into the run's cache, where training finds them.
    """
    from rich.console import Console

    from loong_core.config import load_run
    from loong_vlm.check import checked
    from loong_vlm.inspection import first_sequences
    from loong_vlm.recipes.training_config import VisionTrainingConfig

    config = checked(load_run(VisionTrainingConfig, run_file, overrides or ()), 1)
    console = Console(soft_wrap=True, highlight=False)
    for text in first_sequences(config, count):
        console.print(text)
