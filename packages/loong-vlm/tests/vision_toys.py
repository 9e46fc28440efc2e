"""Small vision-language models with each parameter at random, transformers' classes of them made exact, and batches."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from plain_llava_onevision import PlainLlavaOneVision
from torch import Tensor, nn

from loong_core.checkpoint.weight_map import WeightMap
from loong_core.data.batch import IGNORED_LABEL, PackedBatch
from loong_core.parallel.context import ParallelContext
from loong_vlm.data.arrangement import arrange
from loong_vlm.data.batch import Kind, Pictures, VisionBatch
from loong_vlm.parts import Grid, ModelParts
from loong_vlm.towers.intern_vit import InternViTConfig

IMAGE, VIDEO = 5, 6
VOCABULARY = 61
TEXT = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "bos_token_id": None,
    "eos_token_id": None,
}
TOKENS = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": 3, "vision_end_token_id": 4}

QWEN2_5_VL = {
    "model_type": "qwen2_5_vl",
    **TOKENS,
    "text_config": {
        "model_type": "qwen2_5_vl_text", **TEXT, "hidden_size": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]},
    },
    "vision_config": {
        "model_type": "qwen2_5_vl_vision", "depth": 3, "hidden_size": 16, "num_heads": 2, "intermediate_size": 20,
        "out_hidden_size": 32, "patch_size": 2, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 8,
        "fullatt_block_indexes": [1], "tokens_per_second": 2,
    },
}  # fmt: skip

_QWEN3_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
_QWEN3_TOWER = {
    "depth": 4, "hidden_size": 16, "num_heads": 2, "intermediate_size": 20, "out_hidden_size": 24, "patch_size": 2,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0, 2],
}  # fmt: skip
QWEN3_VL = {
    "model_type": "qwen3_vl",
    **TOKENS,
    "text_config": {"model_type": "qwen3_vl_text", **TEXT, "head_dim": 16, "rope_parameters": _QWEN3_ROPE},
    "vision_config": {"model_type": "qwen3_vl", **_QWEN3_TOWER},
}
QWEN3_VL_TIED = {**QWEN3_VL, "tie_word_embeddings": True}
QWEN3_VL_MOE = {
    "model_type": "qwen3_vl_moe",
    **TOKENS,
    "text_config": {
        "model_type": "qwen3_vl_moe_text", **TEXT, "head_dim": 16, "rope_parameters": _QWEN3_ROPE,
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 10,
    },
    "vision_config": {"model_type": "qwen3_vl_moe", **_QWEN3_TOWER},
}  # fmt: skip

_INTERN_TOWER = {
    "model_type": "internvl_vision", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 20, "image_size": [8, 8], "patch_size": [2, 2],
}  # fmt: skip
_INTERN_QWEN3 = {"model_type": "qwen3", **TEXT, "head_dim": 8}
INTERNVL = {
    "model_type": "internvl", "image_token_id": IMAGE, "image_seq_length": 4, "downsample_ratio": 0.5,
    "tie_word_embeddings": False, "text_config": _INTERN_QWEN3,
    "vision_config": {**_INTERN_TOWER, "attention_bias": True, "use_qk_norm": False, "norm_type": "layer_norm"},
}  # fmt: skip
INTERNVL_6B = {
    **INTERNVL,
    "text_config": {"model_type": "llama", **TEXT, "rope_theta": 1e4},
    "vision_config": {**_INTERN_TOWER, "attention_bias": False, "use_qk_norm": True, "norm_type": "rms_norm"},
}
INTERNVL_MOE = {
    **INTERNVL,
    "text_config": {
        "model_type": "qwen3_moe", **TEXT, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 10, "norm_topk_prob": True,
    },
}  # fmt: skip
LLAVA_ONEVISION = {
    "model_type": "llavaonevision1_5", **TOKENS, "tie_word_embeddings": False,
    "text_config": {"model_type": "LLaVAOneVision1_5_text", **TEXT, "head_dim": 8, "rope_theta": 5e6},
    "vision_config": {
        "model_type": "rice_vit", "depth": 2, "embed_dim": 16, "hidden_size": 16, "hidden_act": "gelu",
        "intermediate_size": 20, "num_heads": 2, "patch_size": 2, "spatial_merge_size": 2, "temporal_patch_size": 1,
        "layer_norm_eps": 1e-5, "text_hidden_size": TEXT["hidden_size"],
    },
}  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """An image or video of a sample: its grid of patches, and what it is."""

    grid: Grid
    kind: Kind = "image"
    seconds: float = 1.0


def randomise(module: nn.Module, seed: int = 0) -> None:
    """Draw every parameter, also those that start as zeros or ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3
            parameter.copy_(drawn + 1 if parameter.ndim == 1 and name.endswith("weight") else drawn)


def reference(hf: dict[str, Any], seed: int = 0) -> nn.Module:
    """Transformers' model of a config in float64, without the float32 steps that it takes inside.

    LLaVA-OneVision-1.5, which it has no class of, is read plainly.
    """
    model = PlainLlavaOneVision(hf) if hf["model_type"] == "llavaonevision1_5" else _of_transformers(hf)
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = MethodType(_exact_norm, module)
        if type(module).__name__.endswith("TopKRouter"):
            module.forward = MethodType(_exact_router, module)
    modeling: Any = importlib.import_module(type(model).__module__)
    if hasattr(modeling, "apply_rotary_pos_emb_vision"):
        modeling.apply_rotary_pos_emb_vision = _exact_rotation
    randomise(model, seed)
    return model


