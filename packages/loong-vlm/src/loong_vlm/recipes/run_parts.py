"""The parts of the model that a run file names, without torch."""

from __future__ import annotations

from loong_vlm.composition import Grafts, compose
from loong_vlm.model_config import read_vision_config
from loong_vlm.parts import ModelParts
from loong_vlm.recipes.training_config import VisionTrainingConfig


def run_parts(config: VisionTrainingConfig) -> tuple[str, ModelParts]:
    """What the model is called, and its parts.

    Raises:
        UserError: as `loong_vlm.source.open_vision_model`.
    """
    model = config.model
    if grafts := Grafts(model.tower, model.projector, model.language):
        made = compose(model.source, grafts, model.overrides)
        return made.model.name, made.model.parts
    found = read_vision_config(model.source, model.overrides)
    return found.name, found.parts
