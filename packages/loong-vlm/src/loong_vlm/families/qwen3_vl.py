"""Qwen3-VL (arXiv:2511.21631), dense and mixtures of experts: features also enter the first layers (DeepStack)."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from loong_llm.families.config_reader import ConfigReader
from loong_llm.families.family import Family
from loong_llm.families.qwen3 import QWEN3
from loong_llm.families.qwen3_moe import QWEN3_MOE
from loong_vlm.data.placeholders import QwenLayout
from loong_vlm.families.assembly import assembled, language_part, nested, within_language_model
from loong_vlm.families.family import VisionFamily
from loong_vlm.parts import Meeting, ModelParts
from loong_vlm.positions import ThreeAxes
from loong_vlm.projectors.patch_merger import QWEN3_VL_MERGER
from loong_vlm.towers.qwen3_vl import QWEN3_VL_TOWER

if TYPE_CHECKING:
    from loong_core.checkpoint.weight_map import WeightMap


def _parts_with(language_family: Family, fixed: dict[str, Any]) -> Callable[[dict[str, Any]], ModelParts]:
    """What reads a `config.json` whose language model is of a family, with keys that its class does not ask for."""

    def parts(hf: dict[str, Any]) -> ModelParts:
        read = ConfigReader(hf, "qwen3_vl")
        vision, text = nested(read, "vision_config"), nested(read, "text_config")
        image, video = read.integer("image_token_id"), read.integer("video_token_id")
        read.finish()
        # The class ties by the key of the whole, whatever the section says.
        tied = {"tie_word_embeddings": hf.get("tie_word_embeddings", False)}
        language = language_part(language_family, text | tied | fixed)
        tower = QWEN3_VL_TOWER.config(vision)
        return ModelParts(
            tower_kind=QWEN3_VL_TOWER,
            tower=tower,
            projector_kind=QWEN3_VL_MERGER,
            projector=QWEN3_VL_MERGER.config(vision, tower, language.config.hidden_size),
            language=language,
            meeting=Meeting(image, video, ThreeAxes(frame_by_frame=True), QwenLayout(timestamps=True)),
        )

    return parts


def _weight_maps(parts: ModelParts) -> tuple[WeightMap, ...]:
    return (assembled(parts, tower="model.visual.", projector="model.visual.", language=within_language_model),)


def _moe_weight_maps(parts: ModelParts) -> tuple[WeightMap, ...]:
    """Experts stacked in one tensor: with inputs before outputs, as on the hub; and as a linear layer's weights."""
    from loong_llm.families.stacked_experts import with_stacked_experts

    config, own = parts.language.config, parts.language.family.weight_map(parts.language.config)
    return tuple(
        assembled(
            parts,
            tower="model.visual.",
            projector="model.visual.",
            language=within_language_model,
            language_map=with_stacked_experts(own, config, transposed=transposed),
        )
        for transposed in (True, False)
    )


QWEN3_VL = VisionFamily(
    name="qwen3_vl",
    model_types=("qwen3_vl",),
    parts=_parts_with(QWEN3, {}),
    weight_maps=_weight_maps,
    transformers_class="Qwen3VLForConditionalGeneration",
    language_types={"qwen3": "qwen3_vl_text"},
)

QWEN3_VL_MOE = VisionFamily(
    name="qwen3_vl_moe",
    model_types=("qwen3_vl_moe",),
    parts=_parts_with(QWEN3_MOE, {"norm_topk_prob": True}),
    weight_maps=_moe_weight_maps,
    configs=files("loong_vlm") / "configs" / "qwen3_vl_moe",
    transformers_class="Qwen3VLMoeForConditionalGeneration",
    language_types={"qwen3_moe": "qwen3_vl_moe_text"},
)
