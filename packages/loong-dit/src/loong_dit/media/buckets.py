"""Sizes that media are fitted to: the size of the nearest shape, and the most frames that there are."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from loong_core.errors import Fault, UserError


@dataclass(frozen=True)
class Buckets:
    """What media may be cut to.

    Attributes:
        sizes: rows and columns in pixels.
        frames: numbers of frames, rising.
    """

    sizes: tuple[tuple[int, int], ...]
    frames: tuple[int, ...]

    def size_for(self, rows: int, columns: int) -> tuple[int, int]:
        """The size of the nearest shape (columns to rows, as a ratio), of equal ones that of the nearest area."""
        shape = math.log(columns / rows)

        def distance(size: tuple[int, int]) -> tuple[float, float]:
            away = abs(math.log(size[1] / size[0]) - shape)
            return round(away, 6), abs(math.log(size[0] * size[1] / (rows * columns)))

        return min(self.sizes, key=distance)

    def frames_for(self, available: int) -> int | None:
        """The most frames that there are; None where there are too few for any."""
        fitting = [count for count in self.frames if count <= available]
        return max(fitting) if fitting else None

    def faults(self, steps: Sequence[int], patch: Sequence[int], name: str) -> list[Fault]:
        """Sizes that a VAE's steps and a model's patches do not divide."""
        found = []
        for size in self.sizes:
            for extent, step, part, axis in zip(size, steps[1:], patch[1:], ("rows", "columns")):
                if extent % (step * part):
                    nearest = max(1, round(extent / (step * part))) * step * part
                    what = f"{extent} {axis} are not a multiple of {step * part}, as {name} needs"
                    found.append(Fault("--size", what, f"the nearest is {nearest}"))
        for count in self.frames:
            latent = (count - 1) // steps[0] + 1
            if (count - 1) % steps[0] or latent % patch[0]:
                what = f"{count} frames do not fit: {name} takes one frame and then {steps[0]} at a time"
                found.append(Fault("--frames", what, f"such as {count // steps[0] * steps[0] + 1}"))
        return found


def parse_sizes(sizes: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """`480x832` (rows x columns) as numbers.

    Raises:
        UserError: one is not of that form.
    """
    found = []
    for text in sizes:
        match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
        if not match or not int(match[1]) or not int(match[2]):
            raise UserError(f"--size {text!r} is no size; write rows x columns, as 480x832")
        found.append((int(match[1]), int(match[2])))
    return tuple(found)


def fitted(video: Tensor, size: tuple[int, int]) -> Tensor:
    """`[channels, frames, rows, columns]` scaled until it covers `size`, then cut to it around the middle."""
    rows, columns = video.shape[-2:]
    scale = max(size[0] / rows, size[1] / columns)
    scaled = (max(size[0], round(rows * scale)), max(size[1], round(columns * scale)))
    if scaled != (rows, columns):
        frames = video.transpose(0, 1)
        video = F.interpolate(frames, scaled, mode="bicubic", antialias=True, align_corners=False).transpose(0, 1)
    top, left = (scaled[0] - size[0]) // 2, (scaled[1] - size[1]) // 2
    return (
        video[..., top : top + size[0], left : left + size[1]]
        .clamp(-1, 1)
        .contiguous(memory_format=torch.contiguous_format)
    )
