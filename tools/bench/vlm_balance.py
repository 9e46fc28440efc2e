"""Balancing over simulated data ranks: `python -m tools.bench.vlm_balance [--record]`.

Samples of `mixes/pictures.json` are packed into sequences of 32,768 tokens, and global batches of several sizes are
dealt out to eight ranks: in turn, and by the plan that a run would make. Costs are the operations of a model shaped as
Qwen3-VL-30B-A3B with 8 language layers and its whole tower. Told is the heaviest rank's cost over the mean: how many
times longer than ideal a step takes. The plans are exact; only the cost of a sample is a model's.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from loong_core.data.packing import SecondBudget, best_fit
from loong_core.data.shuffle import permutation
from loong_vlm.balance.cost import CostModel, features
from loong_vlm.balance.plan import Item, Plan, Room, make_plan
from loong_vlm.data.pixels.native_resolution import NativeResolution
from loong_vlm.data.pixels.patches import Normalisation
from loong_vlm.data.pixels.video import FrameChoice
from tools.bench.mixes.pictures import draw
from tools.bench.record import FOLDER, append

ROOM = Room(32_768, 65_536)
RANKS = 8

QWEN3_VL = NativeResolution(
    patch=16,
    merge=2,
    temporal=2,
    min_pixels=65_536,
    max_pixels=16_777_216,
    video_min_pixels=4_096,
    video_max_pixels=25_165_824,
    pixels_of_all_frames=True,
    normalisation=Normalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    frames=FrameChoice("ends"),
)
# 8 of 48 layers of 2048 wide, 32 heads of 128, 8 active experts of 768; a tower of 27 layers, 1152 wide, and mergers.
MODEL = CostModel.from_shapes(
    text_parameters=8 * (2048 * (32 + 4 + 4) * 128 + 32 * 128 * 2048 + 8 * 3 * 2048 * 768) + 151_936 * 2048,
    text_layers=8,
    text_attention_width=32 * 128,
    tower_parameters=27 * (4 * 1152**2 + 2 * 1152 * 4304) + 4 * (4608 * 4608 + 4608 * 2048) // 4,
    tower_layers=27,
    tower_width=1152,
)


def plans(sequences_a_batch: int, batches: int, seed: int = 0) -> tuple[list[Plan], float]:
    """Plans of so many global batches, and the seconds that one took."""
    drawn = draw(QWEN3_VL, 24 * sequences_a_batch * batches, seed)
    samples = [sample for sample in drawn if sample.places(2) <= ROOM.places]
    lengths = [sample.places(2) for sample in samples]
    packed = best_fit(lengths, ROOM.places, SecondBudget([sample.patches for sample in samples], ROOM.patches or 0))
    order = permutation(len(packed), seed)[: sequences_a_batch * batches]
    made, seconds = [], 0.0
    for first in range(0, len(order) // sequences_a_batch * sequences_a_batch, sequences_a_batch):
        chosen = [packed[number] for number in order[first : first + sequences_a_batch].tolist()]
        items, numbers = [], []
        for sequence in chosen:
            numbers.append(list(range(len(items), len(items) + len(sequence))))
            for number in sequence:
                sample = samples[number]
                places = sample.places(2)
                items.append(Item(places, sample.patches, features(places, sample.grids)))
        start = time.perf_counter()
        made.append(make_plan(items, numbers, RANKS, ROOM, MODEL))
        seconds += time.perf_counter() - start
    return made, seconds / len(made)


def main() -> None:
    """Print a line a size of global batch; record them with `--record`."""
    parser = argparse.ArgumentParser(description="Balancing over simulated data ranks")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--batches", type=int, default=20)
    arguments = parser.parse_args()
    for sequences in (8, 16, 32, 64):
        made, seconds = plans(sequences, arguments.batches)
        before, after = (np.array([getattr(plan, name) for plan in made]) for name in ("before", "after"))
        figures = {
            "ranks": RANKS,
            "sequences_a_batch": sequences,
            "batches": len(made),
            "max_over_mean_before": round(float(before.mean()), 4),
            "max_over_mean_after": round(float(after.mean()), 4),
            "worst_before": round(float(before.max()), 4),
            "worst_after": round(float(after.max()), 4),
            "plan_milliseconds": round(1e3 * seconds, 2),
        }
        print(figures)
        if arguments.record:
            append(FOLDER / "vlm_balance.jsonl", {"what": "balancing over data ranks, mixes/pictures.json", **figures})


if __name__ == "__main__":
    main()
