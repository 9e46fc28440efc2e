"""A trained policy in use: observations in, actions of the robot out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from loong_core.device import select
from loong_core.errors import UserError
from loong_core.parallel.context import ParallelContext
from loong_vla.data.recordings import ACTION, STATE
from loong_vla.data.statistics import Normaliser
from loong_vla.families.family import PolicyConfig
from loong_vla.lerobot_folder.policy_folder import open_policy
from loong_vla.recipes.policy_model import build_policy, policy_source


class PolicyRunner:
    """A policy's folder, loaded.

    Args:
        folder: in the form of lerobot's `pretrained_model/`, or a run folder that holds one.
        device: `auto`, or a device that `loong devices` lists.
        embodiment: whose actions; by default the first that the policy was trained on.
        dtype: what it computes in.
        tokenizer: a folder, or `bytes`; the policy's own by default.
        random: whether weights are drawn, in place of the folder's: a policy that has learnt nothing.
        seed: of these, and of the noise that actions come from.

    Raises:
        UserError: the folder holds no such policy.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        device: str = "auto",
        embodiment: str | None = None,
        dtype: torch.dtype = torch.float32,
        tokenizer: str | None = None,
        random: bool = False,
        seed: int = 0,
    ) -> None:
        opened = open_policy(folder)
        statistics = opened.statistics_of(embodiment)
        self.embodiment = embodiment or next(iter(opened.statistics))
        source = policy_source(opened, tokenizer).for_embodiments([self.embodiment])
        self.config: PolicyConfig = source.config
        self._family = source.family
        self.device = torch.device(select(device).device.torch_type)
        context = ParallelContext.single(self.device)
        initialise = "random" if random else "weights"
        self.policy: Any = build_policy(source, context, initialise=initialise, seed=seed, dtype=dtype).eval()
        widths = {STATE: ("STATE", self.config.state_dim), ACTION: ("ACTION", self.config.action_dim)}
        self.normalisers = {
            feature: Normaliser.of(
                statistics[feature], self.config.normalization_of(kind), width, clips=self.config.clips
            )
            for feature, (kind, width) in widths.items()
        }
        self.action_dim = len(self.normalisers[ACTION].offset)
        self._collator = source.family.collator(self.config, source.tokenizer, seed, None)
        self._noise = np.random.default_rng(seed)

    def act(
        self,
        pictures: Sequence[Mapping[str, NDArray[np.uint8]]],
        states: Sequence[NDArray[np.float32]],
        tasks: Sequence[str],
        noise: NDArray[np.float32] | None = None,
        steps: int | None = None,
    ) -> NDArray[np.float32]:
        """Actions for several observations at once.

        Args:
            pictures: of each, by the policy's camera; cameras may be missing, but not all.
            states: as the robot tells them.
            tasks: in words.
            noise: `[observations, chunk, max_action_dim]`; drawn where not given.
            steps: Euler steps; the policy's own number by default.

        Returns:
            `[observations, chunk, action width]`, as the robot takes them.

        Raises:
            UserError: an observation does not fit the policy.
        """
        known = self.config.cameras
        for each, state in zip(pictures, states, strict=True):
            if not any(camera in each for camera in known):
                raise UserError(
                    f"the observation has none of the policy's cameras {', '.join(known)}: it has {list(each)}"
                )
            if state.shape != self.normalisers[STATE].offset.shape:
                width = len(self.normalisers[STATE].offset)
                raise UserError(f"the observation's state has {state.size} numbers, the policy was trained on {width}")
        seen = [{camera: each[camera] for camera in known if camera in each} for each in pictures]
        normalised = [self.normalisers[STATE].normalise(state) for state in states]
        batch = self._collator.observed(seen, normalised, tasks, [self.embodiment] * len(seen)).to(self.device)
        shape = tuple(batch.noise.shape)
        drawn = self._noise.standard_normal(shape, np.float32) if noise is None else noise
        batch = self._family.prepared(batch, self.config).with_noise(torch.from_numpy(drawn).to(self.device))
        actions = self.policy.sample(batch, steps).float().cpu().numpy()
        return self.normalisers[ACTION].restore(actions[:, : self.config.chunk_size, : self.action_dim])
