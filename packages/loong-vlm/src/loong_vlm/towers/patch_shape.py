"""What a patch is made of, and in which squares patches come; as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from loong_llm.families.config_reader import ConfigReader
from loong_vlm.parts import Grid


@dataclass(frozen=True)
class PatchShape:
    """The patches of a tower that takes images of any size.

    Attributes:
        size: rows and columns of pixels.
        frames: frames of a video (an image is repeated), 0 where a patch has no such dimension.
        channels: colours.
        merge: patches come in squares of `merge x merge`.
    """

    size: int
    frames: int
    channels: int
    merge: int

    @property
    def kernel(self) -> tuple[int, ...]:
        """Channels, frames (if there is such a dimension), rows and columns: the order of a patch's numbers."""
        return (self.channels, *([self.frames] if self.frames else []), self.size, self.size)

    @property
    def dim(self) -> int:
        """Numbers that describe a patch."""
        return prod(self.kernel)

    def faults(self, grid: Grid) -> str | None:
        """Why a grid is not made of squares, or None."""
        frames, height, width = grid
        if frames < 1 or height < 1 or width < 1:
            return f"its grid of {frames} x {height} x {width} patches is empty"
        if height % self.merge or width % self.merge:
            return f"its {height} x {width} patches are not whole squares of {self.merge} x {self.merge}"
        return None


def read_patch_shape(read: ConfigReader, *, patch_size: int, frames: int | None = None) -> PatchShape:
    """A patch as a Qwen-like `vision_config` describes it, in today's keys or those of the first Qwen2.5-VL files.

    Args:
        read: the config.
        patch_size: where it is not told.
        frames: how many frames; by default what the config says.
    """
    return PatchShape(
        size=read.integer("patch_size" if "patch_size" in read.hf else "spatial_patch_size", patch_size),
        frames=read.integer("temporal_patch_size", 2) if frames is None else frames,
        channels=read.integer("in_channels" if "in_channels" in read.hf else "in_chans", 3),
        merge=read.integer("spatial_merge_size", 2),
    )


def read_heads(read: ConfigReader, width: int) -> int:
    """`num_heads`, of heads that rotate along two axes."""
    heads = read.integer("num_heads")
    if width % (4 * heads):
        read.fault("num_heads", f"{heads} heads of {width / heads:g} dimensions: four must divide them")
    return heads
