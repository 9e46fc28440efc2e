"""What states and actions become in a microbatch of any policy: padded to its widths, with each sample's noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loong_vla.data.samples import RobotSample


@dataclass(frozen=True, eq=False)
class NoisedActions:
    """Actions of samples, and the noise that they are mixed with.

    Attributes:
        actions: `[batch, horizon, width]` float32, normalised, padded with zeros.
        trained: as `actions`, bool: numbers that the robot has, of actions that lie within the episode.
        noise: as `actions`.
        generators: one a sample, for whatever else about it is random; its noise came first.
    """

    actions: Tensor
    trained: Tensor
    noise: Tensor
    generators: list[np.random.Generator]


def noised_actions(samples: Sequence[RobotSample], horizon: int, width: int, seed: int) -> NoisedActions:
    """Pad and draw; with `seed` a sample's number decides its noise, so that it is the same on any number of ranks."""
    shape = (len(samples), horizon, width)
    actions, trained, noise = np.zeros(shape, np.float32), np.zeros(shape, bool), np.empty(shape, np.float32)
    generators = [np.random.default_rng([seed, sample.number]) for sample in samples]
    for row, (sample, generator) in enumerate(zip(samples, generators, strict=True)):
        length, own = sample.actions.shape
        actions[row, :length, :own] = sample.actions
        trained[row, :length, :own] = sample.inside[:, None]
        noise[row] = generator.standard_normal(shape[1:], np.float32)
    return NoisedActions(torch.from_numpy(actions), torch.from_numpy(trained), torch.from_numpy(noise), generators)


def padded_states(states: Sequence[NDArray[np.float32]], width: int) -> Tensor:
    """`[batch, width]` float32 of states of any widths, padded with zeros."""
    padded = np.zeros((len(states), width), np.float32)
    for row, each in zip(padded, states, strict=True):
        row[: len(each)] = each
    return torch.from_numpy(padded)
