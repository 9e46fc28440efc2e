"""The module of Qwen3-VL's tower; its hyperparameters are in `loong_vlm.towers.qwen3_vl`."""

from __future__ import annotations

from math import isqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loong_core.parallel.context import ParallelContext
from loong_vlm.features import TowerFeatures
from loong_vlm.towers.axial_rotary import axial_rotation
from loong_vlm.towers.block import VisionBlock
from loong_vlm.towers.patch_embedding import PatchEmbedding
from loong_vlm.towers.patch_order import frames_apart, rows_and_columns
from loong_vlm.towers.position_table import bilinear_taps
from loong_vlm.towers.qwen3_vl import ROTARY_THETA, Qwen3TowerConfig


class Qwen3Tower(nn.Module):
    """Patches with learnt and rotary positions through all blocks, each frame by itself."""

    def __init__(self, config: Qwen3TowerConfig, context: ParallelContext, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.patch_embedding = PatchEmbedding(config.patches.kernel, config.width, True, context, dtype)
        self.positions = nn.Parameter(torch.empty(config.positions, config.width, device=context.device, dtype=dtype))
        self.layers = nn.ModuleList(VisionBlock(config.block, context, dtype) for _ in range(config.depth))

    def forward(self, patches: Tensor, grid_thw: Tensor) -> TowerFeatures:
        """Encode packed images.

        Args:
            patches: `[patches, patch_dim]`.
            grid_thw: `[images, 3]` on the host.
        """
        config, device, count = self.config, patches.device, patches.shape[0]
        rows_columns = rows_and_columns(grid_thw, config.merge)
        taps, weights = bilinear_taps(rows_columns, grid_thw, isqrt(config.positions))
        taps, weights = taps.to(device, non_blocking=True), weights.to(device, non_blocking=True)
        stream = self.patch_embedding(patches)
        learnt = (F.embedding(taps, self.positions) * weights[:, :, None]).sum(1)
        stream = stream + learnt.to(stream.dtype)
        rotation = axial_rotation(rows_columns.to(device), config.block.head_dim, ROTARY_THETA, stream.dtype)
        frames = frames_apart(grid_thw).to(device)
        added, levels = None, {}
        for number, block in enumerate(self.layers):
            stream, added = block(stream, added, count, frames, rotation)
            if number in config.levels:
                levels[number] = stream + added
        last = stream if added is None else stream + added
        return TowerFeatures(last, tuple(levels[number] for number in config.levels))
