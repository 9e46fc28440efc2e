"""Position ids of text with images, worked out on the host.

Text is numbered one by one. An image's features either are numbered as text, or (M-RoPE, arXiv:2409.12191) have
positions in time, height and width from where the text stood, after which the text goes on behind the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loong_vlm.parts import Grid

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class OneAxis:
    """Features are numbered as if they were text.

    Attributes:
        frame_by_frame: whether each frame of a video stands in a stretch of its own.
    """

    frame_by_frame: bool = True
    axes: int = 1

    def runs(self, grid: Grid, is_video: bool) -> Sequence[Grid]:
        """See `frame_by_frame`."""
        return [(1, *grid[1:])] * grid[0] if is_video and self.frame_by_frame else [grid]

    def of_run(self, start: int, grid: Grid, seconds: float, is_video: bool) -> tuple[Positions, int]:
        """Numbered one by one."""
        count = grid[0] * grid[1] * grid[2]
        return np.arange(start, start + count)[:, None], start + count


@dataclass(frozen=True)
class ThreeAxes:
    """M-RoPE: time, height and width.

    Attributes:
        frame_by_frame: whether each frame of a video stands in a stretch of its own, between time stamps (Qwen3-VL);
            if not, a video stands in one, its frames apart in time by whole seconds (Qwen2.5-VL).
        per_second: positions in time that a second takes.
    """

    frame_by_frame: bool
    per_second: int = 1
    axes: int = 3

    def runs(self, grid: Grid, is_video: bool) -> Sequence[Grid]:
        """See `frame_by_frame`."""
        return [(1, *grid[1:])] * grid[0] if is_video and self.frame_by_frame else [grid]

    def of_run(self, start: int, grid: Grid, seconds: float, is_video: bool) -> tuple[Positions, int]:
        """Time, height and width from `start` on; the text goes on at `start` plus the larger side."""
        frames, rows, columns = grid
        apart = self.per_second * int(seconds) if is_video and not self.frame_by_frame else 1
        axes = np.meshgrid(np.arange(frames) * apart, np.arange(rows), np.arange(columns), indexing="ij")
        return start + np.stack([axis.ravel() for axis in axes], axis=1), start + max(rows, columns)
