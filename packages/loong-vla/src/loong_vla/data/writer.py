"""Recordings to a LeRobot dataset of version 3.0, which lerobot opens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from loong_core.errors import UserError
from loong_vla.data.recordings import ACTION, STATE
from loong_vla.data.statistics import Statistics, compute_statistics
from loong_vla.data.video_writer import CODEC, PIXELS, write_video

_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
_FIRST = {"chunk_index": 0, "file_index": 0}


@dataclass(frozen=True, eq=False)
class Episode:
    """One recording.

    Attributes:
        states, actions: `[frames, width]` float32.
        pictures: by camera, `[frames, height, width, 3]` uint8.
        task: what was asked for.
    """

    states: NDArray[np.float32]
    actions: NDArray[np.float32]
    pictures: Mapping[str, NDArray[np.uint8]]
    task: str


def write_dataset(root: Path, episodes: Sequence[Episode], fps: int, robot: str) -> None:
    """Write a dataset of one file of numbers and one video a camera; it appears when it is complete.

    Args:
        root: its folder, which must not be there.
        episodes: all of one robot.
        fps: frames a second.
        robot: what the robot is called.

    Raises:
        UserError: the folder is there.
    """
    if root.exists():
        raise UserError(f"{root} exists: remove it, or name another folder")
    partial = root.with_name(f".{root.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    lengths = np.array([len(each.states) for each in episodes], np.int64)
    starts = np.cumsum(lengths) - lengths
    tasks = list(dict.fromkeys(each.task for each in episodes))
    cameras = list(episodes[0].pictures)
    _write_numbers(partial, episodes, lengths, tasks, fps)
    for camera in cameras:
        frames = (frame for each in episodes for frame in each.pictures[camera])
        write_video(partial / _VIDEO.format(video_key=camera, **_FIRST), frames, fps)
    _write_episodes(partial, episodes, lengths, starts, cameras, fps)
    _write_tasks(partial, tasks)
    statistics: dict[str, Statistics] = {
        STATE: compute_statistics(np.concatenate([each.states for each in episodes])),
        ACTION: compute_statistics(np.concatenate([each.actions for each in episodes])),
    }
    statistics |= {camera: _picture_statistics(episodes, camera) for camera in cameras}
    written = {feature: {name: each.tolist() for name, each in entry.items()} for feature, entry in statistics.items()}
    _write_json(partial / "meta" / "stats.json", written)
    _write_json(partial / "meta" / "info.json", _info(episodes, lengths, tasks, cameras, fps, robot))
    root.parent.mkdir(parents=True, exist_ok=True)
    partial.rename(root)


def _write_numbers(
    root: Path, episodes: Sequence[Episode], lengths: NDArray[np.int64], tasks: list[str], fps: int
) -> None:
    frames = np.concatenate([np.arange(length) for length in lengths])
    columns: dict[str, arrow.Array] = {
        feature: _vectors(np.concatenate(values))
        for feature, values in (
            (STATE, [each.states for each in episodes]),
            (ACTION, [each.actions for each in episodes]),
        )
    }
    columns |= {
        "timestamp": arrow.array((frames / fps).astype(np.float32)),
        "frame_index": arrow.array(frames),
        "episode_index": arrow.array(np.repeat(np.arange(len(lengths)), lengths)),
        "index": arrow.array(np.arange(len(frames))),
        "task_index": arrow.array(np.repeat([tasks.index(each.task) for each in episodes], lengths)),
    }
    file = root / _DATA.format(**_FIRST)
    file.parent.mkdir(parents=True)
    parquet.write_table(arrow.table(columns), file)


def _write_episodes(
    root: Path,
    episodes: Sequence[Episode],
    lengths: NDArray[np.int64],
    starts: NDArray[np.int64],
    cameras: list[str],
    fps: int,
) -> None:
    count = len(lengths)
    nothing = arrow.array(np.zeros(count, np.int64))
    columns: dict[str, Any] = {
        "episode_index": arrow.array(np.arange(count)),
        "tasks": arrow.array([[each.task] for each in episodes]),
        "length": arrow.array(lengths),
        "data/chunk_index": nothing,
        "data/file_index": nothing,
        "dataset_from_index": arrow.array(starts),
        "dataset_to_index": arrow.array(starts + lengths),
        "meta/episodes/chunk_index": nothing,
        "meta/episodes/file_index": nothing,
    }
    for camera in cameras:
        columns |= {f"videos/{camera}/{key}": nothing for key in ("chunk_index", "file_index")}
        columns[f"videos/{camera}/from_timestamp"] = arrow.array(starts / fps)
        columns[f"videos/{camera}/to_timestamp"] = arrow.array((starts + lengths) / fps)
    file = root / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    file.parent.mkdir(parents=True)
    parquet.write_table(arrow.table(columns), file)


def _write_tasks(root: Path, tasks: list[str]) -> None:
    """The table of tasks, whose index is the text, in the form in which pandas keeps an index."""
    index = "__index_level_0__"

    def column(name: str | None, field: str, kind: str, dtype: str) -> dict[str, Any]:
        return {"name": name, "field_name": field, "pandas_type": kind, "numpy_type": dtype, "metadata": None}

    described = {
        "index_columns": [index],
        "column_indexes": [],
        "columns": [column("task_index", "task_index", "int64", "int64"), column(None, index, "unicode", "object")],
        "pandas_version": "2.0.0",
    }
    table = arrow.table({"task_index": arrow.array(range(len(tasks)), arrow.int64()), index: arrow.array(tasks)})
    parquet.write_table(
        table.replace_schema_metadata({"pandas": json.dumps(described)}), root / "meta" / "tasks.parquet"
    )


def _info(
    episodes: Sequence[Episode], lengths: NDArray[np.int64], tasks: list[str], cameras: list[str], fps: int, robot: str
) -> dict[str, Any]:
    first = episodes[0]

    def vector(width: int) -> dict[str, Any]:
        return {"dtype": "float32", "shape": [width], "names": None}

    def video(camera: str) -> dict[str, Any]:
        height, width, channels = first.pictures[camera].shape[1:]
        details = {
            "video.height": height,
            "video.width": width,
            "video.codec": CODEC.removeprefix("lib").replace("x264", "h264"),
            "video.pix_fmt": PIXELS,
            "video.is_depth_map": False,
            "video.fps": fps,
            "video.channels": channels,
            "has_audio": False,
        }
        names = ["height", "width", "channels"]
        return {"dtype": "video", "shape": [height, width, channels], "names": names, "info": details}

    scalars = dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64")
    features: dict[str, Any] = {
        STATE: vector(first.states.shape[1]),
        ACTION: vector(first.actions.shape[1]),
        **{camera: video(camera) for camera in cameras},
        "timestamp": {"dtype": "float32", "shape": [1], "names": None},
        **{name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in scalars.items()},
    }
    return {
        "codebase_version": "v3.0",
        "robot_type": robot,
        "total_episodes": len(lengths),
        "total_frames": int(lengths.sum()),
        "total_tasks": len(tasks),
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": fps,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": _DATA,
        "video_path": _VIDEO,
        "features": features,
    }


def _picture_statistics(episodes: Sequence[Episode], camera: str) -> Statistics:
    """By channel in [0, 1], from every tenth frame, in lerobot's shape `[3, 1, 1]`."""
    seen = np.concatenate([each.pictures[camera][::10] for each in episodes])
    channels = seen.reshape(-1, 3).astype(np.float32) / 255
    found = compute_statistics(channels)
    count = found.pop("count")
    return {name: each.reshape(3, 1, 1) for name, each in found.items()} | {"count": count}


def _vectors(values: NDArray[np.float32]) -> arrow.Array:
    flat = arrow.array(np.ascontiguousarray(values, np.float32).ravel())
    return arrow.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _write_json(file: Path, values: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
