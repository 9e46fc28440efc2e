"""Latents of any size to packed patches, and back.

A token's input patch lists its numbers channel first, as a convolution's kernel does: `[channels, frames, rows,
columns]`. What a model says of a token lists them channel last, as diffusers' output projections do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from loong_kernels import SequencePairs

PatchSize = tuple[int, int, int]


def to_patches(latents: Tensor, patch: PatchSize, *, channels_last: bool = False) -> Tensor:
    """`[channels, frames, rows, columns]` to `[tokens, channels x patch]`, tokens in order of frames, rows, columns."""
    channels, frames, rows, columns = latents.shape
    t, h, w = patch
    grid = latents.reshape(channels, frames // t, t, rows // h, h, columns // w, w)
    order = (1, 3, 5, 2, 4, 6, 0) if channels_last else (1, 3, 5, 0, 2, 4, 6)
    return grid.permute(order).reshape(-1, channels * t * h * w)


def from_patches(patches: Tensor, size: Sequence[int], patch: PatchSize) -> Tensor:
    """`[tokens, patch x channels]`, channels last, to `[channels, frames, rows, columns]`; `size` is the last three."""
    frames, rows, columns = size
    t, h, w = patch
    grid = patches.reshape(frames // t, rows // h, columns // w, t, h, w, -1)
    return grid.permute(6, 0, 3, 1, 4, 2, 5).reshape(-1, frames, rows, columns)


def grid_positions(size: Sequence[int], patch: PatchSize) -> Tensor:
    """`[tokens, 3]` int64, the frame, row and column of each patch of latents of `size` (frames, rows, columns)."""
    axes = [torch.arange(extent // step) for extent, step in zip(size, patch, strict=True)]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, 3)


@dataclass(frozen=True)
class Lengths:
    """Lengths of packed runs, as attention takes them.

    Attributes:
        bounds: `[runs + 1]` int32.
        longest: of the runs.
        uniform: the common length, None if they differ.
    """

    bounds: Tensor
    longest: int
    uniform: int | None

    @staticmethod
    def of(lengths: Sequence[int]) -> Lengths:
        """From the lengths themselves, at least one."""
        bounds = torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0).to(torch.int32)
        return Lengths(bounds, max(lengths), lengths[0] if len(set(lengths)) == 1 else None)

    def seeing(self, keys: Lengths) -> SequencePairs:
        """Each run sees the run of `keys` of its own number."""
        return SequencePairs(self.bounds, keys.bounds, self.longest, keys.longest, causal=False)


@dataclass(frozen=True)
class PatchForm:
    """How a family's latents become tokens.

    Attributes:
        patch_size: frames, rows and columns of latents in a token.
        channels_last: whether what the model says of a token lists channels last.
        centred: whether rows and columns are counted from the middle, so that some are negative; else from 0.
        joint_text: whether captions' tokens stand in the patches' own attention.
    """

    patch_size: PatchSize
    channels_last: bool
    centred: bool = False
    joint_text: bool = False

    def tokens(self, size: Sequence[int]) -> int:
        """Of latents of `size`: frames, rows, columns."""
        return prod(extent // step for extent, step in zip(size, self.patch_size, strict=True))

    def patch_elements(self, channels: int) -> int:
        """Numbers in a token's patch."""
        return channels * prod(self.patch_size)

    def inputs(self, latents: Tensor) -> Tensor:
        """`[tokens, numbers]` as the model takes them."""
        return to_patches(latents, self.patch_size)

    def outputs(self, latents: Tensor) -> Tensor:
        """`[tokens, numbers]` as the model says them."""
        return to_patches(latents, self.patch_size, channels_last=self.channels_last)

    def latents(self, said: Tensor, size: Sequence[int]) -> Tensor:
        """What the model said, as `[channels, frames, rows, columns]`."""
        if self.channels_last:
            return from_patches(said, size, self.patch_size)
        steps = prod(self.patch_size)
        last = said.unflatten(-1, (-1, steps)).transpose(-1, -2).flatten(-2)
        return from_patches(last, size, self.patch_size)

    def positions(self, size: Sequence[int], image: int = 0) -> Tensor:
        """`[tokens, 3]` int64; `image` is the number among several images, 0 for the one that is made."""
        places = grid_positions(size, self.patch_size)
        places[:, 0] += image
        if self.centred:
            for axis in (1, 2):
                extent = size[axis] // self.patch_size[axis]
                places[:, axis] -= extent - extent // 2
        return places
