"""The module of Qwen3-VL's tower; its hyperparameters are in `loong_vlm.towers.qwen3_vl`."""

from __future__ import annotations

from math import isqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loong_core.parallel.context import ParallelContext
from loong_vlm.features import TowerFeatures
from loong_vlm.towers.axial_rotary import axial_rotation
from loong_vlm.towers.block import VisionBlock, through_blocks
from loong_vlm.towers.patch_embedding import PatchEmbedding
from loong_vlm.towers.patch_order import frames_apart, rows_and_columns
from loong_vlm.towers.position_table import bilinear_taps
from loong_vlm.towers.qwen3_vl import ROTARY_THETA, Qwen3TowerConfig


class Qwen3Tower(nn.Module):
    """Patches with learnt and rotary positions through all blocks, each frame by itself."""

    def __init__(self, config: Qwen3TowerConfig, context: ParallelContext, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.axis = context.tensor
        self.patch_embedding = PatchEmbedding(config.patches.kernel, config.width, True, context, dtype)
        self.positions = nn.Parameter(torch.empty(config.positions, config.width, device=context.device, dtype=dtype))
        self.positions.sequence_parallel = context.sequence_parallel  # type: ignore[attr-defined]
        self.layers = nn.ModuleList(VisionBlock(config.block, context, dtype) for _ in range(config.depth))

    def forward(self, patches: Tensor, grid_thw: Tensor) -> TowerFeatures:
        """Encode packed images.

        Args:
            patches: `[patches, patch_dim]`.
            grid_thw: `[images, 3]` on the host.
        """
        config, device = self.config, patches.device
        rows_columns = rows_and_columns(grid_thw, config.merge)
        taps, weights = bilinear_taps(rows_columns, grid_thw, isqrt(config.positions))
        taps, weights = taps.to(device, non_blocking=True), weights.to(device, non_blocking=True)
        stream = self.patch_embedding(patches)
        learnt = (F.embedding(taps, self.positions) * weights[:, :, None]).sum(1)
        stream = stream + learnt.to(stream.dtype)
        rotation = axial_rotation(rows_columns.to(device), config.block.head_dim, ROTARY_THETA, stream.dtype)
        frames = frames_apart(grid_thw).to(device)
        return through_blocks(self.layers, stream, self.axis, lambda _: frames, rotation, config.levels)
