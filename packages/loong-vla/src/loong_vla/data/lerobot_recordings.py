"""A dataset read by lerobot's own library, item by item, in place of our reading: the same samples, more slowly.

It is what to turn to where a recording is read otherwise than lerobot reads it, or its videos need lerobot's decoders.
Needs the extra `lerobot`. lerobot 0.6.1 reads version 3.0 of the format; a dataset of version 2.1 is brought to that by
lerobot's own converter first, in a temporary folder: the dataset itself is not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loong_core.errors import UserError
from loong_vla.data.recordings import NUMBERS, PictureRequest, Recordings
from loong_vla.data.video import CorruptFrame

READS, CONVERTS = "v3.0", "v2.1"


class LerobotRecordings(Recordings):
    """A LeRobot dataset whose numbers and pictures come from `lerobot.datasets.LeRobotDataset`.

    Args:
        root: its folder.
        cache_bytes: decoded pictures that are kept in memory.

    Raises:
        UserError: lerobot is not installed, or does not read the dataset; or as `Recordings`.
    """

    def __init__(self, root: Path | str, *, cache_bytes: int = 0) -> None:
        self._dataset: Any = None
        self._converted: TemporaryDirectory[str] | None = None
        super().__init__(root, cache_bytes=cache_bytes)

    def _numbers(self) -> dict[str, NDArray]:
        self._dataset = self._opened()
        table = self._dataset.hf_dataset.with_format("numpy")
        return {name: np.asarray(table[name][:]) for name in NUMBERS}

    def _opened(self) -> Any:
        if self.metadata.version not in (READS, CONVERTS):
            raise UserError(
                f"{self.root} has version {self.metadata.version} of the format, and lerobot's library takes {READS} "
                f"and {CONVERTS}: set data.reader=own"
            )
        try:
            from lerobot.datasets.lerobot_dataset import LeRobotDataset
        except ImportError as error:
            raise UserError(
                f"data.reader=lerobot needs lerobot's library ({error}): pip install 'loong-vla[lerobot]', or set "
                "data.reader=own"
            ) from error
        try:
            root = self._convert() if self.metadata.version == CONVERTS else self.root
            return LeRobotDataset(f"local/{self.root.name}", root=root, return_uint8=True)
        except Exception as error:  # whatever its library raises of a dataset that it does not take
            raise UserError(
                f"lerobot cannot open {self.root}: {type(error).__name__}: {error}; set data.reader=own"
            ) from error

    def _convert(self) -> Path:
        """The dataset in version 3.0, in a folder that goes with this object."""
        from lerobot.scripts import convert_dataset_v21_to_v30 as converter

        self._converted = TemporaryDirectory(prefix="lerobot-v30-")
        target = Path(self._converted.name) / self.root.name
        sizes = converter.DEFAULT_DATA_FILE_SIZE_IN_MB, converter.DEFAULT_VIDEO_FILE_SIZE_IN_MB
        converter.convert_info(self.root, target, *sizes)
        converter.convert_tasks(self.root, target)
        episodes = converter.convert_data(self.root, target, sizes[0])
        videos = converter.convert_videos(self.root, target, sizes[1])
        converter.convert_episodes_metadata(self.root, target, episodes, videos)
        return target

    def close(self) -> None:
        """Close all videos, and remove what was converted."""
        super().close()
        if self._converted is not None:
            self._converted.cleanup()

    def _decoded(self, requests: Sequence[PictureRequest]) -> list[NDArray[np.uint8] | CorruptFrame]:
        """One item a frame, whatever cameras are asked for of it."""
        starts = self.metadata.starts
        frames = [int(starts[request.episode]) + request.frame for request in requests]
        items = {frame: self._item(frame) for frame in sorted(set(frames))}
        found: list[NDArray[np.uint8] | CorruptFrame] = []
        for request, frame in zip(requests, frames, strict=True):
            item = items[frame]
            found.append(item if isinstance(item, CorruptFrame) else _picture(item[request.camera]))
        return found

    def _item(self, frame: int) -> dict[str, Any] | CorruptFrame:
        try:
            return self._dataset[frame]
        except Exception as error:  # decoders raise errors of their own
            return CorruptFrame(f"{self.root}: lerobot cannot read frame {frame}: {type(error).__name__}: {error}")


def _picture(values: Any) -> NDArray[np.uint8]:
    """`[height, width, 3]` uint8 of lerobot's `[3, height, width]`."""
    array = values.permute(1, 2, 0).numpy()
    return array if array.dtype == np.uint8 else (array * 255).round().astype(np.uint8)
