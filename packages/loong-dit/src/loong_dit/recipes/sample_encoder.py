"""One picture or video and its caption to what is stored of them, or trained on at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from loong_core.errors import ConfigError, Fault
from loong_core.wording import counted
from loong_dit.codecs.codec import CaptionEncoder, LatentCodec, Pixels
from loong_dit.data.cache import CachedSample
from loong_dit.data.manifest import Manifest
from loong_dit.media.buckets import Buckets, fitted
from loong_dit.media.reading import Listed, MediaError, read_media
from loong_dit.model_source import ModelSource

ImageEncoder = Callable[[Tensor], Tensor]
"""A picture `[3, 1, rows, columns]` in -1 to 1 to embeddings `[image tokens, image_dim]`."""

MASK_CHANNELS = 4
"""Channels beside a condition's latents that say which frames are given, one for each frame in one of latents."""


@dataclass(frozen=True)
class EncodingSettings:
    """How media become samples.

    Attributes:
        buckets: what media are fitted to.
        dtype: of what is made.
        bad_media: whether a file that cannot be read is an end, or is left out and counted.
        references: pixels of a reference picture at most; it keeps its shape.
    """

    buckets: Buckets
    dtype: torch.dtype = torch.float32
    bad_media: Literal["stop", "skip"] = "stop"
    references: int = 1024 * 1024


class KnownVae(Protocol):
    """What fitting a model takes to know of a VAE: a codec, or what its config says."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def channels(self) -> int:
        """Of latents."""
        ...

    @property
    def steps(self) -> tuple[int, int, int]:
        """Frames, rows and columns of pixels in one of latents."""
        ...


class KnownText(Protocol):
    """What fitting a model takes to know of a text encoder."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def width(self) -> int:
        """Of an embedding."""
        ...


def encoding_faults(
    source: ModelSource, vae: KnownVae, text: KnownText, buckets: Buckets, *, sees_images: bool
) -> list[Fault]:
    """Where the model does not fit what encodes, or the sizes neither; each at the option of `loong-dit cache`."""
    config = source.config
    faults = buckets.faults(vae.steps, config.patch_size, source.name)
    beside = config.in_channels - config.out_channels
    if vae.channels != config.out_channels:
        what = f"makes latents of {vae.channels} channels, and {source.name} takes {config.out_channels}"
        faults.append(Fault("--vae", f"{vae.name} {what}", "take the model's own VAE"))
    if text.width != config.text_dim:
        what = f"makes embeddings of width {text.width}, and {source.name} takes {config.text_dim}"
        faults.append(Fault("--text-encoder", f"{text.name} {what}", "take the model's own text encoder"))
    if beside not in (0, vae.channels + MASK_CHANNELS):
        what = f"{source.name} takes {beside} channels of conditions; {vae.channels + MASK_CHANNELS} can be made"
        faults.append(Fault("--model", what, "take a model of this VAE"))
    if config.image_dim is not None and not sees_images:
        what = f"{source.name} sees condition images through an encoder"
        faults.append(Fault("--model", what, "name a pipeline's folder, which has image_encoder/"))
    return faults


def known_manifest(source: ModelSource, vae: KnownVae, text: KnownText) -> Manifest:
    """What samples will be, as far as it is known without weights; none yet."""
    config = source.config
    return Manifest(
        kind="values" if vae.name == Pixels.name else "moments",
        channels=vae.channels,
        text_dim=text.width,
        samples=0,
        vae={"name": vae.name},
        text_encoder={"name": text.name},
        image_dim=config.image_dim,
        condition_channels=config.in_channels - config.out_channels,
    )


