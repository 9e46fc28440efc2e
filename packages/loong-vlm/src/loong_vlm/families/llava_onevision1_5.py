"""LLaVA-OneVision-1.5 (arXiv:2509.23661): a RICE tower, a merger of squares, Qwen3's layers with positions of text."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from loong_llm.families.config_reader import ConfigReader
from loong_llm.families.qwen3 import QWEN3
from loong_vlm.families.assembly import assembled, language_part, nested, within_language_model
from loong_vlm.families.family import VisionFamily
from loong_vlm.parts import Meeting, ModelParts
from loong_vlm.positions import OneAxis
from loong_vlm.projectors.patch_merger import RICE_MERGER
from loong_vlm.towers.rice import RICE

if TYPE_CHECKING:
    from loong_core.checkpoint.weight_map import WeightMap


def _parts(hf: dict[str, Any]) -> ModelParts:
    read = ConfigReader(hf, "llava_onevision1_5")
    vision, text = nested(read, "vision_config"), nested(read, "text_config")
    image, video = read.integer("image_token_id"), read.integer("video_token_id")
    read.finish()
    language = language_part(QWEN3, {"tie_word_embeddings": hf.get("tie_word_embeddings", False)} | text)
    tower = RICE.config(vision)
    return ModelParts(
        tower_kind=RICE,
        tower=tower,
        projector_kind=RICE_MERGER,
        projector=RICE_MERGER.config(vision, tower, language.config.hidden_size),
        language=language,
        meeting=Meeting(image, video, OneAxis(frame_by_frame=False)),
    )


def _weight_maps(parts: ModelParts) -> tuple[WeightMap, ...]:
    """As on the hub, and as the authors' class calls the tensors inside."""
    return (
        assembled(parts, tower="visual.", projector="visual.", language=lambda name: name),
        assembled(parts, tower="model.visual.", projector="model.visual.", language=within_language_model),
    )


LLAVA_ONEVISION1_5 = VisionFamily(
    name="llava_onevision1_5",
    model_types=("llavaonevision1_5",),
    parts=_parts,
    weight_maps=_weight_maps,
    configs=files("loong_vlm") / "configs" / "llava_onevision1_5",
    language_types={"qwen3": "LLaVAOneVision1_5_text"},
)
