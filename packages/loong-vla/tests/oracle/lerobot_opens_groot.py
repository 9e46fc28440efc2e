"""lerobot runs a GR00T policy that was written here: `python lerobot_opens_groot.py PRETRAINED_MODEL OBSERVED`.

Runs in lerobot's own environment. lerobot builds the model from the published one's 6 GB before it loads a folder's
weights into it; here it is built from the folder's `sizes.json`. All else is lerobot's own: its class loads the
weights, and its processors the folder's JSON, statistics, tokenizer and configuration of pictures.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from lerobot.configs import PreTrainedConfig
from lerobot.policies.groot import groot_n1_7 as module
from lerobot.policies.groot.modeling_groot import GrootPolicy
from lerobot.policies.groot.processor_groot import make_groot_pre_post_processors_from_pretrained
from safetensors.torch import load_file
from write_groot_golden import DrawnTorch
from write_groot_policy_golden import make_model

if __name__ == "__main__":
    folder, seen = Path(sys.argv[1]), load_file(sys.argv[2])
    sizes = json.loads((folder / "sizes.json").read_text())
    backbone = sizes.pop("backbone_config")
    GrootPolicy._create_groot_model = lambda self: make_model(sizes, backbone).float()  # type: ignore[method-assign]
    config = PreTrainedConfig.from_pretrained(folder)
    config.use_bf16, config.device = False, "cpu"
    policy = GrootPolicy.from_pretrained(folder, config=config, strict=True).eval()
    local = {"groot_n1_7_vlm_encode_v1": {"model_name": str(folder)}, "device_processor": {"device": "cpu"}}
    before, after = make_groot_pre_post_processors_from_pretrained(
        config, str(folder), preprocessor_overrides=local, postprocessor_overrides={}
    )
    cameras = [name for name in config.input_features if "images" in name]
    found = []
    for row, task in enumerate(bytes(seen["tasks"]).decode().split("\n")):
        batch = {camera: seen[camera][row : row + 1].permute(0, 3, 1, 2).float() / 255 for camera in cameras}
        batch |= {"observation.state": seen["states"][row : row + 1], "task": [task]}
        module.torch = DrawnTorch(seen["noise"][row : row + 1])
        # lerobot hands out as many actions as are carried out; the policy predicts as many as ours.
        policy.config.n_action_steps = policy.config.chunk_size
        found.append(after(policy.predict_action_chunk(before(batch))))
    actions = torch.cat(found)
    torch.testing.assert_close(actions, seen["actions"], rtol=1e-4, atol=1e-4)
    stored, loaded = load_file(folder / "model.safetensors"), policy.state_dict()
    assert all(torch.equal(loaded[name].float(), values.float()) for name, values in stored.items())
    difference = float((actions - seen["actions"]).abs().max())
    print(f"lerobot loads {len(stored)} tensors of a GR00T policy, and its actions are ours to {difference:.1e}")