def _of_transformers(hf: dict[str, Any]) -> nn.Module:
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = AutoConfig.for_model(**hf)
    for each in (config, config.text_config):
        each._experts_implementation = "eager"  # torch's grouped product, the default, takes no float64
    return AutoModelForImageTextToText.from_config(config, dtype=torch.float64, attn_implementation="sdpa")


def _exact_norm(norm: nn.Module, x: Tensor) -> Tensor:
    return norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)


def _exact_router(router: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits = x.reshape(-1, router.hidden_dim) @ router.weight.T
    weights, experts = logits.softmax(-1).topk(router.top_k)
    if getattr(router, "norm_topk_prob", True):
        weights = weights / weights.sum(-1, keepdim=True)
    return logits, weights, experts


def _exact_rotation(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    def rotated(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]

    return rotated(q), rotated(k)


def save(model: Any, folder: Path) -> Path:
    """Save a model as it is, in its own dtype."""
    model.save_pretrained(folder)
    return folder


def batch_of(samples: list[list[int | Shown]], parts: ModelParts, seed: int = 0) -> VisionBatch:
    """Random samples, each a list of numbers of text tokens, and images where they stand between them.

    A video whose frames stand apart in the text has a token before each frame.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = []
    lengths: list[int] = []
    pictures = [Pictures.none(parts.tower.patch_dim)]
    for sample in samples:
        begin = len(tokens)
        for part in sample:
            if isinstance(part, int):
                tokens += torch.randint(7, VOCABULARY, (part,), generator=generator).tolist()
                continue
            is_video = part.kind == "video"
            token = parts.meeting.video_token if is_video else parts.meeting.image_token
            assert token is not None
            runs = parts.meeting.positions.runs(parts.projector.feature_grid(part.grid), is_video)
            for run in runs:
                tokens += [3, *[token] * prod(run), 4]
            patches = torch.randn(prod(part.grid), parts.tower.patch_dim, generator=generator, dtype=torch.float64)
            pictures.append(Pictures(patches, torch.tensor([part.grid]), (part.kind,), (part.seconds,)))
        lengths.append(len(tokens) - begin)
    ids = torch.tensor(tokens)
    text = PackedBatch.from_lengths(ids, torch.randint(VOCABULARY, ids.shape, generator=generator), lengths)
    text.labels[text.cu_seqlens[:-1].long()] = IGNORED_LABEL
    return arrange(text, Pictures.join(pictures[1:] or pictures), parts)


def reference_inputs(batch: VisionBatch, sequence: int, parts: ModelParts) -> dict[str, Any]:
    """What transformers' class takes for one sequence of a batch."""
    start, stop = batch.text.cu_seqlens[sequence : sequence + 2].tolist()
    ids = batch.tokens[start:stop]
    numbers = _pictures_of(batch, sequence, parts)
    found: dict[str, Any] = {"input_ids": ids[None]}
    if isinstance(parts.tower, InternViTConfig):
        if numbers:
            found["pixel_values"] = tiles_of(batch.pictures.select(numbers), parts.tower)
        return found
    kinds = torch.zeros_like(ids)
    kinds[ids == parts.meeting.image_token] = 1
    if parts.meeting.video_token not in (None, parts.meeting.image_token):
        kinds[ids == parts.meeting.video_token] = 2
    for kind, pixels, grid in (
        ("image", "pixel_values", "image_grid_thw"),
        ("video", "pixel_values_videos", "video_grid_thw"),
    ):
        own = [number for number in numbers if batch.pictures.kinds[number] == kind]
        if own:
            chosen = batch.pictures.select(own)
            found |= {pixels: chosen.patches, grid: chosen.grid_thw}
            if kind == "video":
                found["second_per_grid_ts"] = torch.tensor(chosen.seconds)
    return found | {"mm_token_type_ids": kinds[None].int()}


def tiles_of(pictures: Pictures, tower: InternViTConfig) -> Tensor:
    """Pixels `[tiles, channels, height, width]` of patches that come row by row."""
    channels, height, width = tower.patches.kernel
    tiles = pictures.patches.view(-1, tower.rows, tower.columns, channels, height, width)
    return tiles.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


def _pictures_of(batch: VisionBatch, sequence: int, parts: ModelParts) -> list[int]:
    """Numbers of the images that stand in a sequence."""
    bounds = batch.text.cu_seqlens.tolist()
    rows, numbers = batch.placeholders.tolist(), []
    used = 0
    for number, grid in enumerate(batch.pictures.grid_thw.tolist()):
        if bounds[sequence] <= rows[used] < bounds[sequence + 1]:
            numbers.append(number)
        used += prod(parts.projector.feature_grid(tuple(grid)))
    return numbers


def named_gradients(module: nn.Module, weight_map: WeightMap, context: ParallelContext) -> dict[str, Tensor]:
    """Gradients in Hugging Face names and shapes, of a module on one rank; zeros where there is none."""
    found: dict[str, Tensor] = {}
    for parameter, placement in weight_map.placements(module, context):
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for piece, part in zip(placement.pieces, placement.from_local(gradient), strict=True):
            whole = found.setdefault(piece.name, torch.zeros(piece.global_shape, dtype=part.dtype))
            whole[piece.slices] = part
    return found
