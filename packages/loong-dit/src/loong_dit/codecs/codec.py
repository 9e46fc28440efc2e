"""What the framework asks of a VAE and of a text encoder, and the two that need no other package."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class LatentCodec(Protocol):
    """From pixels to latents and back.

    Attributes:
        name: what it is called in manifests.
        hash: of its weights and settings.
        channels: of latents.
        steps: frames, rows and columns of pixels in one of latents; the first frame stands alone where frames are
            brought together.
        pixel_channels: 3, or 1 for grey.
        weight_bytes: of its weights.
    """

    name: str
    hash: str
    channels: int
    steps: tuple[int, int, int]
    pixel_channels: int
    weight_bytes: int

    def encode(self, video: Tensor) -> tuple[Tensor, Tensor | None]:
        """`[pixel channels, frames, rows, columns]` in -1 to 1 to the mean and deviation of normalised latents.

        The deviation is None where an encoding is certain.
        """
        ...

    def decode(self, latents: Tensor) -> Tensor:
        """`[channels, frames, rows, columns]` to pixels in -1 to 1."""
        ...


class CaptionEncoder(Protocol):
    """From captions to embeddings.

    Attributes:
        name: what it is called in manifests.
        hash: of its weights and settings.
        width: of an embedding.
        weight_bytes: of its weights.
    """

    name: str
    hash: str
    width: int
    weight_bytes: int

    def encode(self, captions: Sequence[str]) -> list[Tensor]:
        """`[tokens, width]` of each caption, without padding; at least one token also for the empty caption."""
        ...


class Pixels:
    """Pixels themselves as latents: for small pictures, and for models in pixel space."""

    name = "pixels"
    weight_bytes = 0
    steps: tuple[int, int, int] = (1, 1, 1)

    def __init__(self, channels: int) -> None:
        self.channels = self.pixel_channels = channels
        self.hash = f"{channels}"

    def encode(self, video: Tensor) -> tuple[Tensor, None]:
        """The same."""
        return video, None

    def decode(self, latents: Tensor) -> Tensor:
        """The same, within -1 to 1."""
        return latents.clamp(-1, 1)


class Words:
    """Each word a vector of normal numbers that its letters decide: enough for captions of few words.

    A caption begins with a vector of its own, so that the empty one is not nothing. Upper and lower case are the same.
    """

    name = "words"
    weight_bytes = 0

    def __init__(self, width: int) -> None:
        self.width = width
        self.hash = f"{width}"

    def encode(self, captions: Sequence[str]) -> list[Tensor]:
        """`[1 + words, width]` of each caption."""
        return [torch.stack([self._vector(word) for word in ["", *caption.lower().split()]]) for caption in captions]

    def _vector(self, word: str) -> Tensor:
        digest = hashlib.sha256(f"word {word}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
        return torch.randn(self.width, generator=generator)
