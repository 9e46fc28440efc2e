"""Which frames of a video are taken: as many a second as asked for, within bounds, spread over all of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from loong_core.errors import UserError

Spread = Literal["ends", "steps", "middles"]
"""How frames are spread: from the first to the last (Qwen3-VL), at equal steps from the first (Qwen2-VL), or at the
middles of equal stretches (InternVL)."""


@dataclass(frozen=True)
class VideoFacts:
    """What a video's header says.

    Attributes:
        frames: how many there are.
        rate: frames a second.
        height: pixels.
        width: pixels.
    """

    frames: int
    rate: float
    height: int
    width: int


@dataclass(frozen=True)
class FrameChoice:
    """Which frames are taken.

    Attributes:
        spread: how they are spread.
        per_second: how many a second of the video; None: `count`.
        count: how many of any video; None: all, where `per_second` is None too.
        least: at least so many, if the video has them.
        most: at most so many.
        multiple: a number of frames that is a multiple of this, where `spread` is `steps`.
    """

    spread: Spread
    per_second: float | None = 2.0
    count: int | None = None
    least: int = 4
    most: int = 768
    multiple: int = 1

    def indices(self, video: VideoFacts, per_second: float | None = None) -> list[int]:
        """The frames to take, rising. A video that has fewer than asked for gives all it has.

        Args:
            video: what is there.
            per_second: frames a second for this video, in place of the choice's own.

        Raises:
            UserError: a video without frames.
        """
        total = video.frames
        if total < 1:
            raise UserError("it has no frame at all; leave it out")
        wanted = self._wanted(video, per_second or self.per_second, self.count if per_second is None else None)
        if self.spread == "ends":
            return np.linspace(0, total - 1, wanted).round().astype(int).tolist()
        # The comparison with total is float32's, as torch has it: it decides about a last frame too many.
        start = total / wanted / 2 if self.spread == "middles" else 0
        return torch.arange(start, total, total / wanted).int().tolist()

    def _wanted(self, video: VideoFacts, per_second: float | None, count: int | None) -> int:
        total, multiple = video.frames, self.multiple
        if count is not None:
            wanted = round(count / multiple) * multiple if self.spread == "steps" else count
            return max(min(wanted, total), 1)
        if per_second is None:
            return min(total, self.most)
        played = total / video.rate * per_second
        if self.spread == "steps":
            most = math.floor(min(self.most, total) / multiple) * multiple
            wanted = min(max(played, self.least), most, total)
            return math.floor(wanted / multiple) * multiple or 1
        return max(min(max(int(played), self.least), self.most, total), 1)


def frame_times(indices: list[int], rate: float, temporal: int) -> list[float]:
    """Seconds at which each group of `temporal` frames is shown: the mean of its first and its last (Qwen3-VL)."""
    whole = indices + [indices[-1]] * (-len(indices) % temporal)
    times = [index / rate for index in whole]
    return [(times[first] + times[first + temporal - 1]) / 2 for first in range(0, len(times), temporal)]
