"""Drawing samples: Euler steps from noise to data along the velocity that a model says, with or without guidance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from loong_dit.batch import DiffusionBatch
from loong_dit.data.assembly import pack_samples, padded
from loong_dit.flow.draws import SampleDraws
from loong_dit.flow.timesteps import TRAIN_TIMESTEPS, sampling_levels
from loong_dit.packing import PatchForm

Say = Callable[[DiffusionBatch], Tensor]
"""A batch on the host to what the model says of all its tokens, `[tokens, patch_out]` on the host."""


@dataclass(frozen=True)
class Wanted:
    """A sample to be drawn.

    Attributes:
        size: frames, rows and columns of its latents.
        text: `[text tokens, text_dim]`, its caption's embedding.
        condition: what stands beside the noisy latents, or None.
        image: embeddings of condition images, or None.
        references: further latents, or none.
        first_frame: `[channels, 1, rows, columns]`, the first frame where it is given, or None.
    """

    size: tuple[int, int, int]
    text: Tensor
    condition: Tensor | None = None
    image: Tensor | None = None
    references: tuple[Tensor, ...] = ()
    first_frame: Tensor | None = None


@dataclass(frozen=True)
class SamplerSettings:
    """How samples are drawn.

    Attributes:
        form: how latents become tokens.
        channels: of the latents.
        steps: of the sampler.
        shift: of its noise levels.
        guidance: `empty + guidance (caption - empty)` (arXiv:2207.12598); 1 asks the model once a step.
        seed: of the noise.
        text_length: captions are padded with zeros to this many tokens, None: not padded.
        boundary: level from which on the expert of high noise serves, None for one transformer.
        clean_references: whether the tokens of references have timestep 0.
    """

    form: PatchForm
    channels: int
    steps: int = 30
    shift: float = 5.0
    guidance: float = 4.0
    seed: int = 0
    text_length: int | None = None
    boundary: float | None = None
    clean_references: bool = False


@torch.no_grad()
def draw_samples(say: Say, wanted: Sequence[Wanted], empty_text: Tensor, settings: SamplerSettings) -> list[Tensor]:
    """Latents `[channels, frames, rows, columns]` float32 of each sample, all drawn in one batch.

    The noise of a sample is decided by the seed and its place in `wanted`.
    """
    latents = [
        SampleDraws(settings.seed, number).normal("noise", (settings.channels, *each.size))
        for number, each in enumerate(wanted)
    ]
    levels = sampling_levels(settings.steps, settings.shift).tolist()
    for level, following in pairwise(levels):
        for state, each in zip(latents, wanted):
            if each.first_frame is not None:
                state[:, :1] = each.first_frame
        velocities = _velocities(say, latents, wanted, empty_text, level, settings)
        latents = [state + (following - level) * velocity for state, velocity in zip(latents, velocities)]
    return [
        state if each.first_frame is None else torch.cat([each.first_frame, state[:, 1:]], dim=1)
        for state, each in zip(latents, wanted)
    ]


def module_says(module: nn.Module, device: torch.device | str) -> Say:
    """A whole module on one device."""
    return lambda batch: module(batch.to(device)).float().cpu()


def _velocities(
    say: Say,
    latents: Sequence[Tensor],
    wanted: Sequence[Wanted],
    empty: Tensor,
    level: float,
    settings: SamplerSettings,
) -> list[Tensor]:
    high = settings.boundary is not None and level >= settings.boundary
    captions = [each.text for each in wanted]
    guided = settings.guidance != 1
    rounds = [captions, [empty] * len(wanted)] if guided else [captions]
    patches, positions, runs, text, image = [], [], [], [], []
    own: list[tuple[int, int]] = []
    for round_captions in rounds:
        for state, each, caption in zip(latents, wanted, round_captions):
            parts, places, times = _tokens(state, each, level, settings)
            own.append((settings.form.tokens(each.size), sum(len(part) for part in parts)))
            patches.append(torch.cat(parts))
            positions.append(torch.cat(places))
            runs += times
            text.append(padded(caption.float(), settings.text_length))
            image += [] if each.image is None else [each.image.float()]
    batch = pack_samples(
        patches=patches,
        positions=positions,
        runs=runs,
        text=text,
        joint=settings.form.joint_text,
        image=image or None,
        high_noise=high,
    )
    said = say(batch).split([total for _, total in own])
    found = [
        settings.form.latents(each[:count], wanted[number % len(wanted)].size)
        for number, (each, (count, _)) in enumerate(zip(said, own))
    ]
    if not guided:
        return found
    half = len(wanted)
    return [empty + settings.guidance * (full - empty) for full, empty in zip(found[:half], found[half:])]


def _tokens(
    state: Tensor, each: Wanted, level: float, settings: SamplerSettings
) -> tuple[list[Tensor], list[Tensor], list[tuple[int, float]]]:
    """A sample's patches, their places, and its runs of one timestep."""
    form, timestep = settings.form, TRAIN_TIMESTEPS * level
    beside = state if each.condition is None else torch.cat([state, each.condition.float()])
    patches, places = [form.inputs(beside)], [form.positions(each.size)]
    given = 0 if each.first_frame is None else form.tokens((1, *each.size[1:]))
    runs = [(given, 0.0), (len(patches[0]) - given, timestep)]
    for number, reference in enumerate(each.references, 1):
        patches.append(form.inputs(reference.float()))
        places.append(form.positions((1, *reference.shape[-2:]), image=number))
        runs.append((len(patches[-1]), 0.0 if settings.clean_references else timestep))
    return patches, places, [run for run in runs if run[0]]
