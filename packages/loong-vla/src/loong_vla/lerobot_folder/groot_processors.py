"""The files that tell lerobot what to do before and after a GR00T policy, and how its pictures and prompts are read.

lerobot normalises GR00T's states and actions within its own steps, by `min` and `max`; where the policy goes by
quantiles, those stand there. Its step that reads pictures opens a Qwen3-VL processor in the policy's folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from loong_vla.data.recordings import ACTION, IMAGES, STATE
from loong_vla.data.statistics import FeatureStatistics
from loong_vla.families.groot.policy_config import GrootConfig
from loong_vla.families.groot.prompt import CHAT_TEMPLATE
from loong_vla.lerobot_folder.processors import (
    POSTPROCESSOR,
    PREPROCESSOR,
    read_statistics_of,
    step_entry,
    write_steps,
)

PACKING, UNPACKING = "groot_n1_7_pack_inputs_v1", "groot_action_unpack_unnormalize_v2"
TEMPLATE_FILE = "chat_template.jinja"


def write_groot_processors(folder: Path, config: GrootConfig, statistics: FeatureStatistics, place: str) -> None:
    """Write both processors with their statistics, and the configuration of how pictures and prompts are read.

    Args:
        folder: where to; the tokenizer is there already.
        config: the policy.
        statistics: of state and action.
        place: the folder that this is to become, from which lerobot takes tokenizer and picture processor.
    """
    head, model = config.head, config.model
    to_device = step_entry("device_processor", device="cpu", float_dtype=None)
    pack = step_entry(
        PACKING,
        action_horizon=head.horizon,
        valid_action_horizon=config.chunk_size,
        max_state_dim=head.state_dim,
        max_action_dim=head.action_dim,
        language_key="task",
        formalize_language=model.get("formalize_language", True),
        embodiment_tag=config.embodiment,
        embodiment_mapping=dict(config.ids),
        normalize_min_max=True,
        clip_outliers=True,
        video_modality_keys=[camera.removeprefix(f"{IMAGES}.") for camera in config.cameras],
    )
    encode = step_entry(
        "groot_n1_7_vlm_encode_v1",
        model_name=place,
        **{key: model.get(key) for key in ("image_crop_size", "image_target_size", "shortest_image_edge")},
        crop_fraction=model.get("crop_fraction"),
        use_albumentations=False,
    )
    before = [
        step_entry("rename_observations_processor", rename_map={}), step_entry("to_batch_processor"), pack, encode,
        to_device,
    ]  # fmt: skip
    unpack = step_entry(
        UNPACKING, env_action_dim=config.action_dim, normalize_min_max=True, clip_normalized_action=True
    )
    tensors = _ranges(config, statistics)
    write_steps(folder, PREPROCESSOR, before, tensors, [PACKING])
    write_steps(folder, POSTPROCESSOR, [unpack, to_device], tensors, [UNPACKING])
    _write_readers(folder, config)


def read_groot_statistics(folder: Path) -> FeatureStatistics:
    """What lerobot's processor normalises by; its range stands for quantiles as well, since it takes it for them."""
    found = read_statistics_of(folder, PACKING)
    return {
        feature: entry | {"q01": entry["min"], "q99": entry["max"]}
        for feature, entry in found.items()
        if {"min", "max"} <= entry.keys()
    }


def _ranges(config: GrootConfig, statistics: FeatureStatistics) -> dict[str, np.ndarray]:
    """`feature.min` and `feature.max` of what a policy normalises by."""
    found = {}
    for feature, kind in ((STATE, "STATE"), (ACTION, "ACTION")):
        low, high = ("q01", "q99") if config.normalization_of(kind) == "QUANTILES" else ("min", "max")
        for name, source in (("min", low), ("max", high)):
            found[f"{feature}.{name}"] = np.asarray(statistics[feature][source], np.float32)
    return found


def _write_readers(folder: Path, config: GrootConfig) -> None:
    """Configurations of the processor of pictures and of the one of videos, and a chat template where there is none."""
    pixels = config.frame.height * config.frame.width
    told: dict[str, Any] = {
        "patch_size": config.patch,
        "temporal_patch_size": config.temporal,
        "merge_size": config.parts.tower.merge,
        "size": {"shortest_edge": pixels, "longest_edge": 256 * pixels},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    image = told | {"image_processor_type": "Qwen2VLImageProcessor"}
    video = told | {"video_processor_type": "Qwen3VLVideoProcessor"}
    for file, values in (("preprocessor_config.json", image), ("video_preprocessor_config.json", video)):
        (folder / file).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    tokenizer = folder / "tokenizer_config.json"
    has_own = (folder / TEMPLATE_FILE).is_file() or (
        tokenizer.is_file() and "chat_template" in json.loads(tokenizer.read_text(encoding="utf-8"))
    )
    if not has_own:
        (folder / TEMPLATE_FILE).write_text(CHAT_TEMPLATE, encoding="utf-8")
