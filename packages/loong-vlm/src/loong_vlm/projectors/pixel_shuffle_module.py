"""The module of InternVL's projector; its hyperparameters are in `loong_vlm.projectors.pixel_shuffle`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from loong_core.nn.layer_norm import LayerNorm
from loong_core.nn.linear import ColumnParallelLinear
from loong_core.parallel.context import ParallelContext
from loong_vlm.features import ImageFeatures, TowerFeatures
from loong_vlm.projectors.pixel_shuffle import NORM_EPS, PixelShuffleConfig
from loong_vlm.towers.block import ACTIVATIONS
from loong_vlm.towers.patch_order import square_order


class PixelShuffle(nn.Module):
    """`second(act(first(norm(x))))` of the joined patches of each square, square after square in rows."""

    def __init__(self, config: PixelShuffleConfig, context: ParallelContext, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.activation = ACTIVATIONS[config.activation]
        self.norm = LayerNorm(config.joined, NORM_EPS, context, dtype)
        self.first = ColumnParallelLinear(config.joined, config.hidden_size, True, context, dtype)
        self.second = ColumnParallelLinear(config.hidden_size, config.hidden_size, True, context, dtype)

    def forward(self, features: TowerFeatures, grid_thw: Tensor) -> ImageFeatures:
        """One feature for each square of patches.

        Args:
            features: the tower's.
            grid_thw: `[images, 3]` on the host.
        """
        patches = features.last
        if self.config.tower_merge == 1:
            patches = patches[square_order(grid_thw, self.config.side).to(patches.device, non_blocking=True)]
        joined = patches.reshape(-1, self.config.joined)
        return ImageFeatures(self.second(self.activation(self.first(self.norm(joined)))))
