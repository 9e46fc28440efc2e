"""Any tower with any projector and any language model: the family of models that no other family describes.

Its `config.json` has a section for each part, as the part's own family writes it, and its tensors the parts' own names
behind `vision_tower.`, `projector.` and `language_model.`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loong_core.errors import UserError
from loong_llm.families.config_reader import ConfigReader
from loong_llm.families.registry import find_family
from loong_vlm.data.placeholders import InternLayout, PlaceholderLayout, QwenLayout
from loong_vlm.families.assembly import assembled, language_part, nested
from loong_vlm.families.family import VisionFamily
from loong_vlm.families.registry import find_projector, find_tower
from loong_vlm.parts import LanguagePart, Meeting, ModelParts
from loong_vlm.positions import OneAxis

if TYPE_CHECKING:
    from loong_core.checkpoint.weight_map import WeightMap
    from loong_vlm.model_config import VisionModelConfig

LAYOUTS: dict[str, PlaceholderLayout] = {"qwen": QwenLayout(), "intern": InternLayout()}
"""How images may be written in the text, by name."""

_WIDTHS = ("out_hidden_size", "text_hidden_size")
"""What a `vision_config` calls the width of the language model, where it tells it."""


def composed_config(
    tower: VisionModelConfig, projector: VisionModelConfig, language: LanguagePart, base: VisionModelConfig
) -> dict[str, Any]:
    """The `config.json` of a model of these parts, which writes images as `base` does."""
    meeting = base.parts.meeting
    vision = leading_to(language, tower.hf_config["vision_config"])
    own = projector.hf_config.get("projector_config")
    if own is None:
        told = {**projector.hf_config, **projector.hf_config["vision_config"]}
        keys = ("downsample_ratio", "projector_hidden_act", "layer_norm_eps")
        own = {"kind": projector.parts.projector_kind.name} | {key: told[key] for key in keys if key in told}
    return {
        "model_type": "loong_composed",
        "image_token_id": meeting.image_token,
        "video_token_id": meeting.video_token,
        "layout": "intern" if isinstance(meeting.layout, InternLayout) else "qwen",
        "tie_word_embeddings": language.config.tie_embeddings,
        "vision_config": vision,
        "projector_config": own,
        "text_config": {**language.hf_config, "model_type": language.family.model_types[0]},
    }


def leading_to(language: LanguagePart, vision: dict[str, Any]) -> dict[str, Any]:
    """A `vision_config` with the language model's width where it tells one."""
    return vision | {key: language.config.hidden_size for key in _WIDTHS if key in vision}


def _parts(hf: dict[str, Any]) -> ModelParts:
    read = ConfigReader(hf, "composed")
    vision, text, own = (nested(read, key) for key in ("vision_config", "text_config", "projector_config"))
    image = read.integer("image_token_id")
    layout = read.choice("layout", *LAYOUTS)
    read.finish()
    tower_kind, projector_kind = find_tower(vision), find_projector(str(own.get("kind")))
    tower = tower_kind.config(vision)
    try:
        language = language_part(find_family(text), text)
    except UserError as error:
        raise UserError(f"the language model of a composed model: {error}") from error
    sizes = {key: vision[key] for key in _WIDTHS if key in vision}
    return ModelParts(
        tower_kind=tower_kind,
        tower=tower,
        projector_kind=projector_kind,
        projector=projector_kind.config({**sizes, **own}, tower, language.config.hidden_size),
        language=language,
        meeting=Meeting(image, hf.get("video_token_id"), OneAxis(frame_by_frame=layout == "intern"), LAYOUTS[layout]),
    )


def _weight_maps(parts: ModelParts) -> tuple[WeightMap, ...]:
    return (
        assembled(parts, tower="vision_tower.", projector="projector.", language=lambda name: f"language_model.{name}"),
    )


COMPOSED = VisionFamily(
    name="composed",
    model_types=("loong_composed",),
    parts=_parts,
    weight_maps=_weight_maps,
    optional_keys=("video_token_id",),
    tied_heads=("language_model.lm_head.weight",),
)
