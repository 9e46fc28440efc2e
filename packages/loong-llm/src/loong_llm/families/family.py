"""What a family of models tells the framework."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any

from loong_core.nn.decoder_config import DecoderConfig

if TYPE_CHECKING:
    from loong_core.checkpoint.weight_map import WeightMap


@dataclass(frozen=True)
class Family:
    """A family: models that differ in size only. Plug-ins register one by the entry-point group `loong.families`.

    Attributes:
        name: what it is called.
        model_types: values of `model_type` in `config.json` that belong to it.
        decoder_config: `config.json` to the decoder; raises `UserError` with every key it cannot serve.
        weight_map: the decoder's parameters in terms of the family's Hugging Face tensors.
        configs: folder of named sizes, each a `config.json` called `NAME.json`; None if it ships none.
        transformers_class: name of the class that opens an export, None where transformers has none.
        optional_keys: keys of `config.json` that only this family reads and that may be missing from it.
        harmless_tensors: patterns of tensors that checkpoints may hold beside the weights, without effect on the model.
        tied_tensors: second copies of the table that checkpoints of tied models may hold: name to the first's name.
    """

    name: str
    model_types: tuple[str, ...]
    decoder_config: Callable[[dict[str, Any]], DecoderConfig]
    weight_map: Callable[[DecoderConfig], WeightMap]
    configs: Traversable | None = None
    transformers_class: str | None = None
    optional_keys: tuple[str, ...] = ()
    harmless_tensors: tuple[str, ...] = ()
    tied_tensors: Mapping[str, str] = field(default_factory=dict)

    def named_configs(self) -> dict[str, dict[str, Any]]:
        """Each shipped size's `config.json`, by name."""
        files = [] if self.configs is None else [file for file in self.configs.iterdir() if file.name.endswith(".json")]
        ordered = sorted(files, key=lambda file: file.name)
        return {file.name.removesuffix(".json"): json.loads(file.read_text()) for file in ordered}

    def named_sizes(self) -> dict[str, int]:
        """Each shipped size's number of parameters, by name."""
        return {name: self.decoder_config(hf).parameter_count() for name, hf in self.named_configs().items()}
