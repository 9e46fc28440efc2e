"""A GR00T policy's folder as it is written here, and what it does: `python write_our_groot.py FOLDER OBSERVED`.

Weights are drawn, prompts are of unlike lengths, and each observation is acted on alone, as lerobot's own policy is
only then free of other prompts' lengths.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from named_random import named_random
from policy_toys import toy_groot_config, toy_trained_groot
from safetensors.torch import save_file

from loong_vla.policy_runner import PolicyRunner

TASKS = ("Go.", "Take the second ball out of the box!")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    toy_trained_groot(folder, toy_groot_config().for_embodiments(["arm", "leg"]))
    runner = PolicyRunner(folder, device="cpu")
    shape = (len(TASKS), 4, runner.config.max_action_dim)
    noise = named_random("observed noise", shape).float()
    states = named_random("observed states", (len(TASKS), 4)).float() * 3 + 1
    pictures = {
        camera: (named_random(camera, (len(TASKS), 24, 20, 3)).sigmoid() * 255).round().to(torch.uint8)
        for camera in runner.config.cameras
    }
    actions = [
        runner.act([{name: each[row].numpy() for name, each in pictures.items()}], [states[row].numpy()], [task],
                   noise[row : row + 1].numpy())
        for row, task in enumerate(TASKS)
    ]  # fmt: skip
    told = torch.frombuffer(bytearray("\n".join(TASKS).encode()), dtype=torch.uint8)
    found = {"noise": noise, "states": states, "tasks": told, "actions": torch.from_numpy(np.concatenate(actions))}
    save_file(found | pictures, sys.argv[2])
