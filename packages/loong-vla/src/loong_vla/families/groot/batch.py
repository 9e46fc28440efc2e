"""A microbatch of a GR00T policy: what it sees, what it is to do, and the noise it learns from; and how it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loong_core.data.batch import IGNORED_LABEL, PackedBatch
from loong_vla.data.augmentation import AugmentationSection, draw_changes
from loong_vla.data.noised_actions import noised_actions, padded_states
from loong_vla.data.samples import RobotSample
from loong_vla.families.groot.head import Acted
from loong_vla.families.groot.policy_config import GrootConfig
from loong_vla.families.groot.prompt import plain_task, turn
from loong_vla.families.groot.tokens import GatheredTokens
from loong_vlm.data.arrangement import arrange
from loong_vlm.data.batch import Pictures, VisionBatch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class GrootBatch:
    """Samples of a robot's data.

    Noise, time and what is dropped belong to the batch, so that a sample's are the same on any number of ranks.

    Attributes:
        vision: prompts, packed; their pictures get patches once they are on the device (`prepared`).
        images: `[pictures, height, width, 3]` uint8, sample after sample; a camera that a sample lacks is left out.
        framed: whether these have the tower's size already.
        rows: `[batch, longest]` int64, which packed tokens are each sample's.
        there: `[batch, longest]` bool, which of these there are; None: all prompts are equally long.
        image_tokens: those of `rows` that are pictures.
        text_tokens: those that are not.
        acted: states, embodiments, actions, noise and time.
        seed: of what is dropped within layers while training.
        changes: `[pictures, 7]`, how each picture is changed before it is seen; None: not at all.
    """

    vision: VisionBatch
    images: Tensor
    framed: bool
    rows: Tensor
    there: Tensor | None
    image_tokens: GatheredTokens
    text_tokens: GatheredTokens
    acted: Acted
    seed: int = 0
    changes: Tensor | None = None

    @property
    def noise(self) -> Tensor:
        """`[batch, horizon, max_action_dim]`."""
        return self.acted.noise

    def with_noise(self, noise: Tensor) -> GrootBatch:
        """The same with other noise, `[batch, horizon, max_action_dim]`."""
        return replace(self, acted=replace(self.acted, noise=noise))

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> GrootBatch:
        """The same on `device`."""

        def moved(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.to(device, non_blocking=non_blocking)

        return replace(
            self,
            vision=self.vision.to(device, non_blocking=non_blocking),
            images=self.images.to(device, non_blocking=non_blocking),
            rows=self.rows.to(device, non_blocking=non_blocking),
            there=moved(self.there),
            image_tokens=self.image_tokens.to(device),
            text_tokens=self.text_tokens.to(device),
            acted=self.acted.to(device, non_blocking=non_blocking),
            changes=moved(self.changes),
        )


class GrootCollator:
    """Makes microbatches of samples.

    Args:
        config: the policy.
        tokenizer: its tokenizer.
        seed: with a sample's number decides its noise, time, what is dropped, and changes.
        augmentation: how pictures are changed; None: not at all.
    """

    def __init__(
        self,
        config: GrootConfig,
        tokenizer: PreTrainedTokenizerBase,
        seed: int,
        augmentation: AugmentationSection | None = None,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self._seed = seed
        self._augmentation = augmentation
        self._layout = config.parts.meeting.layout
        self._repeats = config.features

    def __call__(self, samples: Sequence[RobotSample]) -> GrootBatch:
        """A microbatch of training samples."""
        head = self.config.head
        seen = self.observed([each.pictures for each in samples], [each.state for each in samples],
                             [each.task for each in samples], [each.embodiment for each in samples])  # fmt: skip
        drawn = noised_actions(samples, head.horizon, head.action_dim, self._seed)
        times, kept, changes, first = [], [], [], 0
        for row, (sample, generator) in enumerate(zip(samples, drawn.generators, strict=True)):
            times.append((1 - generator.beta(head.beta_alpha, head.beta_beta)) * head.noise_s)
            kept.append(generator.random() >= head.state_dropout)
            if row == 0:
                first = int(generator.integers(2**31))
            if self._augmentation is not None:
                changes.append(draw_changes(self._augmentation, generator, len(self._cameras(sample.pictures))))
        acted = replace(
            seen.acted,
            # As in the published recipe, what lies beyond an episode's end is noise and nothing else.
            actions=drawn.actions * drawn.trained,
            trained=drawn.trained,
            noise=drawn.noise,
            time=torch.tensor(times, dtype=torch.float32),
            keep_state=torch.tensor(kept),
        )
        joined = torch.from_numpy(np.concatenate(changes)) if changes else None
        return replace(seen, acted=acted, seed=first, changes=joined)

    def observed(
        self,
        pictures: Sequence[dict[str, NDArray[np.uint8]]],
        states: Sequence[NDArray[np.float32]],
        tasks: Sequence[str],
        embodiments: Sequence[str] | None = None,
    ) -> GrootBatch:
        """What is seen, with nothing done yet: the noise is zeros.

        Args:
            pictures: of each sample, by the policy's camera.
            states: normalised.
            tasks: in words.
            embodiments: of each sample; by default the policy's.
        """
        config, head = self.config, self.config.head
        cameras = [self._cameras(each) for each in pictures]
        shown = [each[camera] for each, own in zip(pictures, cameras, strict=True) for camera in own]
        images, framed = self._stacked(shown)
        counts = [len(own) for own in cameras]
        vision, lengths = self._text(counts, tasks)
        rows, there = _rows(lengths)
        is_image = torch.zeros(int(sum(lengths)), dtype=torch.bool)
        is_image[vision.placeholders] = True
        image_mask = is_image[rows] & there
        places = [config.place_of(name) for name in embodiments or [config.embodiment] * len(states)]
        return GrootBatch(
            vision=vision,
            images=images,
            framed=framed,
            rows=rows,
            there=None if bool(there.all()) else there,
            image_tokens=GatheredTokens.of(image_mask),
            text_tokens=GatheredTokens.of(there & ~image_mask),
            acted=Acted(
                state=padded_states(states, head.state_history * head.state_dim),
                embodiment=torch.tensor(places),
                noise=torch.zeros(len(states), head.horizon, head.action_dim),
            ),
        )

    def _cameras(self, pictures: dict[str, NDArray[np.uint8]]) -> list[str]:
        """Those of the policy's cameras that a sample has, in the policy's order."""
        return [camera for camera in self.config.cameras if camera in pictures]

    def _stacked(self, shown: Sequence[NDArray[np.uint8]]) -> tuple[Tensor, bool]:
        """Pictures as one tensor; those of unlike sizes are brought to the tower's here, others on the device."""
        tensors = [torch.from_numpy(np.ascontiguousarray(each)) for each in shown]
        if len({tuple(each.shape) for each in tensors}) == 1:
            return torch.stack(tensors), False
        return torch.cat([self.config.frame.apply(each[None]) for each in tensors]), True

    def _text(self, counts: Sequence[int], tasks: Sequence[str]) -> tuple[VisionBatch, list[int]]:
        """Packed prompts, each placeholder as often as a picture has features, and their lengths."""
        config, parts = self.config, self.config.parts
        tell = plain_task if config.model.get("formalize_language", True) else str
        texts = [turn(self.tokenizer, self._layout, n, tell(task)) for n, task in zip(counts, tasks, strict=True)]
        prompts = []
        for ids in self.tokenizer(texts)["input_ids"]:
            own = np.asarray(ids, np.int64)
            prompts.append(np.repeat(own, np.where(own == parts.meeting.image_token, self._repeats, 1)))
        tokens = torch.from_numpy(np.concatenate(prompts))
        lengths = [len(each) for each in prompts]
        text = PackedBatch.from_lengths(tokens, torch.full_like(tokens, IGNORED_LABEL), lengths)
        pictures = sum(counts)
        grids = torch.tensor([config.grid] * pictures, dtype=torch.int64)
        empty = Pictures(torch.zeros(0, parts.tower.patch_dim), grids, ("image",) * pictures)
        return arrange(text, empty, parts), lengths


def _rows(lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Each sample's packed tokens, `[batch, longest]`, padded with its first, and which of these there are."""
    count = torch.tensor(lengths)
    places = torch.arange(max(lengths))[None]
    there = places < count[:, None]
    starts = (count.cumsum(0) - count)[:, None]
    return starts + places * there, there
