"""Pictures on the device: from uint8 of any size to what a tower sees, changed at random while training.

Sizes and values are brought about as lerobot and openpi do: to fit without distortion, bars of black around, [-1, 1].
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def fit_pictures(pictures: Tensor, size: int) -> Tensor:
    """Pictures at a tower's size.

    Args:
        pictures: `[..., 3, height, width]`, uint8 or float in [0, 1].
        size: height and width wanted.

    Returns:
        `[..., 3, size, size]` float32 in [-1, 1].
    """
    flat = pictures.flatten(0, -4)
    flat = flat.float() / 255 if flat.dtype == torch.uint8 else flat.float()
    height, width = flat.shape[-2:]
    if (height, width) != (size, size):
        ratio = max(height / size, width / size)
        inner = (int(height / ratio), int(width / ratio))
        flat = F.interpolate(flat, size=inner, mode="bilinear", align_corners=False).clamp(0, 1)
        top, left = (size - inner[0]) // 2, (size - inner[1]) // 2
        flat = F.pad(flat, (left, size - inner[1] - left, top, size - inner[0] - top))
    return (flat * 2 - 1).unflatten(0, pictures.shape[:-3])


def augment(pictures: Tensor, changes: Tensor) -> Tensor:
    """Shift, turn, scale and recolour pictures, each by its own amounts.

    Args:
        pictures: `[batch, cameras, 3, height, width]` in [-1, 1].
        changes: `[batch, cameras, 7]`: scale (below 1 shows a part), shift down and right (of half the picture), angle
            in radians, and factors of brightness, contrast and saturation.

    Returns:
        as `pictures`; what was outside is black.
    """
    shape = pictures.shape
    flat, amounts = pictures.flatten(0, 1), changes.flatten(0, 1).to(pictures)
    scale, down, right, angle, brightness, contrast, saturation = amounts.unbind(-1)
    cos, sin = angle.cos() * scale, angle.sin() * scale
    matrix = torch.stack((torch.stack((cos, -sin, right), -1), torch.stack((sin, cos, down), -1)), 1)
    grid = F.affine_grid(matrix, list(flat.shape), align_corners=False)
    seen = F.grid_sample((flat + 1) / 2, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    seen = seen * brightness[:, None, None, None]
    mean = seen.mean((1, 2, 3), keepdim=True)
    seen = mean + (seen - mean) * contrast[:, None, None, None]
    grey = (seen * seen.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    seen = grey + (seen - grey) * saturation[:, None, None, None]
    return (seen.clamp(0, 1) * 2 - 1).reshape(shape)
