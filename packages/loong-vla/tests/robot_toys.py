"""Tiny datasets: random states and actions, pictures in which every frame of every episode has its own grey."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from loong_vla.data.recordings import ACTION, STATE
from loong_vla.data.video_writer import write_video
from loong_vla.data.writer import Episode, write_dataset

TOP, WRIST = "observation.images.top", "observation.images.wrist"
LENGTHS = (7, 5, 9)
FPS = 10


def grey(episode: int, frame: int, camera: int) -> int:
    """The value of every pixel of a picture."""
    return 20 + 60 * episode + 6 * frame + 3 * camera


def toy_episodes(
    lengths: tuple[int, ...] = LENGTHS, cameras: tuple[str, ...] = (TOP, WRIST), action_dim: int = 3, size: int = 32
) -> list[Episode]:
    """Random episodes, the same each time."""
    random = np.random.default_rng(0)

    def pictures(episode: int, length: int, camera: int) -> NDArray[np.uint8]:
        values = np.array([grey(episode, frame, camera) for frame in range(length)], np.uint8)
        return np.broadcast_to(values[:, None, None, None], (length, size, size, 3)).copy()

    return [
        Episode(
            random.standard_normal((length, 4)).astype(np.float32),
            random.standard_normal((length, action_dim)).astype(np.float32),
            {camera: pictures(number, length, place) for place, camera in enumerate(cameras)},
            f"task {number % 2}",
        )
        for number, length in enumerate(lengths)
    ]


def toy_dataset(root: Path, **choices: object) -> Path:
    """A dataset of version 3.0."""
    write_dataset(root, toy_episodes(**choices), FPS, "toy")  # type: ignore[arg-type]
    return root


def toy_dataset_v21(root: Path) -> Path:
    """The same recordings as a dataset of version 2.1: a file an episode."""
    episodes = toy_episodes()
    tasks = ["task 0", "task 1"]
    first = 0
    for number, each in enumerate(episodes):
        length = len(each.states)
        columns = {
            STATE: arrow.array(each.states.tolist(), arrow.list_(arrow.float32())),
            ACTION: arrow.array(each.actions.tolist(), arrow.list_(arrow.float32())),
            "timestamp": arrow.array((np.arange(length) / FPS).astype(np.float32)),
            "frame_index": arrow.array(np.arange(length)),
            "episode_index": arrow.array(np.full(length, number)),
            "index": arrow.array(np.arange(first, first + length)),
            "task_index": arrow.array(np.full(length, tasks.index(each.task))),
        }
        first += length
        file = root / f"data/chunk-000/episode_{number:06d}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(arrow.table(columns), file)
        for camera, pictures in each.pictures.items():
            write_video(root / f"videos/chunk-000/{camera}/episode_{number:06d}.mp4", pictures, FPS)
    vector = {"dtype": "float32", "names": None}
    features: dict[str, Any] = {STATE: vector | {"shape": [4]}, ACTION: vector | {"shape": [3]}}
    features |= {camera: {"dtype": "video", "shape": [32, 32, 3], "names": None} for camera in (TOP, WRIST)}
    scalar: dict[str, Any] = {"dtype": "int64", "shape": [1], "names": None}
    features |= dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), scalar)
    features["timestamp"] = scalar | {"dtype": "float32"}
    info = {
        "codebase_version": "v2.1",
        "fps": FPS,
        "total_episodes": len(episodes),
        "total_frames": first,
        "total_tasks": len(tasks),
        "total_videos": 2 * len(episodes),
        "total_chunks": 1,
        "splits": {"train": f"0:{len(episodes)}"},
        "robot_type": "toy",
        "chunks_size": 1000,
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": features,
    }
    meta = root / "meta"
    meta.mkdir()
    (meta / "info.json").write_text(json.dumps(info))
    with (meta / "episodes_stats.jsonl").open("w") as file:
        for number, each in enumerate(episodes):
            stats: dict[str, Any] = {STATE: _plain(each.states), ACTION: _plain(each.actions)}
            for camera, pictures in each.pictures.items():
                channels = _plain(pictures.reshape(-1, 3) / 255)
                stats[camera] = {k: v if k == "count" else [[[c]] for c in v] for k, v in channels.items()}
            file.write(json.dumps({"episode_index": number, "stats": stats}) + "\n")
    rows = [{"episode_index": n, "tasks": [e.task], "length": len(e.states)} for n, e in enumerate(episodes)]
    (meta / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (meta / "tasks.jsonl").write_text(
        "".join(json.dumps({"task_index": n, "task": t}) + "\n" for n, t in enumerate(tasks))
    )
    return root


def _plain(values: NDArray[Any]) -> dict[str, list[float]]:
    found = {name: getattr(values, name)(0).tolist() for name in ("min", "max", "mean", "std")}
    return found | {"count": [len(values)]}


def damage(root: Path) -> Path:
    """Put noise into the first camera's video, and zeros into the middle of that."""
    video = next((root / "videos" / TOP).rglob("*.mp4"))
    random = np.random.default_rng(0)
    write_video(video, random.integers(0, 256, (sum(LENGTHS), 32, 32, 3), np.uint8), FPS)
    data = bytearray(video.read_bytes())
    middle = data.index(b"mdat") + len(data) // 2
    data[middle : middle + 1500] = bytes(1500)
    video.write_bytes(data)
    return video
