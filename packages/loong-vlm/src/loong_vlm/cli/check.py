"""`loong-vlm check RUN.yaml [key=value ...]`."""

from __future__ import annotations

from loong_core.cli.run_arguments import Overrides, Ranks, RunFile


def check(run_file: RunFile, overrides: Overrides = None, nproc: Ranks = 1) -> None:
    """Check a run file without training: every fault at once (status 2), or what the run would be."""
    from loong_core.cli.run_commands import tell_checked
    from loong_core.config import load_run
    from loong_vlm.check import check_run
    from loong_vlm.recipes.training_config import VisionTrainingConfig

    loaded = load_run(VisionTrainingConfig, run_file, overrides or ())
    found = check_run(loaded, nproc)
    tell_checked(run_file, found.faults, found.facts, found.here)
