"""`loong-vlm train RUN.yaml [key=value ...] [--nproc N]`."""

from __future__ import annotations

from loong_core.cli.run_arguments import Overrides, Ranks, RunFile


def train(run_file: RunFile, overrides: Overrides = None, nproc: Ranks = 1) -> None:
    """Train a model; the same command resumes a run that was stopped.

    Status 0: done, or stopped at train.stop_at. 2: something is wrong with the run file. 3: a numerical guard stopped
    the run. 128 + N: signal N did; the run's state is saved, but for a rank that was killed (137), when it is that of
    the last checkpoint.
    """
    from loong_core.cli.run_commands import start_training
    from loong_vlm.recipes.training_config import VisionTrainingConfig

    start_training(
        VisionTrainingConfig,
        run_file,
        overrides,
        nproc,
        check="loong_vlm.check:checked",
        recipe="loong_vlm.recipes.fine_tuning:fine_tune",
    )
