"""Images at their own resolution, as a grid of patches of any size: Qwen2-VL, 2.5-VL, 3-VL, LLaVA-OneVision-1.5."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from loong_vlm.data.pixels.geometry import Size, native_size, native_video_size
from loong_vlm.data.pixels.patches import Normalisation, cut_into_patches
from loong_vlm.data.pixels.resampling import Filter, resize
from loong_vlm.data.pixels.video import FrameChoice
from loong_vlm.parts import Grid


@dataclass(frozen=True)
class NativeResolution:
    """Resizes so that sides are multiples of a merged patch and pixels lie within bounds.

    Attributes:
        patch: pixels of a patch's side.
        merge: patches of the side of a square that becomes one token.
        temporal: frames of a patch; a still image is repeated.
        min_pixels: of an image.
        max_pixels: of an image.
        video_min_pixels: of a frame, or of all frames together where `pixels_of_all_frames`.
        video_max_pixels: likewise.
        pixels_of_all_frames: whether a video's bounds are for all its frames together (Qwen3-VL).
        normalisation: what bytes become.
        frames: which frames of a video are taken.
        filter: for resizing.
    """

    patch: int
    merge: int
    temporal: int
    min_pixels: int
    max_pixels: int
    video_min_pixels: int
    video_max_pixels: int
    pixels_of_all_frames: bool
    normalisation: Normalisation
    frames: FrameChoice
    filter: Filter = "bicubic"

    @property
    def patch_dim(self) -> int:
        """Values of a patch."""
        return 3 * self.temporal * self.patch**2

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints mean equal grids and pixels of every image."""
        return repr(asdict(self))

    def image_size(self, height: int, width: int) -> Size:
        """To what size an image is resized."""
        return native_size(height, width, self.patch * self.merge, self.min_pixels, self.max_pixels)

    def video_size(self, frames: int, height: int, width: int) -> Size:
        """To what size the frames of a video are resized, of which so many are taken."""
        factor, least, most = self.patch * self.merge, self.video_min_pixels, self.video_max_pixels
        if self.pixels_of_all_frames:
            return native_video_size(frames, height, width, factor, self.temporal, least, most)
        return native_size(height, width, factor, least, most)

    def image_grid(self, height: int, width: int) -> Grid:
        """The grid of an image of this size."""
        rows, columns = self.image_size(height, width)
        return 1, rows // self.patch, columns // self.patch

    def video_grid(self, frames: int, height: int, width: int) -> Grid:
        """The grid of a video of which so many frames are taken."""
        rows, columns = self.video_size(frames, height, width)
        return -(-frames // self.temporal), rows // self.patch, columns // self.patch

    def image_patches(self, pixels: Tensor) -> Tensor:
        """`[height, width, 3]` uint8 to `[patches, 3, 1, patch, patch]` uint8."""
        resized = resize(pixels[None], self.image_size(*pixels.shape[:2]), self.filter)
        return cut_into_patches(resized, self.patch, self.merge)[0].unsqueeze(2)

    def video_patches(self, frames: Tensor) -> Tensor:
        """`[frames, height, width, 3]` uint8 to `[patches, 3, temporal, patch, patch]` uint8; the last may repeat."""
        resized = resize(frames, self.video_size(*frames.shape[:3]), self.filter)
        missing = -len(resized) % self.temporal
        if missing:
            resized = torch.cat([resized, resized[-1:].expand(missing, -1, -1, -1)])
        cut = cut_into_patches(resized, self.patch, self.merge)  # [frames, patches, 3, patch, patch]
        steps = cut.view(-1, self.temporal, *cut.shape[1:])
        # [steps, patches, 3, temporal, patch, patch]
        return steps.permute(0, 2, 3, 1, 4, 5).flatten(0, 1)
