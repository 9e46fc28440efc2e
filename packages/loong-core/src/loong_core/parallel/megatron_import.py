"""Importing megatron-core: late, because it takes seconds, and without the notices it prints on the way."""

from __future__ import annotations

import logging
import warnings
from functools import cache

_NOISY_LOGGERS = ("torch.utils.cpp_extension", "megatron.core")


@cache
def import_megatron() -> None:
    """Import the parts of megatron-core that the project drives.

    Importing it warns of every optional package that is missing (TransformerEngine, Apex, absl), none of which is
    needed, and using it warns of its own deprecated defaults; errors still show.
    """
    warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.core\.")
    levels = {name: logging.getLogger(name).level for name in _NOISY_LOGGERS}
    try:
        for name in _NOISY_LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import megatron.core.distributed
            import megatron.core.optimizer
            import megatron.core.pipeline_parallel.p2p_communication
            import megatron.core.pipeline_parallel.schedules
            import megatron.core.process_groups_config
            import megatron.core.transformer.transformer_config  # noqa: F401
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
