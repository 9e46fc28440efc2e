"""Images as square tiles of one size, with a thumbnail of the whole: InternVL's dynamic resolution."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from loong_vlm.data.pixels.geometry import check_size, tiling
from loong_vlm.data.pixels.patches import Normalisation, cut_into_patches
from loong_vlm.data.pixels.resampling import Filter, resize
from loong_vlm.data.pixels.video import FrameChoice
from loong_vlm.parts import Grid


@dataclass(frozen=True)
class Tiles:
    """Cuts an image into the tiling of its shape; a frame of a video is one tile.

    Attributes:
        side: pixels of a tile's side.
        patch: pixels of a patch's side.
        least: fewest tiles of an image.
        most: most tiles, the thumbnail not counted; 1 takes every image as one tile.
        normalisation: what bytes become.
        frames: which frames of a video are taken.
        filter: for resizing.
    """

    side: int
    patch: int
    least: int
    most: int
    normalisation: Normalisation
    frames: FrameChoice
    filter: Filter = "bicubic"
    temporal: int = 1

    @property
    def patch_dim(self) -> int:
        """Values of a patch."""
        return 3 * self.patch**2

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints mean equal grids and pixels of every image."""
        return repr(asdict(self))

    def tiles(self, height: int, width: int) -> int:
        """Tiles of an image of this size, its thumbnail among them."""
        check_size(height, width)
        columns, rows = tiling(height, width, self.side, self.least, self.most)
        return 1 if columns * rows == 1 else columns * rows + 1

    def image_grid(self, height: int, width: int) -> Grid:
        """Tiles, and a tile's rows and columns of patches."""
        return self.tiles(height, width), self.side // self.patch, self.side // self.patch

    def video_grid(self, frames: int, height: int, width: int) -> Grid:
        """Frames, each a tile, and a tile's rows and columns of patches."""
        check_size(height, width)
        return frames, self.side // self.patch, self.side // self.patch

    def image_patches(self, pixels: Tensor) -> Tensor:
        """`[height, width, 3]` uint8 to `[patches, 3, 1, patch, patch]` uint8, tile after tile."""
        columns, rows = tiling(*pixels.shape[:2], self.side, self.least, self.most)
        canvas = resize(pixels[None], (rows * self.side, columns * self.side), self.filter)[0]
        cut = canvas.view(rows, self.side, columns, self.side, 3).permute(0, 2, 1, 3, 4).flatten(0, 1)
        if rows * columns > 1:
            cut = torch.cat([cut, resize(pixels[None], (self.side, self.side), self.filter)])
        return self._patches(cut)

    def video_patches(self, frames: Tensor) -> Tensor:
        """`[frames, height, width, 3]` uint8 to `[patches, 3, 1, patch, patch]` uint8, frame after frame."""
        return self._patches(resize(frames, (self.side, self.side), self.filter))

    def _patches(self, tiles: Tensor) -> Tensor:
        return cut_into_patches(tiles.contiguous(), self.patch).flatten(0, 1).unsqueeze(2)
