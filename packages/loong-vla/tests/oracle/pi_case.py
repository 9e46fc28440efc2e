"""The shrunken Pi policies on which ours and lerobot's are compared, and what they are shown."""

from __future__ import annotations

from typing import Any

import torch
from named_random import named_random

SIZES: dict[str, Any] = {
    "language": {"width": 24, "depth": 3, "mlp": 40, "heads": 8, "kv_heads": 1, "head_dim": 8},
    "expert": {"width": 16, "depth": 3, "mlp": 24, "heads": 8, "kv_heads": 1, "head_dim": 8},
    "vision": {"hidden_size": 16, "intermediate_size": 24, "num_layers": 2, "num_heads": 2, "patch_size": 4},
    "vocab_size": 40,
}
CAMERAS = ("observation.images.front", "observation.images.wrist", "observation.images.absent")
IMAGE, CHUNK, STATE_DIM, ACTION_DIM, MAX_DIM, LENGTH, STEPS = 8, 5, 4, 3, 6, 9, 4
PROMPT_LENGTHS = (6, 9, 4)


def pi_inputs() -> dict[str, torch.Tensor]:
    """Float64 pictures in [0, 1], tokens, states, actions, noise and times of three samples."""
    samples = len(PROMPT_LENGTHS)
    lengths = torch.tensor(PROMPT_LENGTHS)
    tokens = (named_random("tokens", (samples, LENGTH)).abs() * 1000).long() % SIZES["vocab_size"]
    found = {
        "tokens": tokens,
        "token_mask": torch.arange(LENGTH)[None] < lengths[:, None],
        "state": named_random("state", (samples, STATE_DIM)),
        "actions": named_random("actions", (samples, CHUNK, ACTION_DIM)),
        "noise": named_random("noise", (samples, CHUNK, MAX_DIM)),
        "time": torch.tensor([0.1, 0.5, 0.97], dtype=torch.float64),
    }
    for camera in CAMERAS[:2]:
        found[camera] = named_random(camera, (samples, 3, IMAGE, IMAGE)).sigmoid()
    return found
