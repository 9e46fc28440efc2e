"""`loong-llm check RUN.yaml [key=value ...]`."""

from __future__ import annotations

from loong_core.cli.run_arguments import Overrides, Ranks, RunFile


def check(run_file: RunFile, overrides: Overrides = None, nproc: Ranks = 1) -> None:
    """Check a run file without training: every fault at once (status 2), or what the run would be."""
    from loong_core.cli.run_commands import tell_checked
    from loong_core.config import load_run
    from loong_core.config.checks import step_faults
    from loong_core.errors import ConfigError
    from loong_core.wording import counted
    from loong_llm.check import check_run
    from loong_llm.data_preview import preview_data
    from loong_llm.recipes.training_config import TrainingConfig

    loaded = load_run(TrainingConfig, run_file, overrides or ())
    found = check_run(loaded, nproc)
    if found.faults:
        raise ConfigError(found.faults)
    config = loaded.config
    if (seen := preview_data(config, nproc)) is not None and config.train.steps is None:
        if faults := step_faults(config.train, seen.steps):
            raise ConfigError(faults)
        tokens = seen.steps * config.train.global_batch_size * config.data.sequence_length
        found.facts["length"] += f" = {counted(seen.steps, 'step')}, {counted(tokens, 'token')}"
    tell_checked(run_file, found.faults, found.facts, [*found.here, *(seen.warnings if seen is not None else ())])
