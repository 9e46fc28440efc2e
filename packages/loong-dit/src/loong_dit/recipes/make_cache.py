"""The first stage of training: pictures and videos to latents, captions to embeddings, once and for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from loong_core.errors import ConfigError, Fault, UserError
from loong_core.wording import counted
from loong_dit.codecs.codec import CaptionEncoder, LatentCodec
from loong_dit.data.cache import CachedSample, CacheWriter
from loong_dit.data.manifest import Manifest
from loong_dit.media.buckets import Buckets, fitted
from loong_dit.media.reading import Listed, MediaError, read_media
from loong_dit.model_source import ModelSource

ImageEncoder = Callable[[Tensor], Tensor]
"""A picture `[3, 1, rows, columns]` in -1 to 1 to embeddings `[image tokens, image_dim]`."""

MASK_CHANNELS = 4
"""Channels beside a condition's latents that say which frames are given, one for each frame in one of latents."""


@dataclass(frozen=True)
class CacheSettings:
    """How a cache is made.

    Attributes:
        buckets: what media are fitted to.
        dtype: of what is stored.
        bad_media: whether a file that cannot be read stops the making, or is left out and counted.
        references: pixels of a reference picture at most; it keeps its shape.
    """

    buckets: Buckets
    dtype: torch.dtype = torch.float32
    bad_media: Literal["stop", "skip"] = "stop"
    references: int = 1024 * 1024


def make_cache(
    folder: Path,
    listed: Sequence[Listed],
    source: ModelSource,
    codec: LatentCodec,
    captions: CaptionEncoder,
    settings: CacheSettings,
    *,
    images: ImageEncoder | None = None,
    say: Callable[[str], None] = print,
) -> Manifest:
    """Encode everything that is listed into `folder`.

    Args:
        folder: must be absent or empty; it appears complete.
        listed: the samples.
        source: the model that is to be trained, which says what conditions it takes.
        codec, captions: what encodes.
        settings: sizes, dtype, and what becomes of damaged files.
        images: encodes condition images, for models that see them so.
        say: is told of progress and of what was left out.

    Raises:
        ConfigError: the model does not fit the codec, or the sizes neither; before anything is encoded.
        UserError: a file cannot be read, or nothing is left.
    """
    config = source.config
    beside = config.in_channels - config.out_channels
    faults = settings.buckets.faults(codec.steps, config.patch_size, source.name)
    faults += _misfits(source, codec, captions, images)
    if faults:
        raise ConfigError(faults)
    moments = codec.name != "pixels"
    manifest = Manifest(
        kind="moments" if moments else "values",
        channels=codec.channels,
        text_dim=captions.width,
        samples=0,
        vae={"name": codec.name, "hash": codec.hash},
        text_encoder={"name": captions.name, "hash": captions.hash},
        image_dim=config.image_dim,
        condition_channels=beside,
        settings={
            "sizes": [list(size) for size in settings.buckets.sizes],
            "frames": list(settings.buckets.frames),
            "dtype": str(settings.dtype).removeprefix("torch."),
        },
    )
    writer = CacheWriter(folder, manifest, captions.encode([""])[0].to(settings.dtype))
    left_out: list[str] = []
    try:
        for number, (sample, each) in enumerate(
            _encoded(listed, source, codec, captions, settings, images, left_out), 1
        ):
            writer.add(sample, source=str(each.path), caption=each.caption)
            if number % 100 == 0:
                say(f"{number:,} of {len(listed):,} samples are cached")
        written = writer.publish()
    except BaseException:
        writer.discard()
        raise
    for line in left_out[:20]:
        say(f"left out: {line}")
    told = f", {len(left_out):,} left out" if left_out else ""
    say(f"{counted(written.samples, 'sample')} cached in {folder}{told}; hash {written.hash}")
    return written


