"""Where the patches of images are, and which see each other; worked out on the host from the grids.

Patches of an image come frame by frame, and in a frame square by square of `merge x merge` patches (row by row where
`merge` is 1), which is how the processors of Qwen-like models lay them out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.int64]


def rows_and_columns(grid_thw: Tensor, merge: int) -> Tensor:
    """Row and column of each patch of packed images, `[patches, 2]` int64, by `grid_thw` `[images, 3]`."""
    found = [np.tile(_frame(height, width, merge), (frames, 1)) for frames, height, width in grid_thw.tolist()]
    return torch.from_numpy(np.concatenate(found) if found else np.zeros((0, 2), np.int64))


def _frame(height: int, width: int, merge: int) -> Numbers:
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    blocks = (height // merge, merge, width // merge, merge)
    return np.stack([each.reshape(blocks).swapaxes(1, 2).ravel() for each in (rows, columns)], axis=1)


@dataclass(frozen=True, eq=False)
class Segments:
    """Runs of packed patches that attention does not leave.

    Attributes:
        bounds: `[segments + 1]` int32 on the host, as `cu_seqlens`.
        longest: patches of the longest.
        uniform: their common length where they share one, else None.
    """

    bounds: Tensor
    longest: int
    uniform: int | None

    @staticmethod
    def of_lengths(lengths: Iterable[int]) -> Segments:
        """Segments of these lengths, one after the other."""
        sizes = np.fromiter(lengths, np.int64)
        bounds = torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
        longest = int(sizes.max(initial=0))
        return Segments(bounds, longest, longest if len(sizes) and bool((sizes == longest).all()) else None)

    def to(self, device: torch.device) -> Segments:
        """The same with the bounds on `device`."""
        return Segments(self.bounds.to(device, non_blocking=True), self.longest, self.uniform)


def frames_apart(grid_thw: Tensor) -> Segments:
    """Each frame of each image by itself."""
    return Segments.of_lengths(height * width for frames, height, width in grid_thw.tolist() for _ in range(frames))


def images_apart(grid_thw: Tensor) -> Segments:
    """Each image or video by itself."""
    return Segments.of_lengths(grid_thw.prod(1).tolist())


def window_order(grid_thw: Tensor, merge: int, side: int) -> tuple[Tensor, Segments]:
    """Squares of patches in the order of windows, row of windows after row of windows (Qwen2.5-VL, arXiv:2502.13923).

    Args:
        grid_thw: `[images, 3]`.
        merge: patches along a side of a square.
        side: squares along a side of a window; those at the right and lower edges may be smaller.

    Returns:
        which square (of `merge x merge` patches, by their number among the packed ones) comes when, `[squares]` int64,
        and the windows as segments of patches.
    """
    order: list[Numbers] = []
    lengths: list[int] = []
    first = 0
    for frames, height, width in grid_thw.tolist():
        rows, columns = height // merge, width // merge
        squares = np.arange(first, first + frames * rows * columns).reshape(frames, rows, columns)
        for frame in squares:
            for top in range(0, rows, side):
                for left in range(0, columns, side):
                    window = frame[top : top + side, left : left + side].ravel()
                    order.append(window)
                    lengths.append(len(window) * merge * merge)
        first += squares.size
    joined = np.concatenate(order) if order else np.zeros(0, np.int64)
    return torch.from_numpy(joined), Segments.of_lengths(lengths)


def square_order(grid_thw: Tensor, side: int) -> Tensor:
    """Of patches that come row by row, which comes when they are to come in squares of `side x side`.

    Returns:
        `[patches]` int64, on the host.
    """
    first, found = 0, []
    for frames, height, width in grid_thw.tolist():
        rows, columns = _frame(height, width, side).T
        starts = first + np.arange(frames)[:, None] * (height * width)
        found.append((starts + rows * width + columns).ravel())
        first += frames * height * width
    return torch.from_numpy(np.concatenate(found) if found else np.zeros(0, np.int64))
