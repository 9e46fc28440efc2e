"""Images decoded and processed a second on one core: `python -m tools.bench.vlm_images [--record]`.

Images are the two photographs of scikit-learn at the sizes of `mixes/pictures.json` (pages and photographs), and at the
size of a photograph from a telephone, as JPEG. Timed are, in one process on one thread and in turn, ours (bytes to the
floats that a tower reads) and transformers' processor on torchvision, decoded as it loads files; the floats are
compared bit by bit first. Needs torchvision, as loong-vlm's tests do.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image

from loong_vlm.data.pixels.image_files import decode_image
from tools.bench.record import FOLDER, append
from tools.bench.vlm_balance import QWEN3_VL


def jpegs(sizes: list[tuple[int, int]]) -> list[bytes]:
    """A photograph at each size."""
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    found = []
    for number, (height, width) in enumerate(sizes):
        file = io.BytesIO()
        photographs[number % len(photographs)].resize((width, height)).save(file, "jpeg", quality=90)
        found.append(file.getvalue())
    return found


def ours(data: bytes) -> torch.Tensor:
    """`[patches, patch_dim]` float32."""
    return QWEN3_VL.normalisation(QWEN3_VL.image_patches(decode_image(data)), QWEN3_VL.temporal)


def peer() -> Callable[[bytes], torch.Tensor]:
    """Transformers' processor, from bytes."""
    from transformers.image_utils import load_image
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    size = {"shortest_edge": QWEN3_VL.min_pixels, "longest_edge": QWEN3_VL.max_pixels}
    half = [0.5, 0.5, 0.5]
    processor: Any = Qwen2VLImageProcessor(patch_size=16, size=size, image_mean=half, image_std=half)

    def process(data: bytes) -> torch.Tensor:
        image = load_image(Image.open(io.BytesIO(data)))
        return processor(images=[image], return_tensors="pt")["pixel_values"]

    return process


def seconds_each(act: Callable[[bytes], object], files: list[bytes], rounds: int) -> float:
    """The least mean time of an image, over rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        for data in files:
            act(data)
        best = min(best, (time.process_time() - start) / len(files))
    return best


def main() -> None:
    """Print a line a set of sizes; record them with `--record`."""
    parser = argparse.ArgumentParser(description="Images decoded and processed a second on one core")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measured = json.loads((FOLDER.parents[1] / "tools/bench/mixes/pictures.json").read_text())
    sets = {
        name: [(size[0], size[1]) for _, images in measured[name] for size in images]
        for name in ("pages", "photographs")
    }
    sets["telephone"] = [(3024, 4032)] * 2
    theirs = peer()
    for name, sizes in sets.items():
        files = jpegs(sizes)
        if not all(torch.equal(ours(data), theirs(data)) for data in files):
            raise AssertionError(f"{name}: pixels differ")
        own, other = seconds_each(ours, files, arguments.rounds), seconds_each(theirs, files, arguments.rounds)
        patches = sum(len(ours(data)) for data in files)
        figures = {
            "images": name,
            "mean_megapixels": round(sum(height * width for height, width in sizes) / len(sizes) / 1e6, 3),
            "images_a_second_a_core": round(1 / own, 1),
            "transformers_images_a_second_a_core": round(1 / other, 1),
            "ratio": round(other / own, 2),
            "patches_a_second_a_core": round(patches / len(files) / own),
        }
        print(figures)
        if arguments.record:
            append(FOLDER / "vlm_images.jsonl", {"what": "JPEG bytes to Qwen3-VL's patches, one core", **figures})


if __name__ == "__main__":
    main()
