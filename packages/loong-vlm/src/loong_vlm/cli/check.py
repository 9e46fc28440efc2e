"""`loong-vlm check RUN.yaml [key=value ...]`."""

from __future__ import annotations

import typer

from loong_core.cli.run_arguments import Overrides, Ranks, RunFile


def check(run_file: RunFile, overrides: Overrides = None, nproc: Ranks = 1) -> None:
    """Check a run file without training: every fault at once (status 2), or what the run would be."""
    from loong_core.config import load_run
    from loong_core.errors import ConfigError
    from loong_vlm.check import check_run
    from loong_vlm.recipes.training_config import VisionTrainingConfig

    loaded = load_run(VisionTrainingConfig, run_file, overrides or ())
    found = check_run(loaded, nproc)
    if found.faults:
        raise ConfigError(found.faults)
    width = max(map(len, found.facts))
    for name, fact in found.facts.items():
        typer.echo(f"{name:<{width}}  {fact}")
    for warning in found.here:
        typer.echo(f"warning: {warning}")
    typer.echo(f"{run_file}: no faults")
