"""A learnt table of positions stretched over an image's grid; worked out on the host."""

from __future__ import annotations

import torch
from torch import Tensor


def bilinear_taps(rows_columns: Tensor, grid_thw: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Which entries of the table each patch's position is interpolated between, and their weights.

    The corners of the table are the corners of the grid (`align_corners`).

    Args:
        rows_columns: `[patches, 2]` int64, of packed images.
        grid_thw: `[images, 3]`, theirs.
        side: rows, and columns, of the table.

    Returns:
        `[patches, 4]` int64 and `[patches, 4]` float32.
    """
    counts = grid_thw.prod(1)
    extents = torch.repeat_interleave(grid_thw[:, 1:], counts, dim=0)  # [patches, 2]
    place = rows_columns.float() * (side - 1) / (extents - 1).clamp(min=1)
    low, sides = place.floor(), torch.arange(2)
    taps = (low.long()[..., None] + sides).clamp(max=side - 1)  # [patches, 2 axes, 2]
    # In float32 and in this order of operations, since published weights were trained with it.
    weights = 1 - (place[..., None] - low[..., None] - sides).abs()
    entries = taps[:, 0, :, None] * side + taps[:, 1, None, :]
    return entries.flatten(1), (weights[:, 0, :, None] * weights[:, 1, None, :]).flatten(1)
