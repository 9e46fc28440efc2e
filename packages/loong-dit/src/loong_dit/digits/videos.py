"""Handwritten digits (those that ship in scikit-learn, 8 x 8 pixels) moving over a small canvas, with captions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from loong_core.data.shuffle import permutation
from loong_dit.codecs.codec import Pixels, Words
from loong_dit.data.cache import CachedSample, CacheWriter
from loong_dit.data.manifest import Manifest

CANVAS, FRAMES, SIDE = 12, 3, 8
WORDS_WIDTH = 32
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_AHEAD, _BACK = (0, 2, 4), (4, 2, 0)
TRACKS = {
    "right": tuple((2, place) for place in _AHEAD),
    "left": tuple((2, place) for place in _BACK),
    "down": tuple((place, 2) for place in _AHEAD),
    "up": tuple((place, 2) for place in _BACK),
}
"""Row and column of a digit's corner in each frame, by the direction in which it moves."""
_TRAINED_ON = 1500


@dataclass(frozen=True)
class Digits:
    """Pictures `[count, 8, 8]` in -1 to 1, and what they are, `[count]`."""

    pictures: Tensor
    labels: Tensor


def real_digits() -> tuple[Digits, Digits]:
    """1500 digits to train on and 297 held out, always the same."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pictures, labels = torch.tensor(bunch.images / 8 - 1).float(), torch.tensor(bunch.target)  # type: ignore[union-attr]
    order = torch.from_numpy(permutation(len(labels), 0))
    first, rest = order[:_TRAINED_ON], order[_TRAINED_ON:]
    return Digits(pictures[first], labels[first]), Digits(pictures[rest], labels[rest])


def caption_of(digit: int, direction: str) -> str:
    """`three moving left`."""
    return f"{NAMES[digit]} moving {direction}"


def moving(picture: Tensor, direction: str) -> Tensor:
    """A video `[1, frames, rows, columns]` of a digit on its way, the canvas at -1."""
    video = torch.full((1, FRAMES, CANVAS, CANVAS), -1.0)
    for frame, (row, column) in enumerate(TRACKS[direction]):
        video[0, frame, row : row + SIDE, column : column + SIDE] = picture
    return video


def still(video: Tensor, direction: str) -> Tensor:
    """`[8, 8]`: what moves, on average over the frames, where a digit moving so would be."""
    cut = [
        video[0, frame, row : row + SIDE, column : column + SIDE]
        for frame, (row, column) in enumerate(TRACKS[direction])
    ]
    return torch.stack(cut).mean(0)


def write_digit_cache(folder: Path) -> None:
    """A latent cache of the training digits in pixel space, each moving in two of the four directions."""
    digits, _ = real_digits()
    codec, words = Pixels(1), Words(WORDS_WIDTH)
    directions = list(TRACKS)
    manifest = Manifest(
        kind="values",
        channels=1,
        text_dim=WORDS_WIDTH,
        samples=0,
        vae={"name": codec.name, "hash": codec.hash},
        text_encoder={"name": words.name, "hash": words.hash},
        settings={"digits": len(digits.labels)},
    )
    writer = CacheWriter(folder, manifest, words.encode([""])[0])
    embedded = {
        caption: words.encode([caption])[0]
        for caption in (caption_of(digit, direction) for digit in range(10) for direction in directions)
    }
    for number, (picture, label) in enumerate(zip(digits.pictures, digits.labels.tolist())):
        for turn in (0, 1):
            direction = directions[(number + 2 * turn + number // 4) % 4]
            caption = caption_of(label, direction)
            sample = CachedSample(codec.encode(moving(picture, direction))[0], embedded[caption])
            writer.add(sample, source=f"digit {number}", caption=caption)
    writer.publish()
