"""Frames of a LeRobot dataset decoded per second and per core, ours against lerobot's loader, in one run.

    python -m tools.bench.robot_frames

A dataset of 2 cameras is written, then the same random samples (a picture of each camera, a chunk of actions) are read:
by lerobot's `LeRobotDataset` item by item, as its loader's workers do, with uint8 pictures and PyAV; and by ours a step
at a time. Both use one core. A record is appended to docs/benchmarks/robot_frames.jsonl.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
import time

import numpy as np

from tools.bench import record

CAMERAS = ("observation.images.first", "observation.images.second")
FPS, CHUNK = 30, 50


def write(root: pathlib.Path, episodes: int, frames: int, height: int, width: int) -> None:
    """A dataset of moving gradients with noise: pictures that take bits, as a camera's do."""
    from loong_vla.data.writer import Episode, write_dataset

    random = np.random.default_rng(0)
    ramp = np.linspace(0, 255, width)[None, :, None] + np.linspace(0, 64, height)[:, None, None]

    def film(shift: int) -> np.ndarray:
        grain = random.integers(0, 12, (frames, height, width, 3))
        moved = np.stack([np.roll(ramp, 3 * frame + shift, axis=1) for frame in range(frames)])
        return ((moved + grain) % 256).astype(np.uint8)

    recorded = [
        Episode(
            random.standard_normal((frames, 8)).astype(np.float32),
            random.standard_normal((frames, 7)).astype(np.float32),
            {camera: film(40 * place) for place, camera in enumerate(CAMERAS)},
            "task",
        )
        for _ in range(episodes)
    ]
    write_dataset(root, recorded, FPS, "bench")


def ours(root: pathlib.Path, samples: np.ndarray, batch: int) -> float:
    """Seconds to read the samples, `batch` at a time."""
    from loong_vla.data.recordings import ACTION, STATE, Recordings
    from loong_vla.data.samples import SampleSource
    from loong_vla.data.statistics import Normaliser

    recordings = Recordings(root)
    plain = {
        feature: Normaliser(np.zeros(width, np.float32), np.ones(width, np.float32))
        for feature, width in ((STATE, 8), (ACTION, 7))
    }
    source = SampleSource(recordings, {each: each for each in CAMERAS}, plain, np.arange(CHUNK), "robot")
    source.read([(0, 0)])
    start = time.perf_counter()
    for first in range(0, len(samples), batch):
        read = source.read([(int(frame), 0) for frame in samples[first : first + batch]])
        assert all(hasattr(each, "pictures") for each in read)
    return time.perf_counter() - start


def lerobots(root: pathlib.Path, samples: np.ndarray) -> float:
    """Seconds to read the samples."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    times = [step / FPS for step in range(CHUNK)]
    dataset = LeRobotDataset(
        "bench/bench", root=root, delta_timestamps={"action": times}, video_backend="pyav", return_uint8=True
    )
    dataset[0]
    start = time.perf_counter()
    for frame in samples:
        dataset[int(frame)]
    return time.perf_counter() - start


def main() -> int:
    """Read the same samples both ways, in turn, and print frames per second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--height", type=int, default=240)
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=pathlib.Path, default=record.FOLDER / "robot_frames.jsonl")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "dataset"
        write(root, arguments.episodes, arguments.frames, arguments.height, arguments.width)
        total = arguments.episodes * arguments.frames
        samples = np.random.default_rng(1).permutation(total)[: arguments.samples]
        seconds: dict[str, list[float]] = {"loong": [], "lerobot": []}
        for _ in range(arguments.rounds):
            seconds["loong"].append(ours(root, samples, arguments.batch))
            seconds["lerobot"].append(lerobots(root, samples))
    read = len(samples) * len(CAMERAS)
    rates = {name: read / min(each) for name, each in seconds.items()}
    ratio = rates["loong"] / rates["lerobot"]
    for name, rate in rates.items():
        print(f"{name:8} {rate:8.1f} frames/s on one core")
    print(f"loong is {ratio:.2f} x lerobot")
    record.append(
        arguments.record,
        {
            "size": [arguments.height, arguments.width],
            "cameras": len(CAMERAS),
            "samples": len(samples),
            "batch": arguments.batch,
            "frames_per_second": {name: round(rate, 1) for name, rate in rates.items()},
            "ratio": round(ratio, 2),
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
