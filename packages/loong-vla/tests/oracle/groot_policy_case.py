"""The shrunken GR00T N1.7 on which ours and lerobot's are compared as whole policies, and what it is shown.

Everything here is plain data that both environments make alike; neither lerobot nor this package is imported.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from groot_case import CONFIG as HEAD
from named_random import named_random

TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
IMAGE_TOKEN, VIDEO_TOKEN = 256 + TOKENS.index("<|image_pad|>"), 256 + len(TOKENS)
VOCABULARY = 264
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
)

BACKBONE: dict[str, Any] = {
    "model_type": "qwen3_vl",
    "image_token_id": IMAGE_TOKEN,
    "video_token_id": VIDEO_TOKEN,
    "vision_start_token_id": 256 + TOKENS.index("<|vision_start|>"),
    "vision_end_token_id": 256 + TOKENS.index("<|vision_end|>"),
    "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen3_vl_text",
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": VOCABULARY,
        "bos_token_id": None,
        "eos_token_id": None,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
    },
    "vision_config": {
        "model_type": "qwen3_vl",
        "depth": 4,
        "hidden_size": 16,
        "num_heads": 2,
        "intermediate_size": 20,
        "out_hidden_size": 24,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 2],
    },
}
"""A Qwen3-VL of four layers, of which GR00T keeps three."""

MODEL: dict[str, Any] = HEAD | {
    "model_type": "Gr00tN1d7",
    "select_layer": 3,
    "image_target_size": [16, 16],
    "image_crop_size": [14, 14],
    "use_percentiles": True,
}
CAMERAS = ("observation.images.front", "observation.images.wrist")
HEIGHT, WIDTH = 24, 20
STATE_DIM, ACTION_DIM, SAMPLES = 4, 3, 3
TASKS = ("Put the red_ball down!", "push the red-cube away", "take the big blue lid.")
"""As many letters each once they are plain, so that no sample of a batch is padded."""
LONE_TASKS = ("go", "Take the second ball out of the box.")
EMBODIMENTS = (2, 5, 2)


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of bytes with Qwen's marks of vision, and how its processor reads pictures."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}
    backend = Tokenizer(models.BPE(vocab={alphabet[byte]: byte for byte in range(256)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([*TOKENS, "<|video_pad|>"])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    told = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    pixels = {
        "patch_size": BACKBONE["vision_config"]["patch_size"],
        "temporal_patch_size": 2,
        "merge_size": 2,
        "size": {"shortest_edge": 256, "longest_edge": 65536},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    image = pixels | {"image_processor_type": "Qwen2VLImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(image), encoding="utf-8")
    video = pixels | {"video_processor_type": "Qwen3VLVideoProcessor"}
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video), encoding="utf-8")


def recorded() -> dict[str, torch.Tensor]:
    """Pictures `[samples, height, width, 3]` uint8, states and actions in a robot's units, and what is drawn."""
    horizon, wide = MODEL["action_horizon"], MODEL["max_action_dim"]
    inside = torch.ones(SAMPLES, horizon, dtype=torch.bool)
    inside[1, 2:] = False
    found = {
        "state": named_random("policy state", (SAMPLES, STATE_DIM)).float() * 2 + 1,
        "actions": named_random("policy actions", (SAMPLES, horizon, ACTION_DIM)).float() * 3,
        "inside": inside,
        "noise": named_random("policy noise", (SAMPLES, horizon, wide)),
        "time": torch.tensor([0.05, 0.5, 0.9], dtype=torch.float64),
    }
    found["actions"][..., 2] = 0.5
    for camera in CAMERAS:
        smooth = named_random(camera, (SAMPLES, 3, 6, 5))
        pictures = torch.nn.functional.interpolate(smooth, size=(HEIGHT, WIDTH), mode="nearest").permute(0, 2, 3, 1)
        found[camera] = (pictures.sigmoid() * 255).round().to(torch.uint8)
    return found


def statistics() -> dict[str, dict[str, list[float]]]:
    """Of states and actions: quantiles that some numbers lie outside of, and one action that never changes."""
    return {
        "observation.state": {"q01": [-1.0, -2.0, 0.0, -3.0], "q99": [3.0, 2.5, 1.5, 4.0]},
        "action": {"q01": [-4.0, -1.0, 0.5], "q99": [4.0, 3.0, 0.5]},
    }
