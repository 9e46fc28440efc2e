"""`loong-dit check RUN.yaml [key=value ...]`."""

from __future__ import annotations

from typing import Annotated

import typer

from loong_core.cli.run_arguments import Overrides, Ranks, RunFile


def check(
    run_file: RunFile,
    overrides: Overrides = None,
    nproc: Ranks = 1,
    read_cache: Annotated[bool, typer.Option("--read-cache", help="Also compare every byte of the cache.")] = False,
) -> None:
    """Check a run file without training: every fault at once (status 2), or what the run would be."""
    from pathlib import Path

    from loong_core.cli.run_commands import tell_checked
    from loong_core.config import load_run
    from loong_dit.check import check_run
    from loong_dit.data.cache import LatentCache
    from loong_dit.recipes.training_config import DiffusionTrainingConfig

    loaded = load_run(DiffusionTrainingConfig, run_file, overrides or ())
    found = check_run(loaded, nproc)
    if read_cache and not found.faults and loaded.config.data.cache:
        found.faults += LatentCache(Path(loaded.config.data.cache).expanduser()).damaged()
    tell_checked(run_file, found.faults, found.facts)
