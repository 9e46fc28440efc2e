"""The samples of one source: a frame of a dataset with what was done next, as a policy takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loong_vla.data.recordings import ACTION, STATE, PictureRequest, Recordings
from loong_vla.data.statistics import Normaliser
from loong_vla.data.video import CorruptFrame


@dataclass(frozen=True, eq=False)
class RobotSample:
    """One sample, normalised; all arrays on the host.

    Attributes:
        pictures: by the policy's camera, `[height, width, 3]` uint8.
        state: `[state width]` float32.
        actions: `[chunk, action width]` float32.
        inside: `[chunk]`, which actions lie within the episode.
        task: what was asked for.
        embodiment: whose sample it is.
        number: in the whole run's line of samples; what is random about a sample depends on it.
    """

    pictures: dict[str, NDArray[np.uint8]]
    state: NDArray[np.float32]
    actions: NDArray[np.float32]
    inside: NDArray[np.bool_]
    task: str
    embodiment: str
    number: int


class SampleSource:
    """Samples of one dataset.

    Args:
        recordings: the dataset.
        cameras: the policy's camera to the dataset's feature.
        normalisers: of state and action.
        offsets: `[chunk]` frames from the observation to each action.
        embodiment: whose dataset it is.
        frames: which frames samples begin at, all by default.
    """

    def __init__(
        self,
        recordings: Recordings,
        cameras: dict[str, str],
        normalisers: dict[str, Normaliser],
        offsets: NDArray[np.int64],
        embodiment: str,
        frames: NDArray[np.int64] | None = None,
    ) -> None:
        self.recordings = recordings
        self.cameras = cameras
        self.normalisers = normalisers
        self.offsets = offsets
        self.embodiment = embodiment
        self.frames = np.arange(len(recordings)) if frames is None else frames

    def __len__(self) -> int:
        """Samples."""
        return len(self.frames)

    def read(self, wanted: Sequence[tuple[int, int]]) -> list[RobotSample | CorruptFrame]:
        """Samples, in the order asked for; one with a picture that cannot be read is told in its place.

        Args:
            wanted: (which of the source's frames, number of the sample in the run).
        """
        requests: list[PictureRequest] = []
        for place, _ in wanted:
            episode, frame = self.recordings.episode_of(int(self.frames[place]))
            requests += [PictureRequest(feature, episode, frame) for feature in self.cameras.values()]
        pictures = iter(self.recordings.pictures(requests))
        return [self._sample(int(self.frames[place]), number, [next(pictures) for _ in self.cameras])
                for place, number in wanted]  # fmt: skip

    def _sample(
        self, frame: int, number: int, pictures: Sequence[NDArray[np.uint8] | CorruptFrame]
    ) -> RobotSample | CorruptFrame:
        seen: dict[str, NDArray[np.uint8]] = {}
        for camera, picture in zip(self.cameras, pictures, strict=True):
            if isinstance(picture, CorruptFrame):
                return picture
            seen[camera] = picture
        actions, inside = self.recordings.chunk(frame, self.offsets)
        return RobotSample(
            seen,
            self.normalisers[STATE].normalise(self.recordings.states[frame]),
            self.normalisers[ACTION].normalise(actions),
            inside,
            self.recordings.task(frame),
            self.embodiment,
            number,
        )
