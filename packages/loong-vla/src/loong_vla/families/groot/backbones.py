"""The vision-language models that GR00T looks with, as parts of loong-vlm, cut off after the layer that is asked for.

N1.7: a Qwen3-VL (Cosmos-Reason2-2B). N1.6: an Eagle, which is SigLIP's tower, pixel shuffle and a Qwen3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loong_core.errors import ConfigError, Fault, UserError
from loong_llm.families.qwen3 import QWEN3
from loong_vlm.data.placeholders import InternLayout
from loong_vlm.families.assembly import language_part
from loong_vlm.families.qwen3_vl import QWEN3_VL
from loong_vlm.parts import Grid, LanguagePart, Meeting, ModelParts, TowerKind
from loong_vlm.positions import OneAxis
from loong_vlm.projectors.pixel_shuffle import PIXEL_SHUFFLE

if TYPE_CHECKING:
    import torch
    from torch import nn

    from loong_core.checkpoint.weight_map import Rule, WeightMap
    from loong_core.parallel.context import ParallelContext


@dataclass(frozen=True)
class SquareTower:
    """SigLIP's tower on pictures of one size, as `loong_vlm.parts.TowerConfig`.

    Attributes:
        width, inner, num_layers, heads: sizes of its layers.
        side: patches along a side of a picture.
        patch: pixels along a side of a patch.
    """

    width: int
    inner: int
    num_layers: int
    heads: int
    side: int
    patch: int
    merge: int = 1
    levels: tuple[int, ...] = ()
    initializer_range: float = 0.02

    @property
    def patch_dim(self) -> int:
        """Numbers of a patch."""
        return 3 * self.patch**2

    @property
    def smallest(self) -> Grid:
        """The one size that it takes."""
        return 1, self.side, self.side

    def parameter_count(self) -> int:
        """How many parameters it has."""
        layer = 4 * self.width * (self.width + 1) + 2 * self.width * self.inner + self.inner + self.width
        embeddings = (self.patch_dim + 1 + self.side**2) * self.width
        return embeddings + self.num_layers * (layer + 4 * self.width) + 2 * self.width

    def flops(self, grid: Grid) -> float:
        """Operations of one picture's forward."""
        patches = grid[0] * grid[1] * grid[2]
        layer = 4 * self.width**2 + 2 * self.width * self.inner
        products = self.num_layers * layer + self.patch_dim * self.width
        return 2.0 * patches * products + 4.0 * self.num_layers * patches**2 * self.width

    def faults(self, grid: Grid) -> str | None:
        """Anything but its one size."""
        return None if tuple(grid) == self.smallest else f"the tower takes {self.side} x {self.side} patches"


def _build_tower(config: SquareTower, context: ParallelContext, dtype: torch.dtype) -> nn.Module:
    from loong_vla.families.groot.square_tower import SquareTowerModule

    return SquareTowerModule(config).to(dtype)


def _tower_rules(config: SquareTower) -> list[Rule]:
    from loong_vla.families.groot.square_tower import siglip_config
    from loong_vlm.towers.siglip import siglip_rules

    return list(siglip_rules(siglip_config(config), "", ""))


SQUARE_TOWER = TowerKind("siglip", ("siglip2_vision_model",), lambda hf: hf, _build_tower, _tower_rules)
"""Built from sizes that are read with the whole (`eagle_parts`)."""


def qwen_parts(hf: Mapping[str, Any], layers: int) -> ModelParts:
    """A Qwen3-VL of which the first `layers` layers are kept.

    Raises:
        UserError: its configuration has faults.
    """
    return cut_off(QWEN3_VL.parts(dict(hf)), layers)


def eagle_parts(hf: Mapping[str, Any], layers: int, picture: tuple[int, int]) -> ModelParts:
    """An Eagle of which the first `layers` layers are kept.

    Args:
        hf: its configuration: `text_config`, `vision_config`, `image_token_index`, `downsample_ratio`.
        layers: how many.
        picture: height and width of what it sees.

    Raises:
        UserError: its configuration has faults.
    """
    where = "backbone_config"
    served = {"use_pixel_shuffle": True, "mlp_connector_layers": 2, "dynamic_image_size": False}
    vision = hf["vision_config"]
    faults = [
        Fault(f"{where}.{key}", f"is {hf[key]!r}", f"only {value} is served")
        for key, value in served.items()
        if hf.get(key, value) != value
    ]
    faults += [
        Fault(f"{where}.vision_config.{key}", f"is {vision[key]!r}", "only false is served")
        for key in ("use_rope", "use_windows_attn")
        if vision.get(key, False)
    ]
    side, patch = picture[0], vision["patch_size"]
    if picture[0] != picture[1] or side % patch:
        faults.append(Fault("image_target_size", f"is {list(picture)}", f"a square, multiples of {patch}, is wanted"))
    if faults:
        raise ConfigError(faults)
    tower = SquareTower(
        width=vision["hidden_size"],
        inner=vision["intermediate_size"],
        num_layers=vision["num_hidden_layers"],
        heads=vision["num_attention_heads"],
        side=side // patch,
        patch=patch,
    )
    language = language_part(QWEN3, dict(hf["text_config"]) | {"tie_word_embeddings": True})
    shuffle = {"downsample_ratio": hf.get("downsample_ratio", 0.5), "projector_hidden_act": "gelu"}
    parts = ModelParts(
        tower_kind=SQUARE_TOWER,
        tower=tower,
        projector_kind=PIXEL_SHUFFLE,
        projector=PIXEL_SHUFFLE.config(shuffle, tower, language.config.hidden_size),
        language=language,
        meeting=Meeting(hf["image_token_index"], None, OneAxis(), InternLayout()),
    )
    return cut_off(parts, layers)


def cut_off(parts: ModelParts, layers: int) -> ModelParts:
    """The same with the language model's first layers only.

    Raises:
        UserError: it has fewer, or features of the tower go into later ones.
    """
    config = parts.language.config
    if not 0 < layers <= config.num_layers:
        raise UserError(f"select_layer is {layers}, the vision-language model has {config.num_layers} layers")
    if parts.projector.deep >= layers:
        raise UserError(
            f"select_layer is {layers}, but the vision-language model adds features of pictures after its first "
            f"{parts.projector.deep} layers; keep more"
        )
    kept = replace(config, blocks=config.blocks[:layers], tie_embeddings=True)
    return replace(parts, language=LanguagePart(parts.language.family, kept, parts.language.hf_config))


def backbone_map(parts: ModelParts, version: str) -> WeightMap:
    """Names of the backbone's tensors without what stands before them; no final norm and no head."""
    from loong_core.checkpoint.weight_map import WeightMap
    from loong_vlm.families.assembly import assembled, within_language_model

    if version == "n1.7":
        whole = assembled(parts, tower="model.visual.", projector="model.visual.", language=within_language_model)
    else:
        from loong_vlm.projectors.pixel_shuffle import named_rules

        whole = assembled(
            parts,
            tower="vision_model.vision_model.",
            projector="mlp1.",
            language=lambda name: f"language_model.{name}",
            projector_rules=named_rules(parts.projector, "0", "1", "3"),  # type: ignore[arg-type]
        )
    left_out = ("language.norm.", "language.head.")
    return WeightMap(rule for rule in whole.rules if not rule.ours.startswith(left_out))
