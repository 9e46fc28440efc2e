"""The module of Qwen2.5-VL's tower; its hyperparameters are in `loong_vlm.towers.qwen2_5_vl`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from loong_core.parallel.context import ParallelContext
from loong_vlm.features import TowerFeatures
from loong_vlm.towers.axial_rotary import axial_rotation
from loong_vlm.towers.block import VisionBlock, through_blocks
from loong_vlm.towers.patch_embedding import PatchEmbedding
from loong_vlm.towers.patch_order import Segments, frames_apart, rows_and_columns, window_order
from loong_vlm.towers.qwen2_5_vl import ROTARY_THETA, Qwen25TowerConfig


class Qwen25Tower(nn.Module):
    """Patches in the order of windows through all blocks, and back in their own order at the end."""

    def __init__(self, config: Qwen25TowerConfig, context: ParallelContext, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.axis = context.tensor
        self.patch_embedding = PatchEmbedding(config.patches.kernel, config.width, False, context, dtype)
        self.layers = nn.ModuleList(VisionBlock(config.block, context, dtype) for _ in range(config.depth))

    def forward(self, patches: Tensor, grid_thw: Tensor) -> TowerFeatures:
        """Encode packed images.

        Args:
            patches: `[patches, patch_dim]`.
            grid_thw: `[images, 3]` on the host.
        """
        config, device = self.config, patches.device
        unit = config.merge**2
        order, windows = window_order(grid_thw, config.merge, config.window_side)
        rows_columns = rows_and_columns(grid_thw, config.merge).unflatten(0, (-1, unit))[order].flatten(0, 1)
        order = order.to(device, non_blocking=True)
        frames, windows = frames_apart(grid_thw).to(device), windows.to(device)
        stream = self.patch_embedding(patches)
        stream = stream.unflatten(0, (-1, unit))[order].flatten(0, 1)  # [patches, width] in the order of windows
        rotation = axial_rotation(rows_columns.to(device), config.block.head_dim, ROTARY_THETA, stream.dtype)

        def segments(number: int) -> Segments:
            return frames if number in config.full_attention else windows

        encoded = through_blocks(self.layers, stream, self.axis, segments, rotation).last
        back = torch.empty_like(order)
        back[order] = torch.arange(order.shape[0], device=device)
        return TowerFeatures(encoded.unflatten(0, (-1, unit))[back].flatten(0, 1))
