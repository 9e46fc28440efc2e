"""The module of RICE-ViT; its hyperparameters are in `loong_vlm.towers.rice`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from loong_core.nn.layer_norm import LayerNorm
from loong_core.parallel.context import ParallelContext
from loong_vlm.features import TowerFeatures
from loong_vlm.towers.axial_rotary import Rotation, axial_rotation
from loong_vlm.towers.block import VisionBlock, through_blocks
from loong_vlm.towers.learnt_angle import LearntAngle
from loong_vlm.towers.patch_embedding import PatchEmbedding
from loong_vlm.towers.patch_order import Segments, rows_and_columns
from loong_vlm.towers.rice import ROTARY_THETA, RiceConfig


class Rice(nn.Module):
    """Frames, each with a class token in front, through all blocks; the class tokens' features are not handed out."""

    def __init__(self, config: RiceConfig, context: ParallelContext, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.axis = context.tensor
        self.class_token = nn.Parameter(torch.empty(config.width, device=context.device, dtype=dtype))
        self.class_token.drawn = True  # type: ignore[attr-defined]
        self.class_angles = nn.Parameter(torch.empty(1, config.angles, device=context.device, dtype=dtype))
        for parameter in (self.class_token, self.class_angles):
            parameter.sequence_parallel = context.sequence_parallel  # type: ignore[attr-defined]
        self.patch_embedding = PatchEmbedding(config.patches.kernel, config.width, False, context, dtype)
        self.first_norm = LayerNorm(config.width, config.block.norm_eps, context, dtype)
        self.layers = nn.ModuleList(VisionBlock(config.block, context, dtype) for _ in range(config.depth))

    def forward(self, patches: Tensor, grid_thw: Tensor) -> TowerFeatures:
        """Encode packed images.

        Args:
            patches: `[patches, patch_dim]`.
            grid_thw: `[images, 3]` on the host.
        """
        device = patches.device
        lengths = [height * width for frames, height, width in grid_thw.tolist() for _ in range(frames)]
        firsts = np.cumsum([0, *(length + 1 for length in lengths)])[:-1]  # rows of the class tokens
        others = np.setdiff1d(np.arange(len(patches) + len(lengths)), firsts, assume_unique=True)
        class_rows = torch.from_numpy(firsts).to(device, non_blocking=True)
        patch_rows = torch.from_numpy(others).to(device, non_blocking=True)

        tokens = self.class_token.expand(len(firsts) + len(others), -1)
        stream = self.first_norm(tokens.index_copy(0, patch_rows, self.patch_embedding(patches)))
        rotation = self._rotation(rows_and_columns(grid_thw, self.config.merge).to(device), class_rows, patch_rows)
        segments = Segments.of_lengths(length + 1 for length in lengths).to(device)
        encoded = through_blocks(self.layers, stream, self.axis, lambda _: segments, rotation).last
        return TowerFeatures(encoded[patch_rows])

    def _rotation(self, rows_columns: Tensor, class_rows: Tensor, patch_rows: Tensor) -> Rotation:
        """That of all tokens: patches by their places, class tokens by the learnt angles."""
        of_patches = axial_rotation(rows_columns, self.config.block.head_dim, ROTARY_THETA, self.class_angles.dtype)
        angles = self.class_angles[0].to(of_patches.cos.dtype)
        cos, sin = (
            own.detach().expand(len(class_rows) + len(patch_rows), -1).index_copy(0, patch_rows, table)
            for own, table in ((angles.cos(), of_patches.cos), (angles.sin(), of_patches.sin))
        )
        return Rotation(cos, sin, LearntAngle(class_rows, angles))