def _misfits(
    source: ModelSource, codec: LatentCodec, captions: CaptionEncoder, images: ImageEncoder | None
) -> list[Fault]:
    config, faults = source.config, []
    beside = config.in_channels - config.out_channels
    if codec.channels != config.out_channels:
        what = f"makes latents of {codec.channels} channels, and {source.name} takes {config.out_channels}"
        faults.append(Fault("--vae", f"{codec.name} {what}", "take the model's own VAE"))
    if captions.width != config.text_dim:
        what = f"makes embeddings of width {captions.width}, and {source.name} takes {config.text_dim}"
        faults.append(Fault("--text-encoder", f"{captions.name} {what}", "take the model's own text encoder"))
    if beside not in (0, codec.channels + MASK_CHANNELS):
        what = f"{source.name} takes {beside} channels of conditions; {codec.channels + MASK_CHANNELS} can be made"
        faults.append(Fault("--model", what, "take a model of this VAE"))
    if config.image_dim is not None and images is None:
        what = f"{source.name} sees condition images through an encoder"
        faults.append(Fault("--model", what, "name a pipeline's folder, which has image_encoder/"))
    return faults


def _encoded(
    listed: Sequence[Listed],
    source: ModelSource,
    codec: LatentCodec,
    captions: CaptionEncoder,
    settings: CacheSettings,
    images: ImageEncoder | None,
    left_out: list[str],
) -> Iterator[tuple[CachedSample, Listed]]:
    most = max(settings.buckets.frames)
    for each in listed:
        try:
            media = read_media(each.path, frames=most)
            references = [read_media(path) for path in each.references]
            frames = settings.buckets.frames_for(media.shape[1])
            if frames is None:
                least = min(settings.buckets.frames)
                raise MediaError(f"{each.path} has {counted(media.shape[1], 'frame')}, fewer than --frames {least}")
        except MediaError as error:
            if settings.bad_media == "stop":
                raise UserError(
                    f"{error}; mend or remove it, or give --bad-media skip to leave such files out"
                ) from error
            left_out.append(str(error))
            continue
        size = settings.buckets.size_for(*media.shape[-2:])
        pixels = _as_codec_takes(fitted(media[:, :frames], size), codec)
        latents = _stored(codec, pixels)
        condition = image = None
        if source.config.in_channels > source.config.out_channels:
            condition = _condition(codec, pixels, latents.shape[1:])
        if images is not None and source.config.image_dim is not None:
            image = images(pixels[:, :1])
        fitting = [
            _as_codec_takes(_within(reference, settings.references, codec, source), codec) for reference in references
        ]
        sample = CachedSample(
            latents.to(settings.dtype),
            captions.encode([each.caption])[0].to(settings.dtype),
            None if condition is None else condition.to(settings.dtype),
            None if image is None else image.to(settings.dtype),
            tuple(codec.encode(reference)[0].to(settings.dtype) for reference in fitting),
        )
        yield sample, each


def _stored(codec: LatentCodec, pixels: Tensor) -> Tensor:
    mean, deviation = codec.encode(pixels)
    return mean if deviation is None else torch.cat([mean, deviation])


def _condition(codec: LatentCodec, pixels: Tensor, size: Sequence[int]) -> Tensor:
    """The first frame alone as latents, and before it the mask of frames that are given (Wan's image to video)."""
    first = torch.zeros_like(pixels)
    first[:, :1] = pixels[:, :1]
    mask = torch.zeros(MASK_CHANNELS, *size)
    mask[:, 0] = 1
    return torch.cat([mask, codec.encode(first)[0]])


def _as_codec_takes(pixels: Tensor, codec: LatentCodec) -> Tensor:
    return pixels.mean(0, keepdim=True) if codec.pixel_channels == 1 else pixels


def _within(reference: Tensor, most: int, codec: LatentCodec, source: ModelSource) -> Tensor:
    """A reference of its own shape, of so many pixels at most, in whole patches."""
    rows, columns = reference.shape[-2:]
    scale = min(1.0, (most / (rows * columns)) ** 0.5)
    steps = [step * part for step, part in zip(codec.steps[1:], source.config.patch_size[1:], strict=True)]
    size = [max(1, round(extent * scale / step)) * step for extent, step in zip((rows, columns), steps, strict=True)]
    return fitted(reference, (size[0], size[1]))
