"""Drawing samples from a model that is not being trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loong_core.device import select
from loong_core.errors import ConfigError, UserError
from loong_core.parallel.context import ParallelContext
from loong_dit.codecs.opening import open_text_encoder, open_vae
from loong_dit.flow.sampling import SamplerSettings, Wanted, draw_samples, module_says
from loong_dit.media.buckets import Buckets, parse_sizes
from loong_dit.model import build_module, fill_module
from loong_dit.model_source import open_source
from loong_dit.recipes.run_samples import write_samples


@dataclass(frozen=True)
class DrawSettings:
    """How samples are drawn.

    Attributes:
        size: rows x columns in pixels, `480x832`.
        frames: of a video.
        steps, guidance, shift, seed: of the sampler.
        fps: frames a second of videos.
        longest_caption: tokens beyond which a caption is cut.
        device: where it computes.
    """

    size: str
    frames: int = 1
    steps: int = 50
    guidance: float = 5.0
    shift: float = 5.0
    seed: int = 0
    fps: int = 16
    longest_caption: int = 512
    device: str = "auto"


def draw(
    model: str,
    captions: Sequence[str],
    output: Path,
    settings: DrawSettings,
    *,
    vae: str | None = None,
    text_encoder: str | None = None,
) -> list[Path]:
    """Draw a sample for each caption.

    Args:
        model: a pipeline's folder, or a transformer's.
        captions: what is to be seen.
        output: folder for the files.
        settings: how.
        vae, text_encoder: as `loong_dit.codecs.opening` takes them; the pipeline's own by default.

    Returns:
        The files written, the grid of all first.

    Raises:
        UserError: the model has no weights, takes condition images, or does not fit its codecs or the size.
    """
    source = open_source(model)
    if not source.has_weights:
        raise UserError(f"{model} has no weights to draw with")
    if source.config.in_channels > source.config.out_channels:
        raise UserError(f"{model} draws from images, not from captions alone; diffusers' pipelines do that")
    if (vae is None or text_encoder is None) and source.pipeline is None:
        raise UserError(f"{model} is no pipeline's folder, so --vae and --text-encoder have to be given")
    device = select(settings.device).device.bind(0)
    codec = open_vae(vae or source.pipeline, device)
    words = open_text_encoder(
        text_encoder or source.pipeline or "", settings.longest_caption, device, source.family.caption_frame
    )
    buckets = Buckets(parse_sizes([settings.size]), (settings.frames,))
    if faults := buckets.faults(codec.steps, source.config.patch_size, source.name):
        raise ConfigError(faults)
    rows, columns = buckets.sizes[0]
    size = ((settings.frames - 1) // codec.steps[0] + 1, rows // codec.steps[1], columns // codec.steps[2])
    context = ParallelContext.single(device)
    module = build_module(source, context)
    fill_module(module, source, context)
    sampler = SamplerSettings(
        form=source.family.patch_form(source.config),
        channels=source.config.out_channels,
        steps=settings.steps,
        shift=settings.shift,
        guidance=settings.guidance,
        seed=settings.seed,
        text_length=source.text_length,
        boundary=source.boundary,
        clean_references=source.clean_references,
    )
    wanted = [Wanted(size, text) for text in words.encode(captions)]
    latents = draw_samples(module_says(module.eval(), device), wanted, words.encode([""])[0], sampler)
    return write_samples(output, "samples", latents, captions, codec, fps=settings.fps)
