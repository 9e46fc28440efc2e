"""How pictures are changed at random while training; each sample's changes are decided by its number."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from loong_core.config import Section
from loong_core.config.sections import Fraction, NonNegative


class AugmentationSection(Section):
    """Random changes of pictures; each amount is drawn evenly, anew for every sample and camera.

    Attributes:
        crop: up to which share of height and width is cut away.
        shift: up to which share of half the picture it is moved.
        rotate: up to how many degrees it is turned, either way.
        brightness: by up to which share brightness is changed, either way.
        contrast: the same of contrast.
        saturation: the same of colourfulness.
    """

    crop: Fraction = 0.05
    shift: Fraction = 0.0
    rotate: NonNegative = 5.0
    brightness: Fraction = 0.3
    contrast: Fraction = 0.4
    saturation: Fraction = 0.5


def draw_changes(section: AugmentationSection, generator: np.random.Generator, cameras: int) -> NDArray[np.float32]:
    """`[cameras, 7]`, as `loong_vla.data.images.augment` takes them."""
    drawn = generator.uniform(-1, 1, (cameras, 7))
    scale = 1 - section.crop * (drawn[:, 0] + 1) / 2
    room = (1 - scale)[:, None]
    moved = drawn[:, 1:3] * (room + section.shift)
    turned = drawn[:, 3] * math.radians(section.rotate)
    factors = 1 + drawn[:, 4:] * np.array([section.brightness, section.contrast, section.saturation])
    return np.column_stack((scale, moved, turned, factors)).astype(np.float32)
