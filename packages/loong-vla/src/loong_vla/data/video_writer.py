"""Frames to H.264 files, as datasets and people want them."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

CODEC, PIXELS, GROUP = "libx264", "yuv420p", 2
"""Codec, pixel format, and frames from one key frame to the next (lerobot's: few, so that any frame is near one)."""


def write_video(file: Path, frames: Iterable[NDArray[np.uint8]], fps: float, *, quality: int = 18) -> int:
    """Write a video.

    Args:
        file: ends in `.mp4`.
        frames: `[height, width, 3]` each, height and width even.
        fps: frames a second.
        quality: constant rate factor, 0 (lossless) to 51.

    Returns:
        how many frames were written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with av.open(str(file), "w") as container:
        stream = None
        for frame in frames:
            written += 1
            if stream is None:
                stream = container.add_stream(CODEC, rate=Fraction(fps).limit_denominator(1000))
                stream.height, stream.width = frame.shape[:2]
                stream.pix_fmt = PIXELS
                stream.options = {"crf": str(quality), "preset": "veryfast", "g": str(GROUP), "bf": "0"}
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
        if stream is not None:
            container.mux(stream.encode())
    return written
