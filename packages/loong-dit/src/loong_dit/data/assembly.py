"""From stored samples to a batch: latents drawn, noise added, captions dropped and padded, patches packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loong_dit.batch import DiffusionBatch
from loong_dit.data.cache import CachedSample, draw_latents
from loong_dit.data.manifest import Manifest
from loong_dit.flow.draws import SampleDraws
from loong_dit.flow.timesteps import TRAIN_TIMESTEPS, TimestepDistribution
from loong_dit.joint_sequences import JointSequences
from loong_dit.packing import Lengths, PatchForm


@dataclass(frozen=True)
class Noising:
    """How a stored sample becomes one to train on.

    Attributes:
        form: how latents become tokens.
        manifest: of the cache.
        seed: of the run.
        levels: what noise levels are drawn.
        caption_dropout: share of samples whose caption is the empty one.
        text_length: captions are padded with zeros to this many tokens, None: not padded.
        first_frame: share of videos whose first frame is given clean, its tokens with timestep 0 and no loss.
        clean_references: whether the tokens of references have timestep 0 (else that of the sample).
    """

    form: PatchForm
    manifest: Manifest
    seed: int
    levels: TimestepDistribution
    caption_dropout: float = 0.0
    text_length: int | None = None
    first_frame: float = 0.0
    clean_references: bool = False


@dataclass(frozen=True)
class _Noised:
    """One sample's share of a batch, all tensors over its own tokens."""

    patches: Tensor
    positions: Tensor
    runs: list[tuple[int, float]]
    text: Tensor
    image: Tensor | None
    target: Tensor
    weights: Tensor


def assemble(
    samples: Sequence[tuple[int, CachedSample]], empty_text: Tensor, noising: Noising, *, high_noise: bool = False
) -> DiffusionBatch:
    """A batch of stored samples, each with its number in the run, which decides what is random about it."""
    noised = [_noise(SampleDraws(noising.seed, number), sample, empty_text, noising) for number, sample in samples]
    return pack_samples(
        patches=[each.patches for each in noised],
        positions=[each.positions for each in noised],
        runs=[run for each in noised for run in each.runs],
        text=[each.text for each in noised],
        image=[each.image for each in noised if each.image is not None] or None,
        joint=noising.form.joint_text,
        target=torch.cat([each.target for each in noised]),
        weights=torch.cat([each.weights for each in noised]),
        high_noise=high_noise,
    )


def pack_samples(
    *,
    patches: Sequence[Tensor],
    positions: Sequence[Tensor],
    runs: Sequence[tuple[int, float]],
    text: Sequence[Tensor],
    joint: bool = False,
    image: Sequence[Tensor] | None = None,
    target: Tensor | None = None,
    weights: Tensor | None = None,
    high_noise: bool = False,
) -> DiffusionBatch:
    """Lay samples end to end.

    Args:
        patches, positions, text, image: one a sample, as `DiffusionBatch` has them for all.
        runs: tokens and timestep of each run of one timestep, in order.
        joint: whether captions' tokens stand in the patches' own attention.
        target, weights: of all tokens; None in sampling.
        high_noise: whether the expert of high noise serves.
    """
    tokens, captions = (Lengths.of([len(each) for each in group]) for group in (patches, text))
    images = None if image is None else Lengths.of([len(each) for each in image])
    pairs, places = tokens.seeing(captions), torch.cat(list(positions))
    timesteps = torch.tensor([timestep for _, timestep in runs], dtype=torch.float32)
    run_bounds = Lengths.of([length for length, _ in runs]).bounds
    return DiffusionBatch(
        patches=torch.cat(list(patches)),
        positions=places,
        cu_seqlens=tokens.bounds,
        max_seqlen=tokens.longest,
        uniform_length=tokens.uniform,
        timesteps=timesteps,
        run_bounds=run_bounds,
        text=torch.cat(list(text)),
        text_pairs=pairs,
        joint=JointSequences.of(pairs, places, timesteps, run_bounds, tokens.bounds) if joint else None,
        image=None if image is None else torch.cat(list(image)),
        image_pairs=None if images is None else tokens.seeing(images),
        target=target,
        weights=weights,
        trained_samples=len(patches),
        high_noise=high_noise,
    )


def padded(text: Tensor, length: int | None) -> Tensor:
    """A caption's embeddings with rows of zeros up to `length`, cut where there are more."""
    if length is None:
        return text
    text = text[:length]
    return torch.cat([text, text.new_zeros(length - len(text), text.shape[1])])


def _noise(draws: SampleDraws, sample: CachedSample, empty_text: Tensor, noising: Noising) -> _Noised:
    form = noising.form
    shape = (noising.manifest.channels, *sample.latents.shape[1:])
    drawn = draws.normal("latents", shape) if noising.manifest.kind == "moments" else None
    clean = draw_latents(sample, noising.manifest, drawn)
    noise = draws.normal("noise", shape)
    sigma = noising.levels.sigma(draws.uniform("level"))
    noisy = (1 - sigma) * clean + sigma * noise
    size = (shape[1], shape[2], shape[3])
    tokens, timestep = form.tokens(size), TRAIN_TIMESTEPS * sigma
    given = 0
    if noising.first_frame and size[0] > 1 and draws.uniform("first frame") < noising.first_frame:
        noisy[:, :1] = clean[:, :1]
        given = form.tokens((1, *size[1:]))
    beside = noisy if sample.condition is None else torch.cat([noisy, sample.condition.float()])
    weights = torch.full((tokens,), noising.levels.weight(sigma) / ((tokens - given) * form.patch_elements(shape[0])))
    weights[:given] = 0
    patches, positions = [form.inputs(beside)], [form.positions(size)]
    targets, runs = [form.outputs(noise - clean)], [(given, 0.0), (tokens - given, timestep)]
    for number, reference in enumerate(sample.references, 1):
        patches.append(form.inputs(reference.float()))
        positions.append(form.positions((1, *reference.shape[-2:]), image=number))
        runs.append((len(patches[-1]), 0.0 if noising.clean_references else timestep))
    further = sum(len(each) for each in patches[1:])
    targets.append(torch.zeros(further, targets[0].shape[1]))
    dropped = bool(noising.caption_dropout) and draws.uniform("caption") < noising.caption_dropout
    text = (empty_text if dropped else sample.text).float()
    return _Noised(
        torch.cat(patches),
        torch.cat(positions),
        [run for run in runs if run[0]],
        padded(text, noising.text_length),
        None if sample.image is None else sample.image.float(),
        torch.cat(targets),
        torch.cat([weights, torch.zeros(further)]),
    )
