"""The `lora` section of a run file as the adapters take it."""

from __future__ import annotations

from loong_core.nn.lora import LoraSettings
from loong_llm.recipes.training_config import TrainingConfig


def lora_settings(config: TrainingConfig) -> LoraSettings | None:
    """The `lora` section as the adapters take it.

    Raises:
        UserError: its values contradict each other.
    """
    section = config.lora
    if section is None:
        return None
    targets = (section.targets,) if isinstance(section.targets, str) else tuple(section.targets)
    return LoraSettings(
        rank=section.rank,
        alpha=section.alpha,
        dropout=section.dropout,
        targets=targets,
        rslora=section.rslora,
        dora=section.dora,
        seed=config.seed,
    )
