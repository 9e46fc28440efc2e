"""Images cut into patches, and bytes into the floats that a tower reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def cut_into_patches(frames: Tensor, patch: int, merge: int = 1) -> Tensor:
    """Patches of each frame, those of one `merge x merge` square next to each other.

    Args:
        frames: `[frames, height, width, 3]`, sides multiples of `patch * merge`.
        patch: pixels of a patch's side.
        merge: patches of the side of a square that becomes one token.

    Returns:
        `[frames, patches, 3, patch, patch]`, of the frames' dtype.
    """
    count, height, width, channels = frames.shape
    rows, columns = height // (patch * merge), width // (patch * merge)
    squares = frames.view(count, rows, merge, patch, columns, merge, patch, channels)
    # [frames, rows, columns, merge, merge, channels, patch, patch]
    return squares.permute(0, 1, 4, 2, 5, 7, 3, 6).reshape(count, -1, channels, patch, patch)


@dataclass(frozen=True)
class Normalisation:
    """What bytes become: `(byte - mean) / std` a channel, with mean and std scaled to bytes.

    Attributes:
        mean: of each channel, for values from 0 to 1.
        std: of each channel, for values from 0 to 1.
        rescale: what takes bytes to values from 0 to 1.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    rescale: float = 1 / 255

    def __call__(self, patches: Tensor, temporal: int) -> Tensor:
        """The floats of patches, `[patches, 3 * temporal * patch * patch]` float32.

        The arithmetic, down to the order of float32 operations, is that of Hugging Face's fused rescaling and
        normalisation, so the results are equal in every bit.

        Args:
            patches: `[patches, 3, frames, patch, patch]` bytes, of any dtype and on any device, `frames` either
                `temporal` or 1: a still image, whose one frame is repeated.
            temporal: frames of a patch.
        """
        count, channels, _, side, _ = patches.shape
        scale, device = 1.0 / self.rescale, patches.device
        mean = (torch.tensor(self.mean) * scale).view(channels, 1, 1, 1).to(device)
        std = (torch.tensor(self.std) * scale).view(channels, 1, 1, 1).to(device)
        floats = torch.empty(count, channels, temporal, side, side, device=device)
        floats.copy_(patches.expand_as(floats)).sub_(mean).div_(std)
        return floats.view(count, channels * temporal * side * side)
