"""What a family of vision-language models tells the framework."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loong_vlm.parts import ModelParts

if TYPE_CHECKING:
    from loong_core.checkpoint.weight_map import WeightMap


@dataclass(frozen=True)
class VisionFamily:
    """A family: models of like parts, which meet in the same way. Plug-ins register one by `loong.vision_families`.

    Attributes:
        name: what it is called.
        model_types: values of `model_type` in `config.json` that belong to it.
        parts: `config.json` to parts; raises `UserError` with every key it cannot serve.
        weight_maps: the model's parameters in terms of the family's Hugging Face tensors, in each layout that
            checkpoints come in; the first is written where there is no checkpoint to follow.
        configs: folder of named sizes, each a `config.json` called `NAME.json`; None if it ships none.
        transformers_class: name of the class that opens an export, None where transformers has none.
        optional_keys: keys of `config.json` that may be missing from it.
        completed: (a folder's `config.json`, the folder) to the config with what other files of the folder tell.
        harmless_tensors: patterns of tensors that checkpoints may hold beside the weights, without effect on the model.
        language_types: families of loong-llm that may be its language model, each with the `model_type` of its section.
        tied_heads: what checkpoints of tied models may call a second copy of the embedding table.
    """

    name: str
    model_types: tuple[str, ...]
    parts: Callable[[dict[str, Any]], ModelParts]
    weight_maps: Callable[[ModelParts], tuple[WeightMap, ...]]
    configs: Traversable | None = None
    transformers_class: str | None = None
    optional_keys: tuple[str, ...] = ()
    completed: Callable[[dict[str, Any], Path], dict[str, Any]] | None = None
    harmless_tensors: tuple[str, ...] = ()
    language_types: Mapping[str, str] = field(default_factory=dict)
    tied_heads: tuple[str, ...] = ("lm_head.weight",)

    def named_configs(self) -> dict[str, dict[str, Any]]:
        """Each shipped size's `config.json`, by name."""
        files = [] if self.configs is None else [file for file in self.configs.iterdir() if file.name.endswith(".json")]
        ordered = sorted(files, key=lambda file: file.name)
        return {file.name.removesuffix(".json"): json.loads(file.read_text()) for file in ordered}

    def named_sizes(self) -> dict[str, int]:
        """Each shipped size's number of parameters, by name."""
        return {name: self.parts(hf).parameter_count() for name, hf in self.named_configs().items()}
