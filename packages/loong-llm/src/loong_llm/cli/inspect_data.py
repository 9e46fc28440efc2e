"""`loong-llm inspect-data RUN.yaml [key=value ...] [-n N]`."""

from __future__ import annotations

from typing import Annotated

import typer

from loong_core.cli.run_arguments import Overrides, RunFile


def inspect_data(
    run_file: RunFile,
    overrides: Overrides = None,
    count: Annotated[int, typer.Option("-n", min=1, help="Sequences to show.")] = 1,
) -> None:
    """Show a run's first sequences as the model will see them: tokens, what is trained on, what shares a sequence.

    The text is prepared into the run's cache, where training finds it.
    """
    from rich.console import Console

    from loong_core.config import load_run
    from loong_core.errors import ConfigError
    from loong_llm.inspect_data import first_sequences
    from loong_llm.recipes.training_config import TrainingConfig
    from loong_llm.stage_checks import data_faults, stage_faults

    loaded = load_run(TrainingConfig, run_file, overrides or ())
    if faults := [*loaded.faults, *stage_faults(loaded.config), *data_faults(loaded.config)]:
        raise ConfigError(faults)
    console = Console(soft_wrap=True, highlight=False)
    for text in first_sequences(loaded.config, count):
        console.print(text)
