"""InternVL2.5 and 3.5 (arXiv:2412.05271, arXiv:2508.18265): InternViT on tiles, pixel shuffle, any language model.

Their files come in two forms: that of transformers (`internvl`, repositories called `...-HF`) and that of the authors'
own code (`internvl_chat`). Both are read and written; configs differ in keys, weights in names.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loong_core.errors import UserError
from loong_llm.families.config_reader import ConfigReader
from loong_llm.families.registry import find_family
from loong_vlm.data.placeholders import InternLayout
from loong_vlm.families.added_tokens import added_token
from loong_vlm.families.assembly import assembled, language_part, nested
from loong_vlm.families.family import VisionFamily
from loong_vlm.parts import LanguagePart, Meeting, ModelParts
from loong_vlm.positions import OneAxis
from loong_vlm.projectors.pixel_shuffle import PIXEL_SHUFFLE, named_rules
from loong_vlm.towers.intern_vit import INTERN_VIT, chat_rules

if TYPE_CHECKING:
    from loong_core.checkpoint.weight_map import WeightMap

_CHAT_IMAGE_TOKEN = "<IMG_CONTEXT>"
"""The placeholder of `internvl_chat`, whose config does not tell its id."""


def _parts(hf: dict[str, Any]) -> ModelParts:
    read = ConfigReader(hf, "internvl")
    vision, text = nested(read, "vision_config"), nested(read, "text_config")
    image = read.integer("image_token_id")
    read.only("vision_feature_layer", -1, None)
    read.only("vision_feature_select_strategy", "default", None)
    read.finish()
    tied = hf.get("tie_word_embeddings", True)
    return _joined(hf, vision, text | {"tie_word_embeddings": tied}, image)


def _chat_parts(hf: dict[str, Any]) -> ModelParts:
    read = ConfigReader(hf, "internvl_chat")
    vision, text = nested(read, "vision_config"), nested(read, "llm_config")
    image = read.integer("img_context_token_id")  # see `_from_tokenizer`
    read.only("select_layer", -1, None)
    read.only("ps_version", "v2")
    read.finish()
    return _joined(hf, vision, {"tie_word_embeddings": hf.get("tie_word_embeddings", False)} | text, image)


def _from_tokenizer(hf: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The config with the placeholder's id, which is the tokenizer's."""
    if "img_context_token_id" in hf:
        return hf
    number = added_token(folder, _CHAT_IMAGE_TOKEN)
    return hf if number is None else {**hf, "img_context_token_id": number}


def _joined(hf: dict[str, Any], vision: dict[str, Any], text: dict[str, Any], image: int) -> ModelParts:
    tower = INTERN_VIT.config(vision)
    language = _language(text)
    return ModelParts(
        tower_kind=INTERN_VIT,
        tower=tower,
        projector_kind=PIXEL_SHUFFLE,
        projector=PIXEL_SHUFFLE.config(hf, tower, language.config.hidden_size),
        language=language,
        meeting=Meeting(image, None, OneAxis(), InternLayout()),
    )


def _language(text: dict[str, Any]) -> LanguagePart:
    try:
        return language_part(find_family(text), text)
    except UserError as error:
        raise UserError(f"the language model of an InternVL model: {error}") from error


def _weight_maps(parts: ModelParts) -> tuple[WeightMap, ...]:
    """As transformers writes them, and as it calls them inside."""
    return (
        assembled(
            parts,
            tower="vision_tower.",
            projector="multi_modal_projector.",
            language=lambda name: f"language_model.{name}",
        ),
        assembled(
            parts,
            tower="model.vision_tower.",
            projector="model.multi_modal_projector.",
            language=lambda name: name.replace("model.", "model.language_model.", 1),
        ),
    )


def _chat_weight_maps(parts: ModelParts) -> tuple[WeightMap, ...]:
    return (
        assembled(
            parts,
            tower="vision_model.",
            projector="mlp1.",
            language=lambda name: f"language_model.{name}",
            tower_rules=chat_rules(parts.tower),  # type: ignore[arg-type]
            projector_rules=named_rules(parts.projector, "0", "1", "3"),  # type: ignore[arg-type]
        ),
    )


INTERNVL = VisionFamily(
    name="internvl",
    model_types=("internvl",),
    parts=_parts,
    weight_maps=_weight_maps,
    configs=files("loong_vlm") / "configs" / "internvl",
    transformers_class="InternVLForConditionalGeneration",
    language_types={name: name for name in ("llama", "mixtral", "qwen2", "qwen3", "qwen3_moe")},
    tied_heads=("language_model.lm_head.weight", "lm_head.weight"),
)

INTERNVL_CHAT = VisionFamily(
    name="internvl_chat",
    model_types=("internvl_chat",),
    parts=_chat_parts,
    weight_maps=_chat_weight_maps,
    completed=_from_tokenizer,
    tied_heads=("language_model.lm_head.weight",),
)
