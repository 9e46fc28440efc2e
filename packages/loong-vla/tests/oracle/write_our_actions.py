"""What the quickstart's policy does in a few observations: `python write_our_actions.py RUN FILE`, run with ours."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from loong_vla.policy_runner import PolicyRunner
from loong_vla.simulator.touch_world import CAMERA, TouchWorld

if __name__ == "__main__":
    runner = PolicyRunner(Path(sys.argv[1]), device="cpu")
    seen = [TouchWorld().reset(seed) for seed in range(4)]
    shape = (len(seen), runner.config.chunk_size, runner.config.max_action_dim)
    noise = np.random.default_rng(0).standard_normal(shape, np.float32)
    pictures = [dict(each.pictures) for each in seen]
    states, tasks = [each.state for each in seen], [each.task for each in seen]
    actions = runner.act(pictures, states, tasks, noise)
    text = np.frombuffer("\n".join(tasks).encode(), np.uint8)
    save_file(
        {
            "pictures": np.stack([each[CAMERA] for each in pictures]),
            "states": np.stack(states),
            "tasks": text.copy(),
            "noise": noise,
            "actions": actions,
        },
        sys.argv[2],
    )
