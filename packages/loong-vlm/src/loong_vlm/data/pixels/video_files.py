"""Video files: what their header says, and chosen frames, by PyAV (FFmpeg)."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loong_core.errors import UserError
from loong_vlm.data.pixels.video import VideoFacts


def video_facts(video: Path | bytes) -> VideoFacts:
    """Frames, rate and size of a video's first stream; where the header tells no number of frames, they are counted.

    Raises:
        UserError: it is empty or no video.
    """
    with _opened(video) as (container, stream):
        frames = stream.frames or sum(1 for packet in container.demux(stream) if packet.size)
        if not stream.average_rate:
            raise UserError("its header tells no frame rate; write it again, for example with ffmpeg -r")
        return VideoFacts(int(frames), float(stream.average_rate), int(stream.height), int(stream.width))


def decode_frames(video: Path | bytes, indices: Sequence[int]) -> Tensor:
    """`[frames, height, width, 3]` uint8, the frames of these numbers, rising.

    Raises:
        UserError: it is no video, or ends before the last of them.
    """
    wanted = iter(indices)
    next_wanted = next(wanted)
    frames: list[np.ndarray] = []
    number = -1
    with _opened(video) as (container, _):
        for number, frame in enumerate(container.decode(video=0)):
            if number < next_wanted:
                continue
            picture = frame.to_ndarray(format="rgb24")
            while number == next_wanted:
                frames.append(picture)
                next_wanted = next(wanted, -1)
            if next_wanted < 0:
                break
    if next_wanted >= 0:
        raise UserError(
            f"it ends after {number + 1} frames, though its header tells of more (frame {next_wanted} is wanted); "
            "it was cut short: copy it again, or leave it out"
        )
    return torch.from_numpy(np.stack(frames))


@contextmanager
def _opened(video: Path | bytes) -> Iterator[tuple[Any, Any]]:
    import av  # loads FFmpeg, which runs without a video need not pay for
    from av.error import FFmpegError

    if not (video.stat().st_size if isinstance(video, Path) else video):
        raise UserError("the file is empty (0 bytes); copy it again, or leave it out")
    try:
        with av.open(str(video) if isinstance(video, Path) else io.BytesIO(video)) as container:
            if not container.streams.video:
                raise UserError("it holds no video stream; leave it out")
            yield container, container.streams.video[0]
    except FFmpegError as error:
        raise UserError(f"it is no video that FFmpeg can decode ({error}); copy it again, or leave it out") from error
