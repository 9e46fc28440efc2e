"""How much of a model a run trains, as plans count it."""

from __future__ import annotations

from math import prod
from typing import Any

from loong_core.checkpoint.weight_map import WeightMap
from loong_core.nn.lora import adapter_parameters
from loong_core.nn.name_patterns import chosen
from loong_llm.recipes.lora_section import lora_settings
from loong_llm.recipes.training_config import TrainingConfig


def trained_share(config: TrainingConfig, weight_map: WeightMap, num_layers: int) -> dict[str, Any]:
    """The keys of `Workload` that say what is trained, in which the run differs from training everything.

    Raises:
        UserError: a pattern matches nothing.
    """
    sizes = {name: prod(shape) for name, shape in weight_map.tensors(num_layers).items()}
    settings, train = lora_settings(config), config.train
    if settings is not None:
        added = adapter_parameters(weight_map, num_layers, settings) / sum(sizes.values())
        assert config.lora is not None
        return {"trained": added, "added": added, "four_bit": config.lora.base == "nf4"}
    if not train.freeze and not train.train_only:
        return {}
    frozen = chosen(sizes, train.freeze, "train.freeze") if train.freeze else set()
    trained = chosen(sizes, train.train_only, "train.train_only") if train.train_only else set(sizes) - frozen
    return {"trained": sum(sizes[name] for name in trained) / sum(sizes.values())}
