"""Qwen2.5-VL (arXiv:2502.13923): its own tower and merger, Qwen2.5's layers, positions in time, height and width."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from loong_llm.families.config_reader import ConfigReader
from loong_llm.families.qwen2 import QWEN2
from loong_vlm.families.assembly import assembled, language_part, nested, within_language_model
from loong_vlm.families.family import VisionFamily
from loong_vlm.parts import Meeting, ModelParts
from loong_vlm.positions import ThreeAxes
from loong_vlm.projectors.patch_merger import QWEN2_5_VL_MERGER
from loong_vlm.towers.qwen2_5_vl import QWEN2_5_VL_TOWER

if TYPE_CHECKING:
    from loong_core.checkpoint.weight_map import WeightMap


def _parts(hf: dict[str, Any]) -> ModelParts:
    read = ConfigReader(hf, "qwen2_5_vl")
    vision = nested(read, "vision_config")
    image, video = read.integer("image_token_id"), read.integer("video_token_id")
    read.finish()
    text = hf.get("text_config") or {key: value for key, value in hf.items() if key != "vision_config"}
    language = language_part(QWEN2, {"tie_word_embeddings": hf.get("tie_word_embeddings", False)} | text)
    tower = QWEN2_5_VL_TOWER.config(vision)
    hidden = language.config.hidden_size
    return ModelParts(
        tower_kind=QWEN2_5_VL_TOWER,
        tower=tower,
        projector_kind=QWEN2_5_VL_MERGER,
        projector=QWEN2_5_VL_MERGER.config(vision, tower, hidden),
        language=language,
        meeting=Meeting(image, video, ThreeAxes(frame_by_frame=False, per_second=vision.get("tokens_per_second", 4))),
    )


def _weight_maps(parts: ModelParts) -> tuple[WeightMap, ...]:
    """As on the hub, which transformers writes too; and as transformers calls the tensors since 4.52."""
    return (
        assembled(parts, tower="visual.", projector="visual.", language=lambda name: name),
        assembled(parts, tower="model.visual.", projector="model.visual.", language=within_language_model),
    )


QWEN2_5_VL = VisionFamily(
    name="qwen2_5_vl",
    model_types=("qwen2_5_vl",),
    parts=_parts,
    weight_maps=_weight_maps,
    configs=files("loong_vlm") / "configs" / "qwen2_5_vl",
    transformers_class="Qwen2_5_VLForConditionalGeneration",
    language_types={"qwen2": "qwen2_5_vl_text"},
)