class SampleEncoder:
    """Encodes samples for a model, without gradient.

    Args:
        source: the model that is to be trained, which says what conditions it takes.
        codec, captions: what encodes.
        settings: sizes, dtype, and what becomes of damaged files.
        images: encodes condition images, for models that see them so.

    Raises:
        ConfigError: the model does not fit the codec, or the sizes neither.
    """

    def __init__(
        self,
        source: ModelSource,
        codec: LatentCodec,
        captions: CaptionEncoder,
        settings: EncodingSettings,
        images: ImageEncoder | None = None,
    ) -> None:
        self.source, self.codec, self.settings = source, codec, settings
        self._captions, self._images = captions, images
        if faults := encoding_faults(source, codec, captions, settings.buckets, sees_images=images is not None):
            raise ConfigError(faults)

    def manifest(self) -> Manifest:
        """What stands for everything that decides what is made of a file; no samples yet."""
        settings, codec, captions = self.settings, self.codec, self._captions
        return replace(
            known_manifest(self.source, codec, captions),
            vae={"name": codec.name, "hash": codec.hash},
            text_encoder={"name": captions.name, "hash": captions.hash},
            settings={
                "sizes": [list(size) for size in settings.buckets.sizes],
                "frames": list(settings.buckets.frames),
                "dtype": str(settings.dtype).removeprefix("torch."),
            },
        )

    @property
    def weight_bytes(self) -> int:
        """Of everything that encodes."""
        return sum(getattr(each, "weight_bytes", 0) for each in (self.codec, self._captions, self._images))

    def caption(self, text: str) -> Tensor:
        """`[text tokens, text_dim]`."""
        return self._captions.encode([text])[0].to(self.settings.dtype)

    @torch.no_grad()
    def encode(self, each: Listed) -> CachedSample:
        """A sample's latents and embeddings, on the host.

        Raises:
            MediaError: a file cannot be read, or has too few frames.
        """
        settings, codec, config = self.settings, self.codec, self.source.config
        media = read_media(each.path, frames=max(settings.buckets.frames))
        references = [read_media(path) for path in each.references]
        frames = frames_of(each, media.shape[1], settings.buckets)
        size = settings.buckets.size_for(*media.shape[-2:])
        pixels = self._as_codec_takes(fitted(media[:, :frames], size))
        mean, deviation = codec.encode(pixels)
        latents = mean if deviation is None else torch.cat([mean, deviation])
        condition = image = None
        if config.in_channels > config.out_channels:
            condition = self._condition(pixels, latents.shape[1:])
        if self._images is not None and config.image_dim is not None:
            image = self._images(pixels[:, :1])
        others = [self._as_codec_takes(self._within(reference)) for reference in references]
        return CachedSample(
            latents.to(settings.dtype),
            self.caption(each.caption),
            None if condition is None else condition.to(settings.dtype),
            None if image is None else image.to(settings.dtype),
            tuple(codec.encode(other)[0].to(settings.dtype) for other in others),
        )

    def _condition(self, pixels: Tensor, size: Sequence[int]) -> Tensor:
        """The first frame alone as latents, and before it the mask of frames that are given (Wan's image to video)."""
        first = torch.zeros_like(pixels)
        first[:, :1] = pixels[:, :1]
        mask = torch.zeros(MASK_CHANNELS, *size)
        mask[:, 0] = 1
        return torch.cat([mask, self.codec.encode(first)[0]])

    def _as_codec_takes(self, pixels: Tensor) -> Tensor:
        return pixels.mean(0, keepdim=True) if self.codec.pixel_channels == 1 else pixels

    def _within(self, reference: Tensor) -> Tensor:
        """A reference of its own shape, of so many pixels at most, in whole patches."""
        size = reference_size(reference.shape[-2:], self.settings.references, self.codec, self.source)
        return fitted(reference, size)


def frames_of(each: Listed, available: int, buckets: Buckets) -> int:
    """How many frames of a video are taken.

    Raises:
        MediaError: it has too few for any bucket.
    """
    frames = buckets.frames_for(available)
    if frames is None:
        least = min(buckets.frames)
        raise MediaError(f"{each.path} has {counted(available, 'frame')}, fewer than the {least} that are asked for")
    return frames


def reference_size(extents: Sequence[int], most: int, vae: KnownVae, source: ModelSource) -> tuple[int, int]:
    """Rows and columns of a reference of about its own shape, of `most` pixels, in whole patches."""
    scale = min(1.0, (most / (extents[0] * extents[1])) ** 0.5)
    steps = [step * part for step, part in zip(vae.steps[1:], source.config.patch_size[1:], strict=True)]
    rows, columns = (max(1, round(extent * scale / step)) * step for extent, step in zip(extents, steps, strict=True))
    return rows, columns
