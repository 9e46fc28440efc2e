"""What every way of turning images into patches can do."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from loong_vlm.data.pixels.patches import Normalisation
from loong_vlm.data.pixels.video import FrameChoice
from loong_vlm.parts import Grid


class PixelProcessor(Protocol):
    """Turns decoded images and videos into the patches that a tower reads."""

    @property
    def patch_dim(self) -> int:
        """Values of a patch."""
        ...

    @property
    def temporal(self) -> int:
        """Frames of a patch."""
        ...

    @property
    def normalisation(self) -> Normalisation:
        """What bytes become."""
        ...

    @property
    def frames(self) -> FrameChoice:
        """Which frames of a video are taken."""
        ...

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints mean equal grids and pixels of every image."""
        ...

    def image_grid(self, height: int, width: int) -> Grid:
        """The grid of an image of this size.

        Raises:
            UserError: an image that no model reads.
        """
        ...

    def video_grid(self, frames: int, height: int, width: int) -> Grid:
        """The grid of a video of which so many frames are taken.

        Raises:
            UserError: frames that no model reads.
        """
        ...

    def image_patches(self, pixels: Tensor) -> Tensor:
        """`[height, width, 3]` uint8 to `[patches, 3, 1 or temporal, patch, patch]` uint8."""
        ...

    def video_patches(self, frames: Tensor) -> Tensor:
        """`[frames, height, width, 3]` uint8 to `[patches, 3, temporal, patch, patch]` uint8."""
        ...
