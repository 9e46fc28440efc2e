"""The module of N1.6's tower: SigLIP's, fed with packed patches as loong-vlm's towers are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from loong_vlm.features import TowerFeatures
from loong_vlm.towers.siglip import SiglipConfig, SiglipTower

if TYPE_CHECKING:
    from loong_vla.families.groot.backbones import SquareTower


def siglip_config(config: SquareTower) -> SiglipConfig:
    """The tower's sizes as SigLIP's module takes them."""
    return SiglipConfig(
        config.width, config.inner, config.num_layers, config.heads, config.side * config.patch, config.patch
    )


class SquareTowerModule(SiglipTower):
    """SigLIP's tower on the patches of pictures that are all of one size."""

    def __init__(self, config: SquareTower) -> None:
        super().__init__(siglip_config(config))

    def forward(self, patches: Tensor, grid_thw: Tensor) -> TowerFeatures:  # type: ignore[override]
        """Encode `[pictures * patches, 3 * patch * patch]`, row by row within a picture."""
        pictures = patches.to(self.patch_embedding.weight.dtype).unflatten(0, (-1, self.config.patches))
        return TowerFeatures(self.encode(pictures).flatten(0, 1))
