"""To what size a model wants an image resized: pure arithmetic, the same as in Hugging Face's processors."""

from __future__ import annotations

import math
from functools import lru_cache

from loong_core.errors import UserError

Size = tuple[int, int]
"""Height and width in pixels."""

MOST_ELONGATED = 200.0
"""The largest ratio of sides that native resolution takes; beyond it an image is a line, and most often an error."""


def check_size(height: int, width: int, *, most_elongated: float = MOST_ELONGATED) -> None:
    """Refuse what no model reads.

    Raises:
        UserError: no pixels at all, or one side far longer than the other.
    """
    if height < 1 or width < 1:
        raise UserError(f"it is {width} x {height} pixels, so there is nothing to see; leave it out")
    ratio = max(height, width) / min(height, width)
    if ratio > most_elongated:
        raise UserError(
            f"it is {width} x {height} pixels, one side {ratio:.0f} times the other, at most {most_elongated:.0f} is "
            "taken; crop it or leave it out"
        )


def native_size(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> Size:
    """The size nearest to the image's own with sides that are multiples of `factor` (Qwen2-VL's `smart_resize`).

    Args:
        height: of the image.
        width: of the image.
        factor: pixels of a side of a merged patch.
        min_pixels: smaller images are enlarged to at least so many.
        max_pixels: larger ones are reduced to at most so many.

    Raises:
        UserError: see `check_size`.
    """
    check_size(height, width)
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if rows * columns > max_pixels:
        shrink = math.sqrt((height * width) / max_pixels)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
    elif rows * columns < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        rows = math.ceil(height * grow / factor) * factor
        columns = math.ceil(width * grow / factor) * factor
    return rows, columns


def native_video_size(
    frames: int, height: int, width: int, factor: int, temporal: int, min_pixels: int, max_pixels: int
) -> Size:
    """As `native_size`, with a budget of pixels for all frames together (Qwen3-VL's video `smart_resize`).

    Raises:
        UserError: see `check_size`.
    """
    check_size(height, width)
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    whole = round(frames / temporal) * temporal
    if whole * rows * columns > max_pixels:
        shrink = math.sqrt((frames * height * width) / max_pixels)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
    elif whole * rows * columns < min_pixels:
        grow = math.sqrt(min_pixels / (frames * height * width))
        rows = math.ceil(height * grow / factor) * factor
        columns = math.ceil(width * grow / factor) * factor
    return rows, columns


@lru_cache(maxsize=8)
def _arrangements(least: int, most: int) -> list[tuple[int, int]]:
    """Columns and rows of all tilings of `least` to `most` tiles, those of few tiles first."""
    sides = range(1, most + 1)
    every = [(columns, rows) for columns in sides for rows in sides if least <= columns * rows <= most]
    return sorted(every, key=lambda tiling: tiling[0] * tiling[1])


@lru_cache(maxsize=4096)
def tiling(height: int, width: int, side: int, least: int, most: int) -> tuple[int, int]:
    """Columns and rows of the tiles that an image is cut into (InternVL's dynamic resolution).

    The tiling whose shape is nearest to the image's; among equals, one of more tiles while it has at most twice the
    image's pixels.

    Args:
        height: of the image.
        width: of the image.
        side: pixels of a tile's side.
        least: fewest tiles.
        most: most tiles.
    """
    best, smallest = (1, 1), math.inf
    for columns, rows in _arrangements(least, most):
        difference = abs(width / height - columns / rows)
        larger_serves = difference == smallest and width * height > 0.5 * side * side * columns * rows
        if difference < smallest or larger_serves:
            best, smallest = (columns, rows), difference
    return best
