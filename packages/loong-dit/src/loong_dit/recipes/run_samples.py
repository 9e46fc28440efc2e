"""Samples drawn while a run trains, from the engine's (averaged) weights, beside the log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from loong_core.data.context_cut import own_shares
from loong_core.engine.base import Engine
from loong_core.errors import UserError
from loong_core.parallel.context import ParallelContext
from loong_core.train.run import Run
from loong_dit.batch import DiffusionBatch
from loong_dit.codecs.codec import LatentCodec, Pixels
from loong_dit.codecs.opening import open_vae
from loong_dit.data.cache import draw_latents
from loong_dit.data.sample_source import SampleSource
from loong_dit.flow.sampling import SamplerSettings, Say, Wanted, draw_samples
from loong_dit.media.writing import write_grid, write_video
from loong_dit.model_source import ModelSource
from loong_dit.recipes.online_samples import OnlineSamples
from loong_dit.recipes.training_config import DiffusionTrainingConfig, SamplesSection


def sample_numbers(section: SamplesSection, cache: SampleSource) -> list[int]:
    """Which of the cache's samples lend their captions and sizes.

    Raises:
        KeyError: a caption that no sample has; its text is the error's argument.
    """
    if not section.captions:
        return list(range(min(section.count, len(cache))))
    by_caption = {each.caption: number for number, each in reversed(list(enumerate(cache.samples)))}
    return [by_caption[caption] for caption in section.captions]


def sampler_settings(
    config: DiffusionTrainingConfig, section: SamplesSection, source: ModelSource, channels: int
) -> SamplerSettings:
    """The `samples` section as the sampler takes it."""
    return SamplerSettings(
        form=source.family.patch_form(source.config),
        channels=channels,
        steps=section.steps,
        shift=section.shift or config.flow.shift,
        guidance=section.guidance,
        seed=section.seed,
        text_length=source.text_length,
        boundary=source.boundary if source.experts > 1 else None,
        clean_references=source.clean_references,
    )


class RunSamples:
    """Draws a run's samples when they are due.

    Args:
        run: whose folder.
        config: its configuration, with a `samples` section.
        source: what is trained.
        engine: whose weights.
        cache: whose captions.
        total_steps: of the run; samples are drawn after the last too.
    """

    def __init__(
        self,
        run: Run,
        config: DiffusionTrainingConfig,
        source: ModelSource,
        engine: Engine,
        cache: SampleSource,
        total_steps: int,
    ) -> None:
        assert config.samples is not None
        self._run, self._engine, self._section, self._total = run, engine, config.samples, total_steps
        numbers = sample_numbers(config.samples, cache)
        self._wanted = [_wanted(cache, number, config) for number in numbers]
        self._captions = [cache.samples[number].caption for number in numbers]
        self._empty = cache.empty_text()
        self._settings = sampler_settings(config, config.samples, source, cache.manifest.channels)
        self._codec = codec_of(cache, source, run.context.device)

    def __call__(self, step: int) -> None:
        """After step `step`, 0 before the first. Collective."""
        if step == 0 or (step % self._section.every and step != self._total):
            return
        with self._engine.evaluation() as (module,):
            say = _shared(module, self._run.context)
            latents = draw_samples(say, self._wanted, self._empty, self._settings)
        if self._run.place.rank == 0:
            files = write_samples(
                self._run.folder.root / "samples", f"step-{step:08}", latents, self._captions, self._codec,
                fps=self._section.fps,
            )  # fmt: skip
            self._run.say(f"samples of step {step}: {files[0]}")


def codec_of(cache: SampleSource, source: ModelSource, device: torch.device) -> LatentCodec:
    """What decodes latents; the VAE that encodes them where there is no cache."""
    if isinstance(cache, OnlineSamples):
        assert cache.encoder is not None
        return cache.encoder.codec
    if cache.manifest.vae["name"] == Pixels.name:
        return Pixels(cache.manifest.channels)
    codec = open_vae(source.pipeline, device)
    if codec.hash != cache.manifest.vae["hash"]:
        raise UserError(
            f"data.cache was made by another {cache.manifest.vae['name']} than the one in "
            f"{source.pipeline}, which is to decode samples; make the cache anew, or name the other pipeline"
        )
    return codec


def write_samples(
    folder: Path, stem: str, latents: Sequence[Tensor], captions: Sequence[str], codec: LatentCodec, *, fps: int
) -> list[Path]:
    """A PNG grid of all samples, and an MP4 of each that has several frames; the grid comes first."""
    videos = [codec.decode(each) for each in latents]
    grid = folder / f"{stem}.png"
    scale = max(1, 64 // max(video.shape[-1] for video in videos))
    write_grid(grid, videos, captions, scale=scale)
    written = [grid]
    for number, video in enumerate(videos):
        if video.shape[1] > 1 and video.shape[-1] >= 64:
            file = folder / f"{stem}-{number}.mp4"
            write_video(file, video, fps=fps)
            written.append(file)
    return written


def _wanted(cache: SampleSource, number: int, config: DiffusionTrainingConfig) -> Wanted:
    sample = cache.read(number)
    first = None
    if config.model.condition == "first_frame":
        first = draw_latents(sample, cache.manifest, None)[:, :1]
    return Wanted(cache.samples[number].size, sample.text, sample.condition, sample.image, sample.references, first)


def _shared(module: torch.nn.Module, context: ParallelContext) -> Say:
    """The module on this rank's share of a batch, joined over the context ranks; all data ranks say the same."""

    def say(batch: DiffusionBatch) -> Tensor:
        (share,) = own_shares([batch], context)
        said = module(share.to(context.device)).float()
        if share.rows is not None:
            whole = said.new_zeros(batch.patches.shape[0], said.shape[1])
            whole[share.rows.to(said.device)] = said
            dist.all_reduce(whole, group=context.context.group)
            said = whole
        return said.cpu()

    return say
