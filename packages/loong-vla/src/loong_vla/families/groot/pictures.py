"""Pictures as GR00T sees them: squeezed to a square, the middle cut out, and brought to the tower's size.

The steps, and that each ends in bytes, are those of lerobot's processor. Imports torch only where pictures are touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PictureFrame:
    """How a picture is brought to the size that the tower sees.

    Attributes:
        height, width: of what it sees, in pixels.
        edge: side of the square that a picture is squeezed to first.
        share: of the square's height and width, how much of its middle is kept.
    """

    height: int
    width: int
    edge: int
    share: float = 1.0

    @staticmethod
    def read(values: Mapping[str, Any]) -> PictureFrame:
        """From `image_target_size`, `image_crop_size`, `shortest_image_edge` and `crop_fraction` of a model."""
        height, width = values["image_target_size"]
        crop, fraction = values.get("image_crop_size"), values.get("crop_fraction")
        share = fraction or (crop[0] / height if crop else 1.0)
        return PictureFrame(height, width, values.get("shortest_image_edge") or height, min(float(share), 1.0))

    def apply(self, pictures: Tensor) -> Tensor:
        """`[pictures, any height, any width, 3]` uint8 to `[pictures, height, width, 3]` uint8."""
        from loong_vlm.data.pixels.resampling import resize

        squeezed = resize(pictures, (self.edge, self.edge))
        kept = max(1, round(self.edge * self.share))
        first = (self.edge - kept) // 2
        middle = squeezed[:, first : first + kept, first : first + kept]
        return resize(middle, (self.height, self.width))
