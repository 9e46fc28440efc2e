"""A microbatch of a Pi policy: what it sees, what it is to do, and the noise it learns from; and how it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loong_vla.data.augmentation import AugmentationSection, draw_changes
from loong_vla.data.images import fit_pictures
from loong_vla.data.noised_actions import noised_actions, padded_states
from loong_vla.data.prompts import pi0_prompt, pi05_prompt, prompt_tokens
from loong_vla.data.samples import RobotSample
from loong_vla.families.pi.config import PiConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class PiBatch:
    """Samples of a robot's data.

    Noise and time belong to the batch, so that a sample's are the same on any number of ranks.

    Attributes:
        images: `[batch, cameras, 3, height, width]`, uint8, or float in [-1, 1] at the policy's size. A camera that no
            sample of the batch has is left out.
        tokens: `[batch, length]` int64, the prompt, padded on the right.
        actions: `[batch, chunk, max_action_dim]`, normalised, padded with zeros.
        noise: as `actions`.
        time: `[batch]`, 1 for pure noise.
        image_mask: `[batch, cameras]` bool, which samples have which camera; None: all have all.
        token_mask: `[batch, length]` bool; None: all prompts are equally long.
        trained: as `actions`, bool: numbers that the robot has, of actions that lie within the episode.
        state: `[batch, max_state_dim]`, normalised, padded with zeros; None where the prompt tells it.
        changes: `[batch, cameras, 7]`, how each picture is changed before it is seen; None: not at all.
    """

    images: Tensor
    tokens: Tensor
    actions: Tensor
    noise: Tensor
    time: Tensor
    trained: Tensor
    image_mask: Tensor | None = None
    token_mask: Tensor | None = None
    state: Tensor | None = None
    changes: Tensor | None = None

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> PiBatch:
        """The same on `device`."""
        moved = {
            each.name: value.to(device, non_blocking=non_blocking)
            for each in fields(self)
            if isinstance(value := getattr(self, each.name), Tensor)
        }
        return replace(self, **moved)

    def with_noise(self, noise: Tensor) -> PiBatch:
        """The same with other noise, `[batch, chunk, max_action_dim]`."""
        return replace(self, noise=noise)


class PiCollator:
    """Makes microbatches of samples.

    Args:
        config: the policy.
        tokenizer: its tokenizer.
        seed: with a sample's number decides its noise, time and changes.
        augmentation: how pictures are changed; None: not at all.
    """

    def __init__(
        self,
        config: PiConfig,
        tokenizer: PreTrainedTokenizerBase,
        seed: int,
        augmentation: AugmentationSection | None = None,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self._seed = seed
        self._augmentation = augmentation

    def __call__(self, samples: Sequence[RobotSample]) -> PiBatch:
        """A microbatch of training samples."""
        config = self.config
        seen = self.observed([each.pictures for each in samples], [each.state for each in samples],
                             [each.task for each in samples])  # fmt: skip
        drawn = noised_actions(samples, config.chunk_size, config.max_action_dim, self._seed)
        times, changes = [], []
        for generator in drawn.generators:
            beta = generator.beta(config.time_sampling_beta_alpha, config.time_sampling_beta_beta)
            times.append(config.time_sampling_scale * beta + config.time_sampling_offset)
            if self._augmentation is not None:
                changes.append(draw_changes(self._augmentation, generator, seen.images.shape[1]))
        return replace(
            seen,
            actions=drawn.actions,
            trained=drawn.trained,
            noise=drawn.noise,
            time=torch.tensor(times, dtype=torch.float32),
            changes=torch.from_numpy(np.stack(changes)) if changes else None,
        )

    def observed(
        self,
        pictures: Sequence[dict[str, NDArray[np.uint8]]],
        states: Sequence[NDArray[np.float32]],
        tasks: Sequence[str],
        embodiments: Sequence[str] | None = None,
    ) -> PiBatch:
        """What is seen, with nothing done yet: noise, actions and time are zeros.

        Args:
            pictures: of each sample, by the policy's camera.
            states: normalised.
            tasks: in words.
            embodiments: not looked at.
        """
        config = self.config
        images, image_mask = _stack_pictures(pictures, config.cameras, config.image_size)
        if config.state_in_prompt:
            prompts = [pi05_prompt(task, state) for task, state in zip(tasks, states, strict=True)]
        else:
            prompts = [pi0_prompt(task) for task in tasks]
        tokens, token_mask = prompt_tokens(self.tokenizer, prompts, config.tokenizer_max_length)
        nothing = torch.zeros(len(states), config.chunk_size, config.max_action_dim)
        return PiBatch(
            images=images,
            tokens=torch.from_numpy(tokens),
            actions=nothing,
            noise=nothing,
            time=torch.zeros(len(states)),
            trained=nothing.bool(),
            image_mask=image_mask,
            token_mask=None if token_mask is None else torch.from_numpy(token_mask),
            state=None if config.state_in_prompt else padded_states(states, config.max_state_dim),
        )


def _stack_pictures(
    pictures: Sequence[dict[str, NDArray[np.uint8]]], cameras: Sequence[str], size: int
) -> tuple[Tensor, Tensor | None]:
    """`[batch, cameras, 3, height, width]` uint8 of the cameras that any sample has, and which samples have them.

    Pictures of unlike sizes are brought to the policy's here; else that is left to the device.
    """
    there = [camera for camera in cameras if any(camera in each for each in pictures)]
    shapes = {picture.shape for each in pictures for picture in each.values()}
    height, width = shapes.copy().pop()[:2] if len(shapes) == 1 else (size, size)
    images = torch.zeros(len(pictures), len(there), 3, height, width, dtype=torch.uint8)
    mask = torch.zeros(len(pictures), len(there), dtype=torch.bool)
    for row, each in enumerate(pictures):
        for column, camera in enumerate(there):
            if camera not in each:
                continue
            picture = torch.from_numpy(np.ascontiguousarray(each[camera])).permute(2, 0, 1)
            if len(shapes) > 1:
                picture = ((fit_pictures(picture[None], size)[0] + 1) * 127.5).round().to(torch.uint8)
            images[row, column] = picture
            mask[row, column] = True
    return images, None if bool(mask.all()) else mask
