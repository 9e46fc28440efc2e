"""One dataset, opened: what the robot saw and did around any frame.

Numbers are in memory. Pictures are asked for many at once, and read in the order in which they lie in their files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loong_core.config.files import user_path
from loong_core.errors import Fault, UserError
from loong_vla.data.metadata import Metadata, read_metadata
from loong_vla.data.tables import PictureTables, read_columns
from loong_vla.data.video import OPEN_FILES, CorruptFrame, OpenVideos, VideoFrames

IMAGES = "observation.images"
STATE = "observation.state"
ACTION = "action"
NUMBERS = (STATE, ACTION, "timestamp", "task_index")
"""Columns that are kept in memory."""


@dataclass(frozen=True)
class PictureRequest:
    """One picture.

    Attributes:
        camera: the dataset's feature.
        episode: its number.
        frame: within the episode.
    """

    camera: str
    episode: int
    frame: int


class Recordings:
    """A LeRobot dataset.

    Args:
        root: its folder.
        cache_bytes: decoded pictures that are kept in memory.

    Raises:
        UserError: it cannot be read, or contradicts itself.
    """

    def __init__(self, root: Path | str, *, cache_bytes: int = 0) -> None:
        self.root = user_path(str(root))
        self.metadata: Metadata = read_metadata(self.root)
        for feature in (STATE, ACTION):
            self.metadata.width(feature)
        columns = self._numbers()
        self.states: NDArray[np.float32] = columns[STATE]
        self.actions: NDArray[np.float32] = columns[ACTION]
        self._timestamps = columns["timestamp"].astype(np.float64)
        self._tasks = columns["task_index"].astype(np.int64)
        self._starts = self.metadata.starts
        self._ends = self._starts + self.metadata.lengths
        self._videos = OpenVideos()
        self._pictures = PictureTables(self.metadata)
        self._cache: dict[PictureRequest, NDArray[np.uint8]] = {}
        self._cache_room = cache_bytes

    def _numbers(self) -> dict[str, NDArray]:
        """States, actions, times and tasks of all frames."""
        return read_columns(self.metadata, NUMBERS)

    def __len__(self) -> int:
        """Frames."""
        return len(self.states)

    @property
    def digest(self) -> str:
        """Of what decides the samples: shape and numbers of the dataset."""
        parts = hashlib.sha256(json.dumps([self.metadata.version, self.metadata.fps, len(self)]).encode())
        for values in (self.metadata.lengths, self._tasks, self.states, self.actions):
            parts.update(np.ascontiguousarray(values))
        return parts.hexdigest()

    def episode_of(self, frame: int) -> tuple[int, int]:
        """Episode of a frame of the whole dataset, and its number there."""
        episode = int(np.searchsorted(self._ends, frame, side="right"))
        return episode, frame - int(self._starts[episode])

    def task(self, frame: int) -> str:
        """What is asked for at a frame."""
        return self.metadata.tasks[int(self._tasks[frame])]

    def chunk(self, frame: int, offsets: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Actions at `frame + offsets`; beyond the episode's ends its first or last is repeated.

        Returns:
            `[offsets, width]`, and which of them lie within the episode.
        """
        episode, _ = self.episode_of(frame)
        start, end = int(self._starts[episode]), int(self._ends[episode])
        wanted = frame + offsets
        inside = (wanted >= start) & (wanted < end)
        return self.actions[wanted.clip(start, end - 1)], inside

    def pictures(self, requests: Sequence[PictureRequest]) -> list[NDArray[np.uint8] | CorruptFrame]:
        """Pictures, `[height, width, 3]` each, as requested; an error stands in the place of what cannot be read."""
        missing = [request for request in dict.fromkeys(requests) if request not in self._cache]
        read = dict(zip(missing, self._decoded(missing), strict=True))
        for request, picture in read.items():
            if not isinstance(picture, CorruptFrame) and picture.nbytes <= self._cache_room:
                self._cache[request] = picture
                self._cache_room -= picture.nbytes
        return [read[request] if request in read else self._cache[request] for request in requests]

    def _decoded(self, requests: Sequence[PictureRequest]) -> list[NDArray[np.uint8] | CorruptFrame]:
        found: list[NDArray[np.uint8] | CorruptFrame] = [CorruptFrame("not read")] * len(requests)
        by_file: dict[Path, list[tuple[float, int]]] = {}
        for number, request in enumerate(requests):
            spans = self.metadata.videos.get(request.camera)
            if spans is None:
                found[number] = self._from_table(request)
                continue
            span = spans[request.episode]
            seconds = span.start + self._timestamps[self._starts[request.episode] + request.frame]
            by_file.setdefault(span.file, []).append((float(seconds), number))
        files = sorted(by_file)
        for first in range(0, len(files), OPEN_FILES):  # no more than can stay open together
            opened = [(self._open(file), sorted(by_file[file])) for file in files[first : first + OPEN_FILES]]
            if len(opened) == 1:
                self._read(*opened[0], found)
                continue
            with ThreadPoolExecutor(min(4, len(opened))) as pool:
                list(pool.map(lambda each: self._read(each[0], each[1], found), opened))
        return found

    def _open(self, file: Path) -> VideoFrames | CorruptFrame:
        try:
            return self._videos.get(file)
        except CorruptFrame as error:
            return error

    def _read(
        self,
        video: VideoFrames | CorruptFrame,
        wanted: Sequence[tuple[float, int]],
        found: list[NDArray[np.uint8] | CorruptFrame],
    ) -> None:
        """Read one video's frames, given as (seconds, place in `found`)."""
        for seconds, number in wanted:
            try:
                if isinstance(video, CorruptFrame):
                    raise video
                found[number] = video.read([seconds], 0.5 / self.metadata.fps)[0]
            except CorruptFrame as error:
                found[number] = error

    def _from_table(self, request: PictureRequest) -> NDArray[np.uint8] | CorruptFrame:
        try:
            return self._pictures.read(request.camera, request.episode, request.frame)
        except UserError as error:
            return CorruptFrame(str(error))

    def video_faults(self) -> list[Fault]:
        """Videos that are missing, cannot be opened, or are shorter than the tables say; their headers are read."""
        needed: dict[tuple[str, Path], float] = {}
        for camera, spans in self.metadata.videos.items():
            for span, start, length in zip(spans, self._starts, self.metadata.lengths, strict=True):
                last = span.start + float(self._timestamps[start + length - 1])
                needed[camera, span.file] = max(needed.get((camera, span.file), 0.0), last)
        faults = []
        for (camera, file), last in needed.items():
            if not file.is_file():
                faults.append(Fault(str(file), f"is missing; {camera} of {self.root} is in it", "restore it"))
                continue
            try:
                video = VideoFrames(file)
            except CorruptFrame as error:
                faults.append(Fault(str(file), f"cannot be opened as a video: {error}", "restore it"))
                continue
            if video.duration and video.duration < last:
                what = f"lasts {video.duration:.3f} s, but the tables have a frame of {camera} at {last:.3f} s"
                faults.append(Fault(str(file), what, "restore it, or leave its episodes out"))
            video.close()
        return faults

    def offsets(self, seconds: Sequence[float], where: str) -> NDArray[np.int64]:
        """Times relative to a frame as numbers of frames.

        Raises:
            UserError: a time is not a multiple of `1 / fps`.
        """
        frames = np.asarray(seconds, np.float64) * self.metadata.fps
        whole = np.rint(frames).astype(np.int64)
        if (off := np.abs(frames - whole) > 1e-3).any():
            bad = [float(each) for each in np.asarray(seconds)[off][:3]]
            raise UserError(
                f"{where}: {bad} s are no multiples of a frame of {self.root}, which lasts 1/{self.metadata.fps:g} s"
            )
        return whole

    def close(self) -> None:
        """Close all videos."""
        self._videos.close()


def camera_map(recordings: Recordings, cameras: Sequence[str], renamed: Mapping[str, str]) -> dict[str, str]:
    """The dataset's feature for each camera of a policy that the dataset has.

    Args:
        recordings: the dataset.
        cameras: of the policy.
        renamed: the policy's camera to the dataset's feature, where the names differ.

    Raises:
        UserError: a renamed camera is not there, or none is.
    """
    there = recordings.metadata.cameras
    for policy, feature in renamed.items():
        if policy not in cameras:
            raise UserError(f"cameras: the policy has no camera {policy}; it has {', '.join(cameras)}")
        if feature not in there:
            raise UserError(f"cameras: {recordings.root} has no camera {feature}; it has {', '.join(there) or 'none'}")
    found = {each: renamed.get(each, each) for each in cameras if renamed.get(each, each) in there}
    if not found:
        raise UserError(
            f"{recordings.root} has none of the policy's cameras {', '.join(cameras)}; it has "
            f"{', '.join(there) or 'none'}: name them in cameras"
        )
    return found
