"""lerobot runs a policy that was trained here: `python lerobot_opens.py PRETRAINED_MODEL OBSERVED`.

Runs in lerobot's own environment. lerobot 0.6.1 admits two sizes and one vocabulary, so its table of sizes is given the
folder's; all else is lerobot's own: its class loads the weights, its processors the folder's JSON and statistics.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from lerobot.policies.factory import make_pre_post_processors
from lerobot_sizes import modeling, use_sizes
from safetensors.torch import load_file

if __name__ == "__main__":
    folder, seen = Path(sys.argv[1]), load_file(sys.argv[2])
    use_sizes("pi05", json.loads((folder / "sizes.json").read_text()))
    policy = modeling("pi05").PI05Policy.from_pretrained(folder, strict=True).eval()
    local = {"tokenizer_processor": {"tokenizer_name": str(folder)}, "device_processor": {"device": "cpu"}}
    before, after = make_pre_post_processors(policy.config, str(folder), preprocessor_overrides=local)
    policy.model.sample_noise = lambda shape, device: seen["noise"]
    camera = next(name for name in policy.config.input_features if "images" in name)
    batch = {
        camera: seen["pictures"].permute(0, 3, 1, 2).float() / 255,
        "observation.state": seen["states"],
        "task": bytes(seen["tasks"]).decode().split("\n"),
    }
    actions = after(policy.predict_action_chunk(before(batch)))
    torch.testing.assert_close(actions, seen["actions"], rtol=1e-4, atol=1e-5)
    stored = load_file(folder / "model.safetensors")
    loaded = policy.state_dict()
    assert all(torch.equal(loaded[name].float(), values.float()) for name, values in stored.items())
    difference = float((actions - seen["actions"]).abs().max())
    print(f"lerobot loads {len(stored)} tensors, and its actions are ours to {difference:.1e}")
