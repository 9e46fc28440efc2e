"""What a family of diffusion transformers tells the framework; imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.resources.abc import Traversable
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from loong_core.checkpoint.weight_map import WeightMap
    from loong_core.parallel.context import ParallelContext
    from loong_dit.families.model_config import DiffusionConfig, DiffusionTransformer
    from loong_dit.packing import PatchForm


TEXT_LENGTH = "_text_length"
"""Key of ours in `config.json`, which diffusers passes over: tokens that captions are padded to."""


@dataclass(frozen=True)
class CaptionFrame:
    """What a text encoder is given around a caption.

    Attributes:
        template: the whole text, with `{}` for the caption.
        dropped: tokens at its beginning whose embeddings are not used.
    """

    template: str = "{}"
    dropped: int = 0


@dataclass(frozen=True)
class DiffusionFamily:
    """A family: transformers that differ in size only. Plug-ins register one by `loong.diffusion_families`.

    Attributes:
        name: what it is called.
        class_name: `_class_name` of its diffusers `config.json`.
        room: the package whose modules `config`, `model` and `names` the family is, imported when they are needed.
        configs: folder of named sizes, each a `config.json` called `NAME.json`.
        original_class_name: `_class_name` of the `config.json` of its own release, None where it is not read.
        text_length: captions' embeddings are padded with zeros to this many; None: each keeps its own length.
        channels_last: whether what the model says of a token lists channels last.
        centred: whether rows and columns are counted from the middle of a picture.
        joint_text: whether captions' tokens stand in the patches' own attention.
        caption_frame: what the text encoder is given around a caption.
    """

    name: str
    class_name: str
    room: str
    configs: Traversable
    original_class_name: str | None = None
    text_length: int | None = None
    channels_last: bool = True
    centred: bool = False
    joint_text: bool = False
    caption_frame: CaptionFrame = CaptionFrame()

    @property
    def model_types(self) -> tuple[str, ...]:
        """What `loong models` shows of how configs are recognised."""
        return (self.class_name,)

    def config(self, hf: dict[str, Any]) -> DiffusionConfig:
        """`config.json` to hyperparameters; raises `UserError` with every key it cannot serve."""
        return import_module(f"{self.room}.config").read_config(hf)

    def build(self, config: DiffusionConfig, context: ParallelContext, dtype: torch.dtype) -> DiffusionTransformer:
        """The module, its weights uninitialised."""
        return import_module(f"{self.room}.model").build(config, context, dtype)

    def weight_map(self, config: DiffusionConfig) -> WeightMap:
        """The module's parameters in terms of diffusers' tensors."""
        return import_module(f"{self.room}.names").weight_map(config)

    def patch_form(self, config: DiffusionConfig) -> PatchForm:
        """How latents become tokens."""
        from loong_dit.packing import PatchForm

        return PatchForm(config.patch_size, self.channels_last, self.centred, self.joint_text)

    def original_name(self, name: str) -> str:
        """What the family's own release calls a tensor (or a layer) that diffusers calls `name`."""
        return import_module(f"{self.room}.names").original_name(name)

    def diffusers_config(self, original: dict[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """Diffusers' `config.json` from the release's own and the shapes of its weights."""
        return import_module(f"{self.room}.config").diffusers_config(original, tensors)

    def original_config(self, hf: dict[str, Any]) -> dict[str, Any]:
        """The release's own `config.json` from diffusers'."""
        return import_module(f"{self.room}.config").original_config(hf)

    def named_configs(self) -> dict[str, dict[str, Any]]:
        """Each shipped size's `config.json`, by name."""
        found = sorted(self.configs.iterdir(), key=lambda file: file.name)
        return {file.name[:-5]: json.loads(file.read_text()) for file in found if file.name.endswith(".json")}

    def named_sizes(self) -> dict[str, int]:
        """Each shipped size's number of parameters (of one transformer, where it has two), by name."""
        return {name: self.parameter_count(self.config(hf)) for name, hf in self.named_configs().items()}

    def parameter_count(self, config: DiffusionConfig) -> int:
        """Parameters of one transformer."""
        return sum(prod(shape) for shape in self.weight_map(config).tensors(config.num_layers).values())
