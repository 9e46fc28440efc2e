"""Resizing of uint8 images by torch's own filters, which are those of torchvision."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from loong_vlm.data.pixels.geometry import Size

Filter = Literal["bicubic", "bilinear"]

FILTERS: dict[int, Filter] = {2: "bilinear", 3: "bicubic"}
"""PIL's numbers of resampling filters, as Hugging Face's `resample` has them."""


def resize(frames: Tensor, size: Size, filter: Filter = "bicubic") -> Tensor:
    """Resize with antialiasing, as torchvision's `resize` does.

    Args:
        frames: `[frames, height, width, 3]` uint8.
        size: height and width to resize to.
        filter: which interpolation.

    Returns:
        `[frames, height, width, 3]` uint8, contiguous.
    """
    if tuple(frames.shape[1:3]) == tuple(size):
        return frames.contiguous()
    channels_first = frames.permute(0, 3, 1, 2)
    # torch resizes bytes by integer arithmetic where the processor has AVX2, save that bilinear needs floats without;
    # accelerators resize floats only.
    on_host = frames.device.type == "cpu"
    as_bytes = on_host and (filter == "bicubic" or "AVX2" in torch.backends.cpu.get_cpu_capability())
    if as_bytes:
        resized = F.interpolate(channels_first, size=list(size), mode=filter, align_corners=False, antialias=True)
    else:
        floats = channels_first.to(torch.float32)
        resized = F.interpolate(floats, size=list(size), mode=filter, align_corners=False, antialias=True)
        resized = resized.round_().clamp_(0, 255).to(torch.uint8)
    return resized.permute(0, 2, 3, 1).contiguous()
