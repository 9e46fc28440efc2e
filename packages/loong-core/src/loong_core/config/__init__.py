"""A run's configuration: typed sections, loading with every fault reported at once, and the folder of a run.

Nothing here imports torch, so that `--help` and `check` answer at once.
"""

from loong_core.config.loading import load_run
from loong_core.config.run_folder import RunFolder
from loong_core.config.section import MAY_CHANGE, REQUIRED, Section
from loong_core.config.sections import (
    CheckpointSection,
    EmaSection,
    FsdpSection,
    LayoutSection,
    LoggingSection,
    MegatronSection,
    ProfileSection,
    RunConfig,
    SpikeSection,
    TrainSection,
    WandbSection,
)

__all__ = [
    "MAY_CHANGE",
    "REQUIRED",
    "CheckpointSection",
    "EmaSection",
    "FsdpSection",
    "LayoutSection",
    "LoggingSection",
    "MegatronSection",
    "ProfileSection",
    "RunConfig",
    "RunFolder",
    "Section",
    "SpikeSection",
    "TrainSection",
    "WandbSection",
    "load_run",
]
