"""What of a model a run trains: parts frozen, parts with rates of their own, adapters on some parts."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from loong_core.checkpoint.weight_map import WeightMap
from loong_core.errors import UserError
from loong_core.nn.lora import ALL_LINEAR, linear_layers
from loong_core.nn.name_patterns import chosen
from loong_llm.recipes.training_config import TrainingConfig
from loong_vlm.recipes.training_config import PART_NAMES, VisionTrainingConfig
from loong_vlm.source import VisionModelSource


def with_chosen_parts(config: VisionTrainingConfig, source: VisionModelSource) -> TrainingConfig:
    """The run as loong-llm's recipes take it: parts written out as patterns of Hugging Face names.

    Raises:
        UserError: nothing is left to train, or adapters are asked for where there is nothing to adapt.
    """
    frozen = config.frozen_parts()
    if config.lora is not None:
        return config.model_copy(update={"lora": _lora(config, source)})
    if not frozen:
        return config
    if len(frozen) == len(PART_NAMES):
        raise UserError("parts: every part is frozen, which leaves nothing to train; freeze fewer")
    names = [name for part in frozen for name in tensors_of(part, source)]
    train = config.train.model_copy(update={"freeze": [*config.train.freeze, *names]})
    return config.model_copy(update={"train": train})


def tensors_of(part: str, source: VisionModelSource) -> list[str]:
    """Names of a part's Hugging Face tensors."""
    rules = [rule for rule in source.weight_map.rules if rule.ours.startswith(f"{part}.")]
    return list(WeightMap(rules).tensors(source.config.num_layers))


def lr_scale(config: VisionTrainingConfig) -> Callable[[str, nn.Parameter], float]:
    """What the learning rate of a parameter is multiplied by, by the part that its name begins with."""
    scales = {part: getattr(config.parts, part).lr_scale for part in PART_NAMES}
    return lambda name, parameter: scales.get(name.partition(".")[0], 1.0)


def _lora(config: VisionTrainingConfig, source: VisionModelSource) -> object:
    """The section with the layers of its parts as targets."""
    section = config.lora
    assert section is not None
    layers = linear_layers(source.weight_map, source.config.num_layers)
    names = {name.removesuffix(".weight") for part in section.parts for name in tensors_of(part, source)}
    targets = [section.targets] if isinstance(section.targets, str) else section.targets
    own = layers & names
    wanted = own if ALL_LINEAR in targets else chosen(own, targets, "lora.targets")
    return section.model_copy(update={"targets": sorted(wanted)})
