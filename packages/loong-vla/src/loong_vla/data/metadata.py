"""What a LeRobot dataset's `meta/` folder says: features, episodes, tasks. Versions 3.0, 2.1 and 2.0.

Version 3 keeps many episodes in a file and says in `meta/episodes/` where each lies; version 2 has one file an episode,
named by a template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from loong_core.errors import UserError

VERSIONS = ("v3.0", "v2.1", "v2.0")


@dataclass(frozen=True)
class VideoSpan:
    """Where an episode's pictures of one camera are.

    Attributes:
        file: the video.
        start: seconds into it at which the episode begins.
    """

    file: Path
    start: float


@dataclass(frozen=True, eq=False)
class Metadata:
    """A dataset's description.

    Attributes:
        root: its folder.
        version: of its format.
        fps: frames a second.
        features: each feature's `dtype`, `shape` and `names`.
        lengths: `[episodes]` frames of each episode.
        data_files: file with the numbers of each episode; neighbours may share one.
        videos: by camera, where each episode's pictures are.
        tasks: what is asked for, by task number.
        statistics: `meta/stats.json`, empty where there is none.
    """

    root: Path
    version: str
    fps: float
    features: Mapping[str, Mapping[str, Any]]
    lengths: NDArray[np.int64]
    data_files: list[Path]
    videos: Mapping[str, list[VideoSpan]]
    tasks: Mapping[int, str]
    statistics: Mapping[str, Mapping[str, Any]]

    @property
    def cameras(self) -> list[str]:
        """Features that are pictures, in videos or in the tables."""
        return [name for name, each in self.features.items() if each["dtype"] in ("video", "image")]

    @property
    def starts(self) -> NDArray[np.int64]:
        """`[episodes]` number of each episode's first frame."""
        return np.cumsum(self.lengths) - self.lengths

    def width(self, feature: str) -> int:
        """How many numbers a feature has.

        Raises:
            UserError: there is no such feature.
        """
        if feature not in self.features:
            raise UserError(f"{self.root} has no feature {feature!r}; it has {', '.join(self.features)}")
        (width,) = self.features[feature]["shape"]
        return int(width)


def read_metadata(root: Path) -> Metadata:
    """Read a dataset's `meta/` folder.

    Raises:
        UserError: the folder is not a dataset of a version that is served, or its files contradict each other.
    """
    file = root / "meta" / "info.json"
    if not file.is_file():
        raise UserError(f"{root} is not a LeRobot dataset: it has no meta/info.json")
    try:
        info = json.loads(file.read_text(encoding="utf-8"))
        version = info["codebase_version"]
    except (ValueError, KeyError) as error:
        raise UserError(f"{file} cannot be read: {type(error).__name__}: {error}") from error
    if version not in VERSIONS:
        raise UserError(f"{file}: codebase_version is {version!r}; {', '.join(VERSIONS)} are read")
    try:
        found = _read_v3(root, info) if version == "v3.0" else _read_v2(root, info)
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"{root}/meta cannot be read: {type(error).__name__}: {error}") from error
    frames = int(found.lengths.sum())
    if frames != info["total_frames"]:
        raise UserError(
            f"{root}: its {len(found.lengths)} episodes have {frames} frames, but meta/info.json says total_frames "
            f"{info['total_frames']}"
        )
    return found


def _read_v3(root: Path, info: Mapping[str, Any]) -> Metadata:
    features = info["features"]
    cameras = [name for name, each in features.items() if each["dtype"] == "video"]
    placed = ("chunk_index", "file_index", "from_timestamp")
    columns = ["episode_index", "length", "data/chunk_index", "data/file_index"]
    columns += [f"videos/{camera}/{key}" for camera in cameras for key in placed]
    rows: list[dict[str, Any]] = []
    for file in sorted((root / "meta" / "episodes").glob("*/*.parquet")):
        rows += parquet.read_table(file, columns=columns).to_pylist()
    rows.sort(key=lambda row: row["episode_index"])
    if [row["episode_index"] for row in rows] != list(range(len(rows))):
        raise ValueError("meta/episodes does not hold each episode once")

    def data_file(row: Mapping[str, Any]) -> Path:
        return root / info["data_path"].format(chunk_index=row["data/chunk_index"], file_index=row["data/file_index"])

    def span(row: Mapping[str, Any], camera: str) -> VideoSpan:
        chunk, file, start = (row[f"videos/{camera}/{key}"] for key in placed)
        path = info["video_path"].format(video_key=camera, chunk_index=chunk, file_index=file)
        return VideoSpan(root / path, float(start))

    tasks = parquet.read_table(root / "meta" / "tasks.parquet").to_pylist()
    text = next((key for row in tasks for key in row if key != "task_index"), "task")
    return Metadata(
        root,
        info["codebase_version"],
        float(info["fps"]),
        features,
        np.array([row["length"] for row in rows], np.int64),
        [data_file(row) for row in rows],
        {camera: [span(row, camera) for row in rows] for camera in cameras},
        {row["task_index"]: row[text] for row in tasks},
        _json(root / "meta" / "stats.json"),
    )


def _read_v2(root: Path, info: Mapping[str, Any]) -> Metadata:
    features, chunk = info["features"], info.get("chunks_size", 1000)
    cameras = [name for name, each in features.items() if each["dtype"] == "video"]
    rows = sorted(_json_lines(root / "meta" / "episodes.jsonl"), key=lambda row: row["episode_index"])

    def path(template: str, number: int, camera: str = "") -> Path:
        return root / template.format(episode_chunk=number // chunk, episode_index=number, video_key=camera)

    numbers = [row["episode_index"] for row in rows]
    return Metadata(
        root,
        info["codebase_version"],
        float(info["fps"]),
        features,
        np.array([row["length"] for row in rows], np.int64),
        [path(info["data_path"], number) for number in numbers],
        {camera: [VideoSpan(path(info["video_path"], each, camera), 0.0) for each in numbers] for camera in cameras},
        {row["task_index"]: row["task"] for row in _json_lines(root / "meta" / "tasks.jsonl")},
        _json(root / "meta" / "stats.json"),
    )


def _json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _json_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
