"""Text with placeholders, and images, to a batch that a model takes: where features go, and positions of all tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from loong_core.data.batch import PackedBatch
from loong_core.errors import UserError
from loong_vlm.data.batch import Pictures, VisionBatch
from loong_vlm.parts import Grid, ModelParts

Numbers = NDArray[np.int64]


def arrange(text: PackedBatch, pictures: Pictures, parts: ModelParts) -> VisionBatch:
    """A whole microbatch, on the host.

    Args:
        text: packed sequences whose placeholder tokens are as many as the images' features, in the same order.
        pictures: the images of all sequences, one sequence after the other.
        parts: the model they are for.

    Raises:
        UserError: placeholders and features differ in number, or an image's lie in two sequences.
    """
    stretches = _stretches(pictures, parts)
    tokens = text.tokens.numpy()
    shown = np.flatnonzero(np.isin(tokens, parts.meeting.placeholders))
    wanted = sum(prod(grid) for grid, _, _ in stretches)
    if len(shown) != wanted:
        raise UserError(
            f"the text has {len(shown)} placeholder tokens for images, the {pictures.count} images of its samples make "
            f"{wanted} features; each image stands in the text with as many placeholders as it has features"
        )
    batch = VisionBatch(text, pictures, torch.from_numpy(shown))
    if parts.meeting.positions.axes == 1:
        return batch
    positions = _positions(shown, text.cu_seqlens.tolist(), stretches, parts)
    return replace(batch, text=replace(text, position_ids=torch.from_numpy(positions)))


def _stretches(pictures: Pictures, parts: ModelParts) -> list[tuple[Grid, float, bool]]:
    """Each stretch of placeholders: its grid of features, seconds between frames, whether it is of a video."""
    found = []
    seconds = pictures.seconds or (1.0,) * pictures.count
    for grid, kind, apart in zip(pictures.grid_thw.tolist(), pictures.kinds, seconds, strict=True):
        is_video = kind == "video"
        for stretch in parts.meeting.positions.runs(parts.projector.feature_grid(tuple(grid)), is_video):
            found.append((stretch, apart, is_video))
    return found


def _positions(
    shown: Numbers, bounds: Sequence[int], stretches: list[tuple[Grid, float, bool]], parts: ModelParts
) -> Numbers:
    """`[tokens, axes]`, restarting at 0 with each sequence."""
    rule = parts.meeting.positions
    found = np.empty((bounds[-1], rule.axes), np.int64)
    used = next_stretch = 0
    for start, stop in pairwise(bounds):
        place, position = start, 0
        while used < len(shown) and shown[used] < stop:
            grid, seconds, is_video = stretches[next_stretch]
            first, count = int(shown[used]), prod(grid)
            if shown[used + count - 1] != first + count - 1 or first + count > stop:
                raise UserError(
                    f"the {count} placeholder tokens of an image, from token {first - start} of a sequence on, do not "
                    "stand together in it"
                )
            found[place:first] = np.arange(position, position + first - place)[:, None]
            position += first - place
            found[first : first + count], position = rule.of_run(position, grid, seconds, is_video)
            place, used, next_stretch = first + count, used + count, next_stretch + 1
        found[place:stop] = np.arange(position, position + stop - place)[:, None]
    return found
