"""The module of Qwen-like mergers; their hyperparameters are in `loong_vlm.projectors.patch_merger`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loong_core.nn.layer_norm import LayerNorm
from loong_core.nn.linear import ColumnParallelLinear
from loong_core.nn.norm import NormWeight
from loong_core.parallel.context import ParallelContext
from loong_kernels import rms_norm
from loong_vlm.features import ImageFeatures, TowerFeatures
from loong_vlm.projectors.patch_merger import PatchMergerConfig


class SquareMerger(nn.Module):
    """`second(gelu(first(norm(x))))` of the joined patches of each square.

    Args:
        config: the hyperparameters.
        context: on whose device.
        dtype: of the parameters.
        norm_joined: whether squares are normalised, rather than patches.
    """

    def __init__(
        self, config: PatchMergerConfig, context: ParallelContext, dtype: torch.dtype, *, norm_joined: bool
    ) -> None:
        super().__init__()
        self.joined = config.joined
        size = config.joined if norm_joined else config.width
        kind = NormWeight if config.norm == "rms_norm" else LayerNorm
        self.norm = kind(size, config.norm_eps, context, dtype)
        self.size = size
        self.first = ColumnParallelLinear(config.joined, config.joined, True, context, dtype)
        self.second = ColumnParallelLinear(config.joined, config.hidden_size, True, context, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """`[patches, width]`, square by square, to `[squares, hidden_size]`."""
        x = x.reshape(-1, self.size)
        x = rms_norm(x, self.norm(), self.norm.eps) if isinstance(self.norm, NormWeight) else self.norm(x)
        return self.second(F.gelu(self.first(x.reshape(-1, self.joined))))


class PatchMerger(SquareMerger):
    """The merger of the tower's last features, and in `deep` those of its levels."""

    def __init__(self, config: PatchMergerConfig, context: ParallelContext, dtype: torch.dtype) -> None:
        super().__init__(config, context, dtype, norm_joined=False)
        self.deep = nn.ModuleList(SquareMerger(config, context, dtype, norm_joined=True) for _ in range(config.deep))

    def forward(self, features: TowerFeatures, grid_thw: Tensor) -> ImageFeatures:  # type: ignore[override]
        """One feature for each square of patches, in their order."""
        deep = tuple(merger(level) for merger, level in zip(self.deep, features.levels, strict=True))
        return ImageFeatures(super().forward(features.last), deep)
