"""The module of InternViT; its hyperparameters are in `loong_vlm.towers.intern_vit`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from loong_core.parallel.context import ParallelContext
from loong_vlm.features import TowerFeatures
from loong_vlm.towers.block import VisionBlock, through_blocks
from loong_vlm.towers.intern_vit import InternViTConfig
from loong_vlm.towers.patch_embedding import PatchEmbedding
from loong_vlm.towers.patch_order import Segments


class InternViT(nn.Module):
    """Tiles, each with a class token in front, through all blocks; the class token's features are not handed out."""

    def __init__(self, config: InternViTConfig, context: ParallelContext, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.axis = context.tensor
        self.class_token = nn.Parameter(torch.empty(1, 1, config.width, device=context.device, dtype=dtype))
        self.positions = nn.Parameter(torch.empty(1, config.places, config.width, device=context.device, dtype=dtype))
        for parameter in (self.class_token, self.positions):
            parameter.sequence_parallel = context.sequence_parallel  # type: ignore[attr-defined]
        self.patch_embedding = PatchEmbedding(config.patches.kernel, config.width, True, context, dtype)
        self.layers = nn.ModuleList(VisionBlock(config.block, context, dtype) for _ in range(config.depth))

    def forward(self, patches: Tensor, grid_thw: Tensor) -> TowerFeatures:
        """Encode packed tiles.

        Args:
            patches: `[patches, patch_dim]`, of tiles of the config's size.
            grid_thw: `[images, 3]` on the host; a frame is a tile.
        """
        config = self.config
        tiles = int(grid_thw[:, 0].sum())
        embedded = self.patch_embedding(patches).unflatten(0, (tiles, config.places - 1))
        whole = torch.cat([self.class_token.expand(tiles, -1, -1), embedded], dim=1) + self.positions
        segments = Segments.of_lengths([config.places] * tiles).to(patches.device)
        encoded = through_blocks(self.layers, whole.flatten(0, 1), self.axis, lambda _: segments).last
        return TowerFeatures(encoded.unflatten(0, (tiles, config.places))[:, 1:].flatten(0, 1))
