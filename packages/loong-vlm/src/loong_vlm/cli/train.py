"""`loong-vlm train RUN.yaml [key=value ...] [--nproc N]`."""

from __future__ import annotations

from loong_core.cli.run_arguments import Overrides, Ranks, RunFile


def train(run_file: RunFile, overrides: Overrides = None, nproc: Ranks = 1) -> None:
    """Train a model; the same command resumes a run that was stopped.

    Status 0: done, or stopped at train.stop_at. 2: something is wrong with the run file. 3: a numerical guard stopped
    the run. 128 + N: signal N did; the run's state is saved, but for a rank that was killed (137), when it is that of
    the last checkpoint.
    """
    from loong_core.config import RunFolder, load_run
    from loong_core.config.files import user_path
    from loong_core.parallel.launch import RankPlace, relaunch_as_ranks
    from loong_vlm.recipes.training_config import VisionTrainingConfig

    place = RankPlace.from_env()
    loaded = load_run(VisionTrainingConfig, run_file, overrides or ())
    from loong_vlm.check import checked

    config = checked(loaded, place.world_size if place.started else nproc)
    if nproc > 1 and not place.started:
        folder = RunFolder(user_path(config.output))
        relaunch_as_ranks(nproc, folder.logs, folder.after_a_crash)
    from loong_vlm.recipes.fine_tuning import fine_tune

    fine_tune(config)
