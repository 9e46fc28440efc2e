"""Demonstrations by somebody who sees through walls: what policies learn from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loong_vla.data.writer import Episode
from loong_vla.simulator.touch_world import CAMERA, TouchWorld


def demonstrate(seeds: Sequence[int], *, wobble: float = 0.25) -> tuple[list[Episode], float]:
    """Record an expert in the world `touch`.

    Args:
        seeds: one an episode.
        wobble: how much of a random push is mixed into what is carried out (not into what is recorded), so that the
            recordings show how to come back from where an expert would not be.

    Returns:
        the episodes in which it did what was asked for, and the share of these.
    """
    world, recorded = TouchWorld(), []
    for seed in seeds:
        random = np.random.default_rng([seed, 1])
        seen, done, succeeded = world.reset(seed), False, False
        pictures, states, actions = [], [], []
        drift = np.zeros(2)
        while not done:
            action = world.expert_action()
            pictures.append(seen.pictures[CAMERA])
            states.append(seen.state)
            actions.append(action)
            drift = 0.7 * drift + wobble * random.standard_normal(2)
            seen, done, succeeded = world.step((action + drift).astype(np.float32))
        if succeeded:
            recorded.append(Episode(np.stack(states), np.stack(actions), {CAMERA: np.stack(pictures)}, seen.task))
    return recorded, len(recorded) / len(seeds)
