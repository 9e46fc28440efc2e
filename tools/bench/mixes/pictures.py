"""Samples drawn from `pictures.json`: tokens of text and grids of patches, as a model would see them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loong_vlm.data.pixels.native_resolution import NativeResolution

BYTES_A_TOKEN = 4
"""Bytes of English text that a tokenizer of 150,000 words makes a token of, about."""


@dataclass(frozen=True)
class PictureSample:
    """Tokens of text, and of each image its size and its grid of patches."""

    text_tokens: int
    sizes: list[tuple[int, int]]
    grids: list[tuple[int, int, int]]

    def places(self, merge: int) -> int:
        """Tokens in all: text, features, and the marks around each image."""
        features = sum(frames * rows * columns // merge**2 for frames, rows, columns in self.grids)
        return self.text_tokens + features + 2 * len(self.grids)

    @property
    def patches(self) -> int:
        """Patches of all its images."""
        return sum(frames * rows * columns for frames, rows, columns in self.grids)


def draw(processor: NativeResolution, count: int, seed: int = 0, text_only: float = 0.25) -> list[PictureSample]:
    """Samples as a run would meet them, each with the length and the images of one that was measured.

    Args:
        processor: the model's, which decides of patches.
        count: how many.
        seed: of the draw.
        text_only: share of samples without images, of the lengths of `library_functions`.
    """
    folder = Path(__file__).parent
    measured = json.loads((folder / "pictures.json").read_text())
    shown = [*measured["pages"], *measured["photographs"]]
    bins = json.loads((folder / "library_functions.json").read_text())["shortest_of_bin_and_count"]
    lengths, weights = np.array(bins).T
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        if rng.random() < text_only:
            length, images = int(rng.choice(lengths, p=weights / weights.sum())), []
        else:
            length, images = shown[int(rng.integers(len(shown)))]
        sizes = [(int(height), int(width)) for height, width in images]
        grids = [processor.image_grid(*size) for size in sizes]
        found.append(PictureSample(max(length // BYTES_A_TOKEN, 1), sizes, grids))
    return found
