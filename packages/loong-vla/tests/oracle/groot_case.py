"""The shrunken GR00T action head on which ours and lerobot's are compared, and what it is shown."""

from __future__ import annotations

from typing import Any

import torch
from named_random import named_random

CONFIG: dict[str, Any] = {
    "backbone_embedding_dim": 24,
    "hidden_size": 10,
    "input_embedding_dim": 16,
    "max_state_dim": 7,
    "max_action_dim": 5,
    "action_horizon": 4,
    "max_num_embodiments": 6,
    "max_seq_len": 12,
    "num_inference_timesteps": 3,
    "diffusion_model_cfg": {
        "positional_embeddings": None,
        "num_layers": 6,
        "num_attention_heads": 2,
        "attention_head_dim": 8,
        "norm_type": "ada_norm",
        "dropout": 0.0,
        "final_dropout": True,
        "output_dim": 10,
        "interleave_self_attention": True,
    },
    "vl_self_attention_cfg": {
        "positional_embeddings": None,
        "num_layers": 2,
        "num_attention_heads": 3,
        "attention_head_dim": 8,
        "dropout": 0.0,
        "final_dropout": True,
    },
    "state_dropout_prob": 0.0,
}
SAMPLES, TOKENS = 3, 11


def groot_inputs() -> dict[str, torch.Tensor]:
    """Float64 features, and masks under which samples have unlike numbers of pictures' tokens, text and padding."""
    kinds = ["iiiitttttt.", "iiiiiitttt.", "..iiiittttt"]  # image, text, padding
    images = torch.tensor([[kind == "i" for kind in row] for row in kinds])
    there = torch.tensor([[kind != "." for kind in row] for row in kinds])
    horizon, actions = CONFIG["action_horizon"], CONFIG["max_action_dim"]
    trained = torch.ones(SAMPLES, horizon, actions, dtype=torch.bool)
    trained[0, :, 3:] = False
    trained[1, 2:] = False
    return {
        "features": named_random("features", (SAMPLES, TOKENS, CONFIG["backbone_embedding_dim"])),
        "image_mask": images,
        "attention_mask": there,
        "state": named_random("groot state", (SAMPLES, 1, CONFIG["max_state_dim"])),
        "actions": named_random("groot actions", (SAMPLES, horizon, actions)),
        "noise": named_random("groot noise", (SAMPLES, horizon, actions)),
        "time": torch.tensor([0.05, 0.5, 0.9], dtype=torch.float64),
        "trained": trained,
        "embodiment": torch.tensor([2, 5, 2]),
    }
