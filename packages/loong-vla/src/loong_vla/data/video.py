"""Single frames out of videos, fast: files stay open, and frames are asked for in the order in which they lie.

A decoder reaches a frame by decoding from the key frame before it. Where the next frame asked for lies ahead and no key
frame is nearer, decoding simply goes on; frames on the way are neither converted nor copied.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

import av
import av.error
import numpy as np
from numpy.typing import NDArray

from loong_core.errors import UserError

OPEN_FILES = 32
"""Videos that stay open."""


class CorruptFrame(UserError):
    """A frame that cannot be decoded, or is not in its video."""


class VideoFrames:
    """One video, open.

    Args:
        file: the video.
        keys: times of its key frames in units of the stream, if they are known from before; read when needed.

    Raises:
        CorruptFrame: it cannot be opened.
    """

    def __init__(self, file: Path, keys: list[int] | None = None) -> None:
        self.file = file
        self.keys = keys
        try:
            self._container = av.open(str(file))
            self._stream = self._container.streams.video[0]
        except (OSError, av.error.FFmpegError, IndexError) as error:
            raise CorruptFrame(f"{file} cannot be opened as a video: {error}") from error
        # One thread: decoding ahead would be thrown away at the next seek, and files are decoded side by side.
        if self._stream.codec_context is None:
            raise CorruptFrame(f"{file} cannot be opened as a video: its codec is not known")
        self._stream.codec_context.thread_count = 1
        self._stream.codec_context.options = {"err_detect": "explode"}  # a damaged frame is told, not guessed at
        self._seconds = float(self._stream.time_base or 0)
        self._decoded: Iterator[av.VideoFrame] | None = None
        self._last: av.VideoFrame | None = None

    @property
    def duration(self) -> float:
        """Seconds, as the file's header says; 0 where it does not."""
        return float((self._stream.duration or 0) * (self._stream.time_base or 0))

    def read(self, seconds: Sequence[float], tolerance: float) -> list[NDArray[np.uint8]]:
        """Frames at these times, `[height, width, 3]` each, in the order asked for; fastest when times increase.

        Args:
            seconds: into the video.
            tolerance: how far the nearest frame may be, in seconds.

        Raises:
            CorruptFrame: a frame cannot be decoded, or none is near enough.
        """
        return [np.asarray(self._at(each, tolerance).to_ndarray(format="rgb24"), np.uint8) for each in seconds]

    def close(self) -> None:
        """Close the file."""
        self._container.close()

    def _at(self, seconds: float, tolerance: float) -> av.VideoFrame:
        wanted = round(seconds / self._seconds)
        slack = tolerance / self._seconds
        try:
            if self._needs_seek(wanted, slack):
                self._container.seek(wanted, stream=self._stream, backward=True)
                self._decoded, self._last = self._container.decode(self._stream), None
            frame = self._last
            while frame is None or (frame.pts or 0) < wanted - slack:
                assert self._decoded is not None
                frame = self._last = next(self._decoded)
        except (av.error.FFmpegError, StopIteration) as error:
            self._decoded = self._last = None
            why = "the video ends before it" if isinstance(error, StopIteration) else f"it cannot be decoded ({error})"
            raise CorruptFrame(f"{self.file}: no frame at {seconds:.4f} s: {why}") from error
        if frame.is_corrupt:
            raise CorruptFrame(f"{self.file}: the frame at {seconds:.4f} s is damaged")
        if abs((frame.pts or 0) - wanted) > slack:
            off = abs((frame.pts or 0) - wanted) * self._seconds
            raise CorruptFrame(f"{self.file}: the frame nearest to {seconds:.4f} s is {off:.4f} s off")
        return frame

    def _needs_seek(self, wanted: int, slack: float) -> bool:
        """Whether to jump: back, or over a key frame that decoding has not reached yet."""
        if self._last is None or (self._last.pts or 0) > wanted + slack:
            return True
        keys = self._key_times()
        before = bisect_right(keys, wanted + slack) - 1
        return before >= 0 and keys[before] > (self._last.pts or 0)

    def _key_times(self) -> list[int]:
        """From the packets of the whole file, none of which is decoded."""
        if self.keys is not None:
            return self.keys
        with av.open(str(self.file)) as container:
            packets = container.demux(container.streams.video[0])
            self.keys = found = sorted(each.pts for each in packets if each.is_keyframe and each.pts is not None)
        return found


class OpenVideos:
    """Videos that stay open from one call to the next, the least recently used of many being closed."""

    def __init__(self, most: int = OPEN_FILES) -> None:
        self._most = most
        self._open: OrderedDict[Path, VideoFrames] = OrderedDict()
        self._keys: dict[Path, list[int]] = {}

    def get(self, file: Path) -> VideoFrames:
        """The video, open.

        Raises:
            CorruptFrame: it cannot be opened.
        """
        if file not in self._open:
            self._open[file] = VideoFrames(file, self._keys.get(file))
            if len(self._open) > self._most:
                old, video = self._open.popitem(last=False)
                if video.keys is not None:
                    self._keys[old] = video.keys
                video.close()
        self._open.move_to_end(file)
        return self._open[file]

    def close(self) -> None:
        """Close all."""
        for video in self._open.values():
            video.close()
        self._open.clear()
